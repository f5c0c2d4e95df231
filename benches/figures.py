#!/usr/bin/env python3
"""Measures every figure of docs/performance.md and of the tables here, and writes them: see README.md.

Output of the commands goes to target/figures; progress goes to the standard error output.
"""
import argparse, datetime, json, os, re, shlex, statistics, subprocess, sys, time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(ROOT, "target", "figures")
PAGE, README, FIGURES = "docs/performance.md", "benches/README.md", "benches/figures.json"
# The table of the first page has these columns.
FRONT, SYSTEMS = "README.md", ("quorate", "zookeeper", "etcd")

# What is run, and how often.
COMMANDS = {
    "peers": ("benches/peers/run.py --runs 3 --seconds 4 --failovers 2 --page --plots docs/performance", 1),
    "gateway": ("benches/peers/gateway.py --runs 2", 1),
    "restart": ("benches/peers/restart.py", 1),
    "spread": ("cargo bench --bench large -- spread", 1),
    "turns": ("cargo bench --bench large -- turns", 1),
    "parents": ("cargo bench --bench large -- parents", 1),
    "rejoin": ("cargo bench --bench large -- rejoin", 1),
    "idle": ("cargo bench --bench load -- idle", 3),
    "load": ("cargo bench --bench load", 1),
    "values": ("cargo bench --bench load -- values", 1),
    "watches": ("cargo bench --bench watches", 1),
    "recipes": ("cargo bench --bench recipes", 1),
    "partitions": ("cargo bench --bench recipes -- partitions", 1),
    "cluster": ("cargo bench --bench cluster", 1),
    "read": ("cargo bench --bench read", 1),
    "election": ("cargo bench --bench election", 1),
    "start": ("cargo bench --bench start", 1),
}
UNITS = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SPREAD = r" +([\d.]+ \[[\d.]+\.\.[\d.]+\])"
TIME = r" +([\d.]+(?:ns|µs|ms|s))"


class Output:
    """What a command has printed, each time that it was run."""

    def __init__(self, paths):
        self.runs = [read(path) for path in paths]
        self.date = datetime.date.fromtimestamp(os.path.getmtime(paths[-1])).isoformat()

    def each(self, pattern, section=""):
        """The first match in each run, behind the heading of a section: its groups, or its one group."""
        found = []
        for text in self.runs:
            match = re.search(pattern, text.partition(section)[2] if section else text, re.MULTILINE)
            if not match:
                sys.exit(f"no such line in the output of a command: {pattern}")
            found.append(match.group(1) if len(match.groups()) == 1 else match.groups())
        return found

    def text(self, pattern, section=""):
        return self.each(pattern, section)[0]

    def number(self, pattern, section=""):
        return float(self.text(pattern, section))

    def all(self, pattern):
        """Every match of a pattern with one group."""
        return [each for text in self.runs for each in re.findall(pattern, text, re.MULTILINE)]


def seconds(text):
    """A duration as Rust prints it."""
    number, unit = re.fullmatch(r"([\d.]+)(\D+)", text).groups()
    return float(number) * UNITS[unit]


def show(of):
    """A time in the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)):
        if of >= size or unit == "ns":
            return f"{digits(of / size)} {unit}"


def digits(number):
    """Three digits, or all of those before the point."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def rate(number):
    """A rate to three digits."""
    step = 10 ** max(0, len(str(int(number))) - 3)
    return f"{round(number / step) * step:,}"


def short(number, unit):
    """A figure of a comparison as the first page has it."""
    if unit == "us":
        return f"{number / 1000:.1f} ms" if number >= 1000 else f"{number / 1000:.2f} ms"
    return rate(number) if unit == "a second" else f"{rate(round(number))} {unit}"


def bold(text, value, most=None, least=None):
    """A figure that misses its bound is bold."""
    missed = (most is not None and value > most) or (least is not None and value < least)
    return f"**{text}**" if missed else text


def amount(number, unit, most):
    return bold(f"{number:g} {unit}", number, most)


