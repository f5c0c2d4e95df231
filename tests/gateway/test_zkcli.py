"""ZooKeeper's own command line against three members as processes."""

import unittest

from cluster import Cluster
from java import Program

STAT = ["cZxid", "ctime", "mZxid", "mtime", "pZxid", "cversion", "dataVersion", "aclVersion", "ephemeralOwner",
        "dataLength", "numChildren"]
EVENT = "WatchedEvent state:SyncConnected type:"


class Cli:
    """A command line. It prints events between other lines, as they come; they are collected."""

    def __init__(self, hosts):
        self.program = Program("org.apache.zookeeper.ZooKeeperMain", "-server", hosts)
        self.events = []
        self.ends = 0

    def run(self, command):
        """Runs a command. Returns its lines, up to the answer to a second command that marks the end."""
        self.ends += 1
        end = f"Node does not exist: /end-{self.ends}"
        self.program.write(command, f"stat /end-{self.ends}")
        printed = []
        while (line := self.line()) != end:
            printed += [line] if line else []
        return printed

    def event(self):
        """Waits for the next event."""
        while not self.events:
            self.line()
        return self.events.pop(0)

    def line(self):
        """The next line; empty for the line of an event."""
        line = self.program.line()
        if line is None:
            raise AssertionError("the command line has ended")
        if line.startswith(EVENT):
            self.events.append(tuple(line[len(EVENT):].split(" path:")))
        return "" if line.startswith(EVENT) or line == "WATCHER::" else line


