"""Curator's recipes against three members as processes, one of which is killed.

Whatever happens, Curator has no error to report: some systems, such as Flink, end at the first one.
"""

import subprocess
import tempfile
import unittest

from cluster import Cluster, wait_until
from java import CLASSPATH, JARS, LOGGING, Client

CURATOR = [JARS + jar + ".jar" for jar in ("curator-recipes", "curator-framework", "curator-client", "guava")]


class Curator(unittest.TestCase):
    def setUp(self):
        self.cluster = self.enterContext(Cluster())
        classes = self.enterContext(tempfile.TemporaryDirectory(prefix="quorate-gateway-"))
        subprocess.run(["javac", "-cp", ":".join([*CLASSPATH, *CURATOR]), "-d", classes, "Recipes.java"], check=True)
        self.java = Client("Recipes", classpath=[classes, *CURATOR], logger=LOGGING)
        self.addCleanup(self.java.end)
        ports = self.cluster.ports
        # The client a loses its connection while its member is down.
        for name, members in ("a", ports[:1]), ("b", ports[1:]):
            hosts = ",".join(f"127.0.0.1:{port}" for port in members)
            self.expect(f"{name} open {hosts}", "done")
            self.java.wait_for(f"~ {name} CONNECTED")

    def tearDown(self):
        for name, member in ("a", 0), ("b", 1):
            # Nor does it follow the cluster's configuration to other addresses.
            hosts = self.java.run(f"{name} hosts /")
            self.assertIn(str(self.cluster.ports[member]), hosts)
        errors = [line for line in self.java.all if line.startswith("# ") or " ERROR " in line]
        self.assertEqual(errors, [])

    def expect(self, command, answer):
        self.assertEqual(self.java.run(command), answer, command)

    def kill(self):
        self.cluster.kill(0)
        self.java.wait_for("~ a SUSPENDED")

    def start(self):
        self.cluster.start(0)
        self.java.wait_for("~ a RECONNECTED")

    def queue(self, path, count):
        wait_until(f"{count} in {path}", lambda: self.java.run(f"b children {path}") == str(count))

    def test_a_lock_is_kept(self):
        self.expect("a lock /lock", "done")
        self.java.wait_for("* a holds")
        self.expect("b lock /lock", "done")
        self.queue("/lock", 2)
        self.kill()
        self.start()
        self.assertNotIn("* b holds", self.java.printed)
        self.expect("a release /lock", "done")
        self.java.wait_for("* a has released", "* b holds")

    def test_a_leader_that_is_disconnected_gives_up(self):
        self.expect("a lead /leader", "done")
        self.java.wait_for("* a leads")
        self.expect("b lead /leader", "done")
        self.queue("/leader", 2)
        self.kill()
        self.java.wait_for("* a leads no more")
        self.start()
        self.java.wait_for("* b leads")

    def test_a_cache_follows(self):
        for name in ("changes", "goes"):
            self.expect(f"b create /cache/{name} 0", f"/cache/{name}")
        self.expect("a cache /cache", "done")
        self.java.wait_for("! a NODE_CREATED /cache/changes 0", "! a NODE_CREATED /cache/goes 0")
        self.expect("b set /cache/changes 1", "1")
        self.java.wait_for("! a NODE_CHANGED /cache/changes 1")
        self.kill()
        self.expect("b set /cache/changes 2", "2")
        self.expect("b delete /cache/goes", "done")
        self.expect("b create /cache/new 0", "/cache/new")
        self.start()
        self.java.wait_for("! a NODE_CHANGED /cache/changes 2", "! a NODE_DELETED /cache/goes 0",
                           "! a NODE_CREATED /cache/new 0")
        self.expect("b set /cache/new 1", "1")
        self.java.wait_for("! a NODE_CHANGED /cache/new 1")


if __name__ == "__main__":
    unittest.main()