def spread(text, unit, most=None, least=None):
    """A median with the least and the greatest, as the benches print it."""
    median, rest = text.split(" ", 1)
    unit = f" {unit}" if unit else ""
    median = f"{float(median):,g}" if unit == " ns" else median
    return f"{bold(median + unit, float(median.replace(',', '')), most, least)} {rest}"


def several(values, unit, most=None):
    """The figures of some runs: the median, the least and the greatest."""
    values = sorted(float(value) for value in values)
    median = f"{statistics.median(values):g} {unit}".strip()
    return f"{bold(median, statistics.median(values), most)} [{values[0]:g}..{values[-1]:g}]"


def section(count):
    return f"{count} znodes, spread:"


def reads(output, count, most):
    return spread(output.text(rf"^{SPREAD} ns for a read", section(count)), "ns", most)


def set_ratio(output, of, count, least):
    rate, ratio = output.text(rf"^ +(\d+) \[\S+\] sets a second, pipelined, {of} of {count}:{SPREAD}$")
    small = output.number(rf"^ +(\d+) \[\S+\] sets a second, pipelined, {of} of 1000:")
    return f"{spread(ratio, '', least=least)} ({int(rate):,} and {small:,.0f} a second)"


def rejoined(output, window):
    level, votes, during, before = map(float, output.text(
        rf"^ +([\d.]+) s until an empty member is level, 3 writers of {window}$\n +([\d.]+) s until it votes$\n"
        r" +(\d+) sets a second until then, (\d+) before"))
    return level, votes, during / before


def level(output, window):
    seconds, votes, _ = rejoined(output, window)
    return f"{seconds:.1f} s; {bold(f'{votes:.1f} s', votes, most=20)} until it votes"


def meanwhile(output, window):
    share = rejoined(output, window)[2]
    return bold(f"{share:.2f}", share, least=0.5)


def restarts(output, way):
    """The median and the spread of each system."""
    row = output.text(rf"^\| {way} and a restart \|(.*)\|$").split("|")
    names = output.text(r"^\| [\d,]+ znodes of .*? \| (.*) \| best peer").split(" | ")
    return dict(zip(names, (cell.strip() for cell in row)))


def slower(cells, peer):
    ratio = float(cells[peer].split()[0]) / float(cells["quorate"].split()[0])
    return bold(f"{ratio:.1f}", ratio, least=2.5)


def after_kill(output, peer):
    cells = restarts(output, "SIGKILL")
    beside = f", {cells['quorate']}" if peer == "etcd" else ""
    return f"{slower(cells, peer)} ({cells[peer]}{beside})"


def after_end(output):
    cells = restarts(output, "SIGTERM")
    return f"{slower(cells, 'etcd')}, {slower(cells, 'zookeeper')} ({cells['quorate']})"


def table_row(output, name):
    """What a second, and p50 and p99 where the table has them."""
    return output.text(rf"^{re.escape(name)} +(\d+){TIME}{TIME}$")


def fanout(output):
    name = r"^a set until the last of 100000 watches has its event"
    each = sorted(map(seconds, output.all(name + TIME)))
    median = statistics.median(each)
    return f"{bold(show(median), median, most=0.1)} [{digits(each[0] * 1e3)}..{digits(each[-1] * 1e3)}]"


def longest_beside(output):
    name = rf"^a set until the last of 100000 watches.*\n  writes of another session at the same time.*worst{TIME}"
    worst = max(map(seconds, output.all(name)))
    return bold(show(worst), worst, most=0.1)


def queue(output, length):
    (_, one, _), (_, both, _) = table_row(output, "set"), table_row(output, f"put and pop, {length} items wait")
    ratio = seconds(both) / seconds(one)
    beside = f", {show(seconds(one))}" if length == 100 else ""
    return f"{bold(f'{ratio:.1f}', ratio, most=2.3)} ({show(seconds(both))}{beside})"


def pops(output):
    count, p50, p99 = table_row(output, "a pop of 16 consumers beside 16 producers")
    share = output.text(r"^  popped while they were put / put +([\d.]+)")
    words = bold(f"{int(count):,}", int(count), least=20000)
    return f"{words} (p50 {show(seconds(p50))}, p99 {show(seconds(p99))}), {share} of the puts"


