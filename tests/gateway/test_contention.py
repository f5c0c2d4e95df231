"""Rust, Curator and kazoo contend for the same paths while members are killed and connections are cut.

A folder outside of the cluster is the record: whoever holds alone creates a link to its name there, which must not
exist.
"""

import concurrent.futures
import contextlib
import os
import pathlib
import random
import re
import tempfile
import threading
import time
import unittest

from cluster import wait_until
from contenders import Application, Kazoo, Proxy, curator

SECONDS = 25
# What contends at each path: in Rust, with Curator, and with kazoo.
ROWS = {
    "/lock": [("lock", "lock", "lock-shared")],
    "/rw": [("write", "write", "write-shared"), ("read", "read", "read-shared")],
    "/leader": [("latch", "latch", "latch-shared")],
    # In Rust, with priorities; and with hand-overs, too.
    "/elected": [("elected", "elected", "elected")],
    "/handed": [("handed", "handed", "handed")],
    "/permits": [("semaphore", "semaphore", None)],
    "/permits-kazoo": [("semaphore-kazoo", None, "semaphore-default")],
}
# The parents of what contenders create.
PARENTS = ["/lock", "/rw", "/leader", "/elected", "/handed", "/permits/locks", "/permits/leases", "/permits-kazoo", "/permits-kazoo-__lock__"]


def dead(file, place):
    """Whether a file of the record is of a contender of this member."""
    try:
        return os.readlink(file).startswith(f"rust{place}-")
    except OSError:
        # Its holder has just deleted it, or it is no link.
        return False


class Contention(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="quorate-shared-")))
        self.application = self.enterContext(Application())
        self.proxies = [Proxy(port) for port in self.application.ports]
        for proxy in self.proxies:
            self.addCleanup(proxy.end)
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        all_kinds = [(kinds, path) for path, rows in ROWS.items() for kinds in rows]
        self.rust = [(rust, path) for (rust, _, _), path in all_kinds]
        self.curator = [(java, path) for (_, java, _), path in all_kinds if java]
        names = [f"java-{kind}" for kind, _ in self.curator]
        self.java = curator(self.folder, hosts, *names)
        self.addCleanup(self.java.end)
        self.kazoos = [
            (Kazoo(hosts, f"python-{python}"), python, path) for (_, _, python), path in all_kinds if python]
        for kazoo, _, _ in self.kazoos:
            self.addCleanup(kazoo.end)
        for path in ROWS:
            self.record(path).mkdir()
            (self.record(path) / "order").touch()

    def record(self, path):
        return self.folder / path[1:]

    def begin(self, place, run):
        """Starts the application's contenders at a member."""
        for kind, path in self.rust:
            name = f"rust{place}-{run}-{kind}"
            self.assertEqual(self.application.members[place].run(f"{name} {kind} {path} {self.record(path)}"), "done")

    def kill(self, place):
        self.application.kill(place)
        errors = [line for line in self.application.members[place].all if " had " not in line and line.startswith("* rust")]
        self.assertEqual(errors, [])
        # Whoever has died holds nothing, but in the cluster, until its sessions have expired.
        for path in ROWS:
            for file in self.record(path).iterdir():
                if dead(file, place):
                    file.unlink()

    def end(self, program, names):
        """Ends contenders, and returns their turns."""
        turns = {}
        for name in names:
            self.assertEqual(program.run(f"{name} release"), "done")
        for name in names:
            line = program.next(lambda line: line.startswith(f"* {name} "))
            self.assertRegex(line, r" had \d+ turns$")
            turns[name] = int(line.split()[-2])
        return turns

    def test_one_holds_at_a_time_and_nobody_is_forgotten(self):
        seed = random.randrange(1 << 32)
        print("seed", seed)
        chosen = random.Random(seed)
        stop, runs = threading.Event(), [0, 0, 0]
        with concurrent.futures.ThreadPoolExecutor(len(self.kazoos)) as pool, contextlib.ExitStack() as ended:
            ended.callback(stop.set)
            kazoos = {kazoo.name: pool.submit(kazoo.contend, kind, path, self.record(path), stop)
                      for kazoo, kind, path in self.kazoos}
            for kind, path in self.curator:
                self.assertEqual(self.java.run(f"java-{kind} {kind} {path} {self.record(path)}"), "done")
            for place in range(3):
                self.begin(place, 0)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                # The time between faults is what is tested here, and no condition.
                time.sleep(chosen.uniform(0.5, 1.5))
                chosen.choice(self.proxies).cut()
                if chosen.random() < 0.3:
                    place = chosen.randrange(3)
                    self.kill(place)
                    runs[place] += 1
                    self.application.start(place)
                    self.application.members[place].wait_for("* ready")
                    self.begin(place, runs[place])
            stop.set()
            turns = {name: future.result(60) for name, future in kazoos.items()}
            turns |= self.end(self.java, [f"java-{kind}" for kind, _ in self.curator])
            for place, run in enumerate(runs):
                names = [f"rust{place}-{run}-{kind}" for kind, _ in self.rust]
                turns |= self.end(self.application.members[place], names)
        print(turns, "members were killed", sum(runs), "times")
        # The contenders of members that were just started may not have had their turn yet.
        waited = [name for name in turns if not name.startswith("rust") or "-0-" in name]
        self.assertTrue(all(turns[name] for name in waited), turns)
        for path in ROWS:
            text = (self.record(path) / "order").read_text()
            # The places in the order, or tokens. Whoever was killed may not have finished its line.
            number = r" (\d+)\n" if path in ("/elected", "/handed") else r"(\d{10})\n"
            numbers = [int(number) for number in re.findall(number, text)]
            self.assertEqual(numbers, sorted(set(numbers)), f"nobody is overtaken at {path}")
        for path in ("/elected", "/handed"):
            text = (self.record(path) / "order").read_text()
            print(path, text.count("\n"), "terms, of which without a token:", text.count("None"))
        client = self.kazoos[0][0].client
        for path in PARENTS:
            wait_until("nothing is left", lambda: not client.exists(path) or not client.get_children(path))


if __name__ == "__main__":
    unittest.main()
