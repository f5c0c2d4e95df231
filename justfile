# The commands of CI, each runnable alone, and a few more. CI itself is `.ci/run`, which needs no `just`: the
# recipes of the first group call its steps of the same names.

simulate := "cargo run --release --locked -p quorate-simulation --"

# Lists the recipes.
default:
    @just --list

# Everything that a change must pass. Takes long.
[group('ci')]
ci:
    .ci/run

# Installs what the other steps need (a C++ compiler, file system tools).
[group('ci')]
prepare:
    .ci/run prepare

# Checks the formatting.
[group('ci')]
fmt:
    .ci/run fmt

# Compares the dependencies with the list.
[group('ci')]
dependencies:
    .ci/run dependencies

# Lints with all sets of features.
[group('ci')]
clippy:
    .ci/run clippy

# Builds the documentation.
[group('ci')]
doc:
    .ci/run doc

# Runs all tests: in memory, on disk, with real processes, and the examples of the pages.
[group('ci')]
test:
    .ci/run test

# Runs every fuzz target for 10 seconds. Longer: fuzz/run SECONDS [TARGET...].
[group('ci')]
fuzz:
    .ci/run fuzz

# Runs the tests of ZooKeeper's wire protocol, which only the feature `gateway` builds, and builds all programs.
[group('ci')]
gateway:
    .ci/run gateway

# Runs ZooKeeper's own clients against the gateway, and `service` and `rolled` beside them.
[group('ci')]
clients:
    .ci/run clients

# Checks the code that threads share under every schedule, and that planted faults are found.
[group('ci')]
loom:
    .ci/run loom

# Runs all examples.
[group('ci')]
examples:
    .ci/run examples

# Simulates clusters under faults, and disks: known seeds and 20 fresh ones.
[group('ci')]
simulate:
    .ci/run simulate

# Simulates rolling restarts.
[group('ci')]
rolled:
    .ci/run rolled

# Simulates clusters under load.
[group('ci')]
loaded:
    .ci/run loaded

# Simulates a thousand instances.
[group('ci')]
fleet:
    .ci/run fleet

# Plants each known bug and expects the simulator to find it.
[group('ci')]
planted:
    .ci/run planted

# Compares the state machine and the watches with plain models, at length.
[group('ci')]
models:
    .ci/run models

# Explores every order in which three peers may found a cluster.
[group('ci')]
founding:
    .ci/run founding

# Runs faults against five real processes for 40 seconds.
[group('ci')]
torture:
    .ci/run torture

# Replays one seed of the simulator, for example: just seed 1166, just seed 7 --rolled --minutes 5.
seed number *options:
    {{ simulate }} --seed {{ number }} {{ options }}

# Replays one seed and prints all its events.
trace number *options:
    {{ simulate }} --seed {{ number }} --trace {{ options }}

# Plants one bug and prints which seeds find it, for example: just bug FenceUnchecked.
bug name *options:
    {{ simulate }} --bug {{ name }} --planted 1000 {{ options }}

# Measures how soon each planted bug is found, and writes docs/planted.md (an hour or more), or only for one bug:
# just find --bug FenceUnchecked.
find *options:
    {{ simulate }} --find 100 --jobs 2 {{ options }}

# Measures a cluster on this machine, for example: just bench --bench read.
bench *options:
    cargo bench --locked {{ options }}

# Compares with ZooKeeper and etcd on this machine (half an hour; --quick: three minutes).
peers *options:
    benches/peers/run.py {{ options }}

# Writes new golden files, after a format has grown as src/types/version.rs allows.
golden:
    QUORATE_GOLDEN=write cargo test --locked --lib golden

# Draws the pictures of docs/architecture.md.
draw:
    docs/architecture/draw.py

# Checks that those pictures are up to date, and that the page names only files and functions that exist.
check-architecture:
    docs/architecture/draw.py --check