def additions(output):
    count, _, p99 = table_row(output, "an addition of 16 callers at one counter")
    return f"{bold(f'{int(count):,}', int(count), least=30000)} (p99 {show(seconds(p99))})"


def permits(output, name):
    return output.number(r"writes for a thousand +([\d.]+)", name)


def enough(output):
    count, p50, _ = table_row(output, "a permit of 15 callers at one limit")
    writes = permits(output, "a permit of 15 callers at one limit")
    return f"{show(seconds(p50))}, {rate(int(count))} a second; {writes:g} writes for a thousand"


def idle(output):
    line = r"^three idle members, a session each +([\d.]+) % of a core, (\d+) switches a second"
    share, switches = zip(*output.each(line))
    # The share has its unit once.
    return f"{several(share, '% of a core', 0.3)}, {several(switches, 'switches a second', 50)}"


def renewals(output):
    share = output.number(r"^the same with \d+ sessions +([\d.]+) % of a core")
    return f"{bold(f'{share:.1f} %', share, most=2)} of a core"


def slow_disk(output):
    before = seconds(output.text(rf"^set at the leader, three disks +p50.*p99{TIME}"))
    during = seconds(output.text(rf"^the same, a follower's disk takes 400 ms +p50.*p99{TIME}"))
    ratio = during / before
    return f"{bold(f'{ratio:.1f}', ratio, most=2)} ({show(during)}, {show(before)})"


def syncs(output):
    alone, beside = (seconds(output.text(rf"^{name} +p50{TIME}")) for name in (
        "sync at a follower, a session each", "sync at a follower beside them"))
    return f"{show(beside)} / {show(alone)}"


def below(output, kind, count, name, least):
    ratio = output.text(rf"{kind} a second, pipelined, of {count} {name}:{SPREAD}")
    return spread(ratio, "", least=least)


def values(output, name, least=None):
    number = output.number(rf"^{name} +(\d+) MB/s$")
    return bold(f"{number:g} MB/s", number, least=least)


def ready(output, name, most):
    median, longest = map(seconds, output.text(rf"^{name}: ready after (\S+) \(median of \d+\), (\S+) at most$"))
    return f"{bold(show(median), median, most=most)}, {show(longest)} at most"


def shares(output, names):
    found = [output.text(rf"^{name} +(\d+) writes +([\d.]+) s") for name in names]
    join = lambda words: words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    writes, times = (join([each[at] for each in found]) for at in (0, 1))
    return f"{writes} writes{',' if len(found) == 1 else ';'} {times} s"


