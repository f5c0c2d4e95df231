"""The crate `zookeeper-client`: locks, watches, multis and sessions, while members are killed and started.

Building it takes 34 seconds of processor time, 22 seconds on two cores, and 3 seconds more run the test.
"""

import os
import subprocess
import unittest

from cluster import ROOT, Cluster

CRATE = ROOT / "tests/gateway/rust-client"
TARGET = ROOT / "target/rust-client"


class Rust(unittest.TestCase):
    def test_it_works_while_members_are_lost(self):
        # With a target directory of its own, and without the RUSTFLAGS of this workspace.
        environment = {name: value for name, value in os.environ.items() if name != "RUSTFLAGS"}
        environment["CARGO_TARGET_DIR"] = str(TARGET)
        subprocess.run(["cargo", "build", "--quiet", "--locked", "--manifest-path", CRATE / "Cargo.toml"],
                       env=environment, check=True)
        with Cluster() as cluster:
            with subprocess.Popen([TARGET / "debug/rust-client", cluster.hosts], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
                lines = []
                for line in program.stdout:
                    order, _, member = line.strip().partition(" ")
                    if order == "kill":
                        cluster.kill(int(member))
                    elif order == "start":
                        cluster.start(int(member))
                    else:
                        lines.append(line.strip())
                        continue
                    program.stdin.write("\n")
                    program.stdin.flush()
                errors = program.stderr.read()
            self.assertEqual(program.returncode, 0, (lines, errors[-3000:]))
            self.assertRegex(lines[-1], r"counted \d+, seen 60")


if __name__ == "__main__":
    unittest.main()