class ZkCli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def setUp(self):
        self.cli = Cli(self.cluster.hosts)
        self.addCleanup(self.cli.program.end)
        self.assertEqual(self.cli.event(), ("None", "null"))
        version = self.cli.run("version")
        self.assertTrue(version[-1].startswith("ZooKeeper CLI version: "), version)

    def expect(self, command, *lines):
        self.assertEqual(self.cli.run(command), list(lines), command)

    def stat(self, command):
        """The stat at the end of a command's output, and the lines before it."""
        lines = self.cli.run(command)
        before, stat = lines[:-len(STAT)], [line.split(" = ") for line in lines[-len(STAT):]]
        self.assertEqual([name for name, _ in stat], STAT, command)
        return before, {name: value for name, value in stat}

    def test_znodes(self):
        self.expect("create /a one", "Created /a")
        self.expect("create /a one", "Node already exists: /a")
        self.expect("create -s /a/s- two", "Created /a/s-0000000000")
        self.expect("create -s -e /a/e- three", "Created /a/e-0000000001")
        self.expect("create -c /a/box", "Created /a/box")
        self.expect("create -t 60000 /a/ttl four", "Created /a/ttl")
        self.expect("create -e /a/eph", "Created /a/eph")
        self.expect("create /a/eph/child", "Ephemerals cannot have children: /a/eph/child")
        self.expect("ls /a", "[box, e-0000000001, eph, s-0000000000, ttl]")
        self.expect("create /deep", "Created /deep")
        self.expect("create /deep/x", "Created /deep/x")
        self.expect("create /deep/x/y", "Created /deep/x/y")
        self.expect("ls -R /deep", "/deep", "/deep/x", "/deep/x/y")
        self.expect("ls /none", "Node does not exist: /none")
        children, stat = self.stat("ls -s /deep")
        self.assertEqual((children, stat["numChildren"], stat["cversion"]), (["[x]"], "1", "1"))
        data, stat = self.stat("get -s /a")
        self.assertEqual((data, stat["dataLength"], stat["cversion"]), (["one"], "3", "5"))
        self.assertEqual(stat["ephemeralOwner"], "0x0")
        self.assertNotEqual(self.stat("stat /a/eph")[1]["ephemeralOwner"], "0x0")
        for name in ("box", "ttl"):
            self.assertEqual(self.stat(f"stat /a/{name}")[1]["ephemeralOwner"], "0x0")
        self.expect("set /a uno")
        self.expect("set -v 7 /a x", "version No is not valid : /a")
        self.assertEqual(self.stat("set -v 1 -s /a due")[1]["dataVersion"], "2")
        self.expect("get /a", "due")
        self.expect("delete -v 5 /deep/x/y", "version No is not valid : /deep/x/y")
        self.expect("delete -v 0 /a/s-0000000000")
        self.expect("delete /deep", "Node not empty: /deep")
        self.expect("getAllChildrenNumber /deep", "2")
        self.assertCountEqual(
            self.cli.run("getEphemerals")[0].strip("[]").split(", "), ["/a/eph", "/a/e-0000000001"])
        self.expect("getEphemerals /a/eph", "[/a/eph]")
        self.expect("getEphemerals /deep", "[]")
        self.expect("deleteall /deep")
        self.expect("ls /deep", "Node does not exist: /deep")
        self.expect("sync /", "Sync is OK")

    def test_access_lists(self):
        self.expect("create /box", "Created /box")
        self.expect("getAcl /box", "'world,'anyone", ": cdrwa")
        self.expect("whoami", "Auth scheme: User", "ip: 127.0.0.1")
        self.expect("create /mine s digest:alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E=:cdrwa", "Created /mine")
        self.expect("get /mine", "Insufficient permission : /mine")
        self.expect("addauth digest alice:secret")
        self.expect("get /mine", "s")
        self.assertCountEqual(self.cli.run("whoami"), ["Auth scheme: User", "digest: alice", "ip: 127.0.0.1"])
        self.expect("setAcl /box auth:alice:cdrwa")
        self.expect("getAcl /box", "'digest,'alice:aYXlLOpEooaV1cRAvUL1fp9Qt7E=", ": cdrwa")
        self.expect("setAcl -v 9 /box world:anyone:r", "version No is not valid : /box")
        self.assertEqual(self.stat("setAcl -s /box world:anyone:cdrwa")[1]["aclVersion"], "2")
        acl, stat = self.stat("getAcl -s /box")
        self.assertEqual((acl, stat["aclVersion"]), (["'world,'anyone", ": cdrwa"], "2"))

    def test_watches(self):
        other = Cli(self.cluster.hosts)
        self.addCleanup(other.program.end)
        self.expect("create /w due", "Created /w")
        self.expect("get -w /w", "due")
        self.expect("ls -w /w", "[]")
        self.expect("stat -w /later", "Node does not exist: /later")
        other.run("set /w tre")
        self.assertEqual(self.cli.event(), ("NodeDataChanged", "/w"))
        other.run("create /w/new")
        self.assertEqual(self.cli.event(), ("NodeChildrenChanged", "/w"))
        other.run("create /later")
        self.assertEqual(self.cli.event(), ("NodeCreated", "/later"))
        self.expect("addWatch /w")
        self.expect("addWatch -m PERSISTENT /later")
        other.run("create /w/new/er")
        self.assertEqual(self.cli.event(), ("NodeCreated", "/w/new/er"))
        for data in "ab":
            other.run(f"set /later {data}")
            self.assertEqual(self.cli.event(), ("NodeDataChanged", "/later"))
        self.expect("removewatches /later")
        self.assertEqual(self.cli.event(), ("PersistentWatchRemoved", "/later"))
        self.expect("removewatches -c /later", "KeeperErrorCode = No such watcher for /later")
        self.expect("removewatches /none", "KeeperErrorCode = No such watcher for /none")
        self.expect("get -w /later", "b")
        self.expect("removewatches -d /later")
        self.assertEqual(self.cli.event(), ("DataWatchRemoved", "/later"))
        # No event comes for a removed watch.
        other.run("set /later c")
        other.run("set /w d")
        self.assertEqual(self.cli.event(), ("NodeDataChanged", "/w"))

    def test_quotas(self):
        self.expect("create /q", "Created /q")
        self.expect("setquota -n 5 /q")
        listed = self.cli.run("listquota /q")
        self.assertEqual(listed[0], "absolute path is /zookeeper/quota/q/zookeeper_limits")
        self.assertIn("count=5,", listed[1])
        self.expect("delquota -n /q")
        self.expect("delquota /q")

    def test_the_rest(self):
        # As at a standalone server.
        self.assertEqual(self.cli.run("config"), [])
        self.assertIn("KeeperErrorCode = ", self.cli.run("reconfig -remove 3")[0])
        self.expect("create -e /goes", "Created /goes")
        self.cli.program.write("close", "quit")
        while self.cli.program.line() is not None:
            pass
        self.assertEqual(self.cli.program.process.wait(), 0)
        other = Cli(self.cluster.hosts)
        self.addCleanup(other.program.end)
        other.run("sync /")
        self.assertEqual(other.run("stat /goes")[-1], "Node does not exist: /goes")


if __name__ == "__main__":
    unittest.main()