# The rows of a table: what it says, the command, how the figure is made of its output, and the bound.
BUSY = [
    ("local read of 100 B, a random one of 1,000 znodes", "spread",
     lambda o: reads(o, 1000, 150), "150 ns"),
    ("the same of 1,000,000", "spread",
     lambda o: reads(o, 1000000, 500), "500 ns"),
    ("memory of a znode of 100 B, of 1,000,000 just created", "spread",
     lambda o: amount(o.number(r"^ +(\d+) B of memory for each$", section(1000000)), "B", 330), "330 B"),
    ("the same after a restart", "spread",
     lambda o: amount(o.number(r"^ +(\d+) B of memory for each, then$", section(1000000)), "B", 350), "350 B"),
    ("restart with 1,000,000 znodes after SIGKILL, to the first read through the gateway: etcd / quorate", "restart",
     lambda o: after_kill(o, "etcd"), "2.5"),
    ("the same, ZooKeeper / quorate", "restart", lambda o: after_kill(o, "zookeeper"), "2.5"),
    ("the same two after SIGTERM", "restart", after_end, "2.5"),
    ("pipelined sets of random ones of 100,000 / of 1,000", "turns",
     lambda o: set_ratio(o, "random ones", 100000, 0.8), "0.8"),
    ("the same of 1,000,000 / of 1,000", "turns", lambda o: set_ratio(o, "random ones", 1000000, 0.6), "0.6"),
    ("pipelined sets of the same 1,000 beside 1,000,000 / of 1,000 alone", "turns",
     lambda o: set_ratio(o, "the same 1000", 1000000, 0.9), "0.9"),
    ("a set until the last of 100,000 watches of the znode has its event", "load", fanout, "100 ms"),
    ("the longest write of another session meanwhile", "load", longest_beside, "a heartbeat, 100 ms"),
    ("time of a pipelined set with 1,000,000 persistent watches elsewhere / without any", "watches",
     lambda o: spread(o.text(rf"^with 1000000 persistent watches{SPREAD}{SPREAD}{SPREAD}")[2], "", 1), "1"),
    ("memory of a watch, its handle and path included", "watches",
     lambda o: o.text(r"^bytes of each, its handle and path included +(\d+)") + " B", "-"),
    ("a put and a pop, two writes, of a queue with 100 items waiting / a set", "recipes", lambda o: queue(o, 100), "2.3"),
    ("the same with 50,000 items waiting", "recipes", lambda o: queue(o, 50000), "2.3"),
    ("pops a second, 16 consumers beside 16 producers on three members", "recipes", pops, "20,000"),
    ("additions a second at one `Counter`, 16 callers on three members", "recipes", additions, "30,000"),
    ("renewals of 50,000 sessions, three members together", "load", renewals, "2 %"),
    ("three idle members", "idle", idle, "0.3 %, 50"),
    ("memory of a process with an idle member", "spread",
     lambda o: o.text(r"^ +([\d.]+) MiB of memory of a process", section(1000)) + " MiB", "20 MiB"),
]
MORE = [
    ("longest set of a writer that waits for each, 1,000,000 znodes, checkpoints included", "spread",
     lambda o: amount(o.number(r"^ +([\d.]+) ms at most for a set", section(1000000)), "ms", 20), "20 ms"),
    ("pipelined sets below one parent, 100,000 children / 1,000", "parents",
     lambda o: below(o, "sets", 100000, "below one", 0.8), "0.8"),
    ("the same of creates", "parents", lambda o: below(o, "creates", 100000, "below one", 0.8), "0.8"),
    ("pipelined sets of 100,000 znodes below 1,000 parents / 1,000 znodes below one", "parents",
     lambda o: below(o, "sets", 100000, "below 1,000 parents", None), "-"),
    ("the same of creates", "parents", lambda o: below(o, "creates", 100000, "below 1,000 parents", None), "-"),
    ("set at the leader, p99, while a follower's disk takes 400 ms for each sync / before", "load", slow_disk, "2"),
    ("the same with the third member closed, p50", "load",
     lambda o: show(seconds(o.text(rf"^the same, and the other's disk takes 400 ms +p50{TIME}"))), "one sync"),
    ("elections and lost sessions in these two", "load",
     lambda o: " and ".join(o.text(r"^in this time +(\d+) elections, (\d+) sessions lost")), "0"),
    ("time of a pipelined set with 1,000,000 recursive watches elsewhere / without any", "watches",
     lambda o: spread(o.text(rf"^with 1000000 recursive watches{SPREAD}{SPREAD}{SPREAD}")[2], "", 1), "1"),
    ("`sync` beside 50,000 sessions, p50 / with one session", "load", syncs, "1"),
    ("three instances found a cluster: all are ready", "start", lambda o: ready(o, "three found a cluster", 0.2), "0.2 s"),
    ("all three start again", "start", lambda o: ready(o, "all three start again", 0.15), "0.15 s"),
    ("one more joins", "start", lambda o: ready(o, "one more joins", 0.5), "0.5 s"),
    ("10,000 partitions, 100 members: all get theirs", "partitions", lambda o: shares(o, ["all join"]), "-"),
    ("one more joins; one is lost; one leaves", "partitions",
     lambda o: shares(o, ["one more joins", "one is lost", "one leaves"]), "-"),
    ("memory of a process with three idle members", "load",
     lambda o: o.text(r"^three idle members, a session each.* ([\d.]+) MiB") + " MiB", "-"),
    ("an empty member is level, 1,000,000 znodes, three writers that wait for each set", "rejoin",
     lambda o: level(o, 1), "20 s"),
    ("sets of these writers meanwhile / before", "rejoin", lambda o: meanwhile(o, 1), "0.5"),
    ("an empty member is level, three writers with 1,000 sets outstanding each", "rejoin",
     lambda o: level(o, 1000), "20 s"),
    ("sets of these writers meanwhile / before", "rejoin", lambda o: meanwhile(o, 1000), "0.5"),
    ("values of 1 MB into 100 znodes, 16 outstanding at the leader of three members", "values",
     lambda o: values(o, "values of 1 MB into 100 znodes", 250), "250 MB/s"),
    ("the same into one znode", "values", lambda o: values(o, "values of 1 MB into 1 znodes"), "-"),
    ("three threads that write as much, checkpoints over former ones; in new files", "values",
     lambda o: "; ".join(values(o, f"such values twice to three files each, {name}")
                         for name in ("in place", "into new files")), "-"),
    ("a permit of a `RateLimiter` that has enough, 15 callers on three members", "recipes", enough, "-"),
    ("the same limit at 10,000 a second, whose callers wait", "recipes",
     lambda o: f"{permits(o, 'the same, at most 10,000 a second'):.2g} writes for a thousand permits", "-"),
]
CALLS = [
    ("read of a znode, local replica", "cluster", "read"),
    ("read of a random one of 10,000 (`--bench read`)", "read", None),
    ("sequential write of 100 B, 1 member", "cluster", "sequential write, 1 member"),
    ("sequential write of 100 B, 3 members, at the leader", "cluster", "sequential write, 3 members, at the leader"),
    ("sequential write of 100 B, 3 members, at another", "cluster", "sequential write, 3 members, at another"),
    ("64 threads writing, 3 members", "cluster", "64 concurrent writers, 3 members"),
    ("pipelined writes of 100 B (1,024 in flight), 1 member", "cluster", "pipelined writes of 100 B, 1 member"),
    ("the same, 3 members, one session at the leader", "cluster", "pipelined writes of 100 B, at the leader"),
    ("the same, one session at another member", "cluster", "pipelined writes of 100 B, at another"),
    ("the same, a session at each member", "cluster", "pipelined writes of 100 B, at all three"),
    ("`sync`, at another member than the leader", "cluster", "sync, at another than the leader"),
    ("from a set to its event at another member", "cluster", "set to event at another member"),
    ("lock acquired and released, uncontended (two writes)", "cluster", "lock acquired and released, uncontended"),
    ("lock handed from one member to another", "cluster", "lock handed over between two members"),
    ("leader killed with SIGKILL, until the next write elsewhere is done", "cluster", "leader killed to next write"),
]
RECIPES = [
    ("lock acquired and released, uncontended", "recipes", "lock, acquired and released"),
    ("the same with a lock-delay", "recipes", "the same with a lock-delay"),
    ("read lock acquired and released, uncontended", "recipes", "read lock, acquired and released"),
    ("permit of a semaphore acquired and released", "recipes", "permit, acquired and released"),
    ("lock handed over, with 16 contenders over three members", "recipes", "lock handed over among 16 contenders"),
    ("an item put and popped, 100 items wait", "recipes", "put and pop, 100 items wait"),
    ("a pop, 16 consumers beside 16 producers", "recipes", "a pop of 16 consumers beside 16 producers"),
    ("an addition to a counter, 16 callers", "recipes", "an addition of 16 callers at one counter"),
    ("a permit of a rate limiter, 15 callers", "recipes", "a permit of 15 callers at one limit"),
    ("elected leader killed with SIGKILL, until the next one leads; session timeout 4 s", "election",
     r"session timeout 4000 ms, a follower killed: next leads after ([\d.]+m?s)"),
    ("the same, if it was also the Raft leader when it was elected", "election",
     r"session timeout 4000 ms, the Raft leader too killed: next leads after ([\d.]+m?s)"),
    ("the first of these with a session timeout of 10 s", "election",
     r"session timeout 10000 ms, a follower killed: next leads after ([\d.]+m?s)"),
]
def call_cells(output, command, name):
    """A second, p50 and p99."""
    if command == "election":
        # Who is killed is a matter of chance: none of a kind may have been.
        found = re.search(name, output.runs[0], re.MULTILINE)
        return ["", f"{seconds(found.group(1)):.1f} s", ""] if found else None
    if name is None:
        low, middle, unit = output.text(r"a random one of 10,000\s+time:\s+\[([\d.]+) \S+ ([\d.]+) (\S+) ")
        return [rate(1e9 / (float(middle) * UNITS[unit] / 1e-9)), f"{float(middle):.0f} {unit}", ""]
    count, p50, p99 = table_row(output, name)
    only = "killed" in name
    return ["" if only else rate(int(count)), show(seconds(p50)), show(seconds(p99))]


def systems(output):
    """What the runs of the gateway and of ZooKeeper have printed."""
    parts = re.split(r"^run \d+: ", output.runs[0], flags=re.MULTILINE)[1:]
    return [[part for part in parts if part.startswith(system)] for system in ("gateway", "zookeeper")]


def compared(pattern, number, words):
    """quorate's gateway, ZooKeeper, and their ratio."""
    def cells(output):
        found = [[number(match.group(1)) for part in parts if (match := re.search(pattern, part, re.MULTILINE))]
                 for parts in systems(output)]
        own, peer = map(statistics.median, found)
        return [words(values) for values in found] + [f"{own / peer:.2f}" if words is not memory else ""]
    return cells


def times(values):
    return ", ".join(map(show, values))


def rates(values):
    return ", ".join(f"{value:,}" for value in values) + "/s"


def memory(values):
    return f"{values[0]} MiB more"


COMPARED = [
    ("set of 100 B at a follower, p50", compared(rf"^set of 100 B, one at a time +p50{TIME}", seconds, times)),
    ("get of 100 B, p50", compared(rf"^get of 100 B, one at a time +p50{TIME}", seconds, times)),
    ("pipelined sets of 100 B by 64 clients, 16 outstanding each",
     compared(r"^pipelined sets of 100 B, 64 connections +(\d+)", int, rates)),
    ("pipelined gets of 100 B by 64 clients, 16 outstanding each",
     compared(r"^pipelined gets of 100 B, 64 connections +(\d+)", int, rates)),
    ("10,000 idle sessions: memory of the three processes", compared(r"idle sessions: (-?\d+) MiB more", int, memory)),
    ("10,000 idle sessions: processors",
     compared(r"MiB more, ([\d.]+) % of a core", float, lambda values: f"{values[0]} % of a core")),
]


class Table:
    """The rows of a table of a page: those that were measured replace the ones that were there."""

    def __init__(self, text, heading):
        rule = text.index("\n| ---", text.index(heading))
        self.text, self.begin = text, text.index("\n", rule + 1) + 1
        self.end = text.index("\n\n", self.begin)
        former = [[cell.strip() for cell in line[1:-1].split("|")] for line in text[self.begin:self.end].splitlines()]
        # Two rows may have the same title, "the same of creates": each is known with the ones before it.
        self.former = {title: row[1:] for title, row in zip(full_titles([row[0] for row in former]), former)}
        self.rows = []

    def add(self, title, full, cells):
        """A row, with its former cells if there are no new ones."""
        self.rows.append([title] + (cells or self.former.get(full) or sys.exit(f"not measured yet: {title}")))

    def page(self):
        lines = "\n".join("| " + " | ".join(row) + " |" for row in self.rows).replace("|  |", "| |")
        return self.text[:self.begin] + lines.replace("|  |", "| |") + self.text[self.end:]


def full_titles(titles):
    """Titles with the one that they go on from."""
    full, base = [], ""
    for title in titles:
        if title.startswith(("the same", "sets of these writers", "the longest write")):
            full.append(f"{base}: {title}")
        else:
            full.append(title)
            base = title
    return full


def read(path):
    with open(os.path.join(ROOT, path)) as file:
        return file.read()


def write(path, text):
    with open(os.path.join(ROOT, path), "w") as file:
        file.write(text)


def measure(names):
    os.makedirs(TARGET, exist_ok=True)
    for name in names:
        command, times = COMMANDS[name]
        for path in paths(name):
            if os.path.exists(path):
                os.remove(path)
        for run in range(times):
            print(f"{time.strftime('%H:%M:%S')} {command}", file=sys.stderr, flush=True)
            output = subprocess.run(shlex.split(command), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
            write(paths(name)[run], output)


def paths(name):
    return [os.path.join(TARGET, f"{name}-{run + 1}.txt") for run in range(COMMANDS[name][1])]


def outputs(names):
    """What the commands have printed, of those that were run."""
    return {name: Output(paths(name)) for name in names if all(map(os.path.exists, paths(name)))}


def tables(found):
    """The pages and the file of figures, with what was measured."""
    page, readme, figures = read(PAGE), read(README), json.loads(read(FIGURES))
    former = {figure["name"]: figure for figure in figures if "value" in figure}
    figures = [figure for figure in figures if "value" not in figure]

    def figure(name, command, output, value, more):
        before = former.get(name, {})
        since = {"date": output.date if output else before["date"]}
        quoted = {"quoted": before["quoted"]} if "quoted" in before else {}
        figures.append({"name": name, "value": value.replace("**", "")} | more
                       | {"command": COMMANDS[command][0]} | since | quoted)

    table, output = Table(page, "\n## Through the gateway\n"), found.get("gateway")
    for title, cells in COMPARED:
        table.add(title, title, output and cells(output))
        value, peer, _ = table.rows[-1][1:]
        figure(f"gateway: {title}", "gateway", output, value, {"zookeeper": peer})
    page = table.page()

    for heading, rows in (("\n## Large and busy\n", BUSY), ("\n## More of what is large and busy\n", MORE)):
        table, before = Table(page if rows is BUSY else readme, heading), None
        for (title, command, value, bound), full in zip(rows, full_titles([row[0] for row in rows])):
            output = found.get(command)
            table.add(title, full, [value(output)] if output else None)
            label = COMMANDS[command][0].removeprefix("cargo bench --bench ")
            table.rows[-1][2:] = [bound, "the same" if command == before else f"`{label}`"]
            before = command
            if rows is BUSY:
                figure(full, command, output, table.rows[-1][1], {})
        page, readme = (table.page(), readme) if rows is BUSY else (page, table.page())

    for heading, rows in (("| operation | a second |", CALLS), ("| recipe | a second |", RECIPES)):
        table = Table(readme, heading)
        for (title, command, name), full in zip(rows, full_titles([row[0] for row in rows])):
            table.add(title, full, call_cells(found[command], command, name) if command in found else None)
        readme = table.page()
    front = read(FRONT)
    for of in figures:
        for quote in of.get("quoted", []):
            if quote["in"] == FRONT:
                begin = front.index(quote["text"])
                title = front[begin:].split("|", 2)[1]
                if "network: " in title:
                    title = re.sub(r"network: [\d.]+ ms", f"network: {short(of['floor'], 'us')}", title)
                cells = " | ".join(short(of[system], of["unit"]) for system in SYSTEMS)
                front = front[:begin] + f"|{title}| {cells} |" + front[front.index("\n", begin):]
    return {FRONT: front, PAGE: page, README: readme, FIGURES: json.dumps(figures, indent=1, ensure_ascii=False) + "\n"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS) + "; all by default")
    parser.add_argument("--measured", action="store_true", help="take what was measured before, and measure nothing")
    parser.add_argument("--check", action="store_true", help="only see whether the tables have the rows that this makes")
    options = parser.parse_args()
    if unknown := set(options.commands) - set(COMMANDS):
        parser.error(f"no such command: {', '.join(unknown)}")
    names = options.commands or list(COMMANDS)
    if options.check:
        differ = [path for path, text in tables({}).items() if text != read(path)]
        sys.exit(f"{', '.join(differ)}: the rows are not those of benches/figures.py" if differ else 0)
    if not options.measured:
        measure(names)
    for path, text in tables(outputs(names)).items():
        write(path, text)


if __name__ == "__main__":
    main()
