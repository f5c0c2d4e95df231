"""The four-letter words that monitors and exporters parse."""

import re
import unittest

from kazoo.client import KazooClient

from cluster import PATIENCE, Cluster, wait_until, word

NOT_LISTED = "{} is not executed because it is not in the whitelist.\n"
# The values that exporters read from mntr, of every member.
NUMBERS = ["zk_avg_latency", "zk_max_latency", "zk_min_latency", "zk_packets_received", "zk_packets_sent",
           "zk_num_alive_connections", "zk_outstanding_requests", "zk_znode_count", "zk_watch_count",
           "zk_ephemerals_count", "zk_approximate_data_size", "zk_open_file_descriptor_count",
           "zk_max_file_descriptor_count", "zk_uptime", "zk_global_sessions", "zk_quorum_size"]
SERVER = re.compile(
    r"Zookeeper version: 3\.9\.\d+-\S+, built on .+\n"
    r"(?P<clients>Clients:\n(?: /127\.0\.0\.1:\d+\[[01]\]\(queued=\d+,recved=\d+,sent=\d+\)\n)+\n)?"
    r"Latency min/avg/max: (?P<min>\d+)/(?P<avg>\d+\.\d+)/(?P<max>\d+)\n"
    r"Received: (?P<received>\d+)\nSent: (?P<sent>\d+)\nConnections: (?P<connections>\d+)\n"
    r"Outstanding: \d+\nZxid: 0x[0-9a-f]+\nMode: (?P<mode>leader|follower)\nNode count: (?P<nodes>\d+)\n")


class Words(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(options=["--4lw-commands-whitelist", "*"]))
        members = range(len(cls.cluster.ports))
        wait_until("all know the leader", lambda: all(
            cls.cluster.mode(member) in ("leader", "follower") for member in members))

    def setUp(self):
        self.port = self.cluster.ports[self.cluster.leader()]
        self.zk = KazooClient(f"127.0.0.1:{self.port}", timeout=10)
        self.zk.start(PATIENCE)
        self.session = f"{self.zk.client_id[0]:#x}"
        self.addCleanup(self.zk.close)
        self.addCleanup(self.zk.stop)

    def monitor(self, port):
        lines = word(port, "mntr").splitlines()
        return dict(line.split("\t") for line in lines)

    def match(self, text):
        answer = word(self.port, text)
        match = SERVER.fullmatch(answer)
        self.assertIsNotNone(match, answer)
        return match

    def test_monitor(self):
        before = self.monitor(self.port)
        self.zk.create("/mntr", b"x" * 1000, ephemeral=True)
        self.zk.get("/mntr", watch=print)
        after = self.monitor(self.port)
        grown = {name: float(after[name]) - float(before[name]) for name in NUMBERS}
        self.assertEqual(grown["zk_znode_count"], 1)
        self.assertEqual(grown["zk_ephemerals_count"], 1)
        self.assertEqual(grown["zk_approximate_data_size"], 1000 + len("/mntr"))
        self.assertEqual(grown["zk_watch_count"], 1)
        self.assertGreaterEqual(grown["zk_packets_received"], 2)
        self.assertGreaterEqual(grown["zk_packets_sent"], 2)
        self.assertLessEqual(float(after["zk_min_latency"]), float(after["zk_avg_latency"]))
        # The mean has fractions of a millisecond; the maximum has none.
        self.assertLess(float(after["zk_avg_latency"]), float(after["zk_max_latency"]) + 1)
        self.assertGreater(float(after["zk_avg_latency"]), 0)
        self.assertLessEqual(
            int(after["zk_open_file_descriptor_count"]), int(after["zk_max_file_descriptor_count"]))
        self.assertTrue(after["zk_version"].startswith("3.9."))
        self.assertEqual(after["zk_server_state"], "leader")
        self.assertEqual((after["zk_followers"], after["zk_learners"], after["zk_quorum_size"]), ("2", "2", "3"))
        self.assertEqual((after["zk_synced_observers"], after["zk_synced_non_voting_followers"]), ("0", "0"))
        self.assertEqual(after["zk_pending_syncs"], "0")
        self.assertGreaterEqual(int(after["zk_leader_uptime"]), int(before["zk_leader_uptime"]))
        wait_until("all are synced", lambda: self.monitor(self.port)["zk_synced_followers"] == "2")
        for port in self.cluster.ports:
            if port != self.port:
                follower = self.monitor(port)
                self.assertEqual(follower["zk_server_state"], "follower")
                for name in ("zk_followers", "zk_leader_uptime", "zk_pending_syncs", "zk_synced_observers"):
                    self.assertNotIn(name, follower)
                self.assertLessEqual(set(NUMBERS), set(follower))

    def test_server(self):
        before, after = self.match("srvr"), self.match("stat")
        self.assertIsNone(before["clients"])
        self.assertIn("(queued=0,recved=", after["clients"])
        self.assertEqual(after["clients"].count("\n") - 2, int(after["connections"]))
        self.assertEqual(after["mode"], "leader")
        self.assertGreaterEqual(int(after["received"]), int(before["received"]))

    def test_connections(self):
        self.zk.create("/cons", b"")
        self.zk.get("/cons")
        pattern = re.compile(
            r"^ /127\.0\.0\.1:\d+\[1\]\(queued=0,recved=(\d+),sent=(\d+),sid=" + self.session +
            r",lop=(?:GETD|PING),est=\d{13},to=10000,lcxid=0x[0-9a-f]+,lzxid=0x[0-9a-f]+,lresp=\d+,"
            r"llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+\)$", re.MULTILINE)
        match = pattern.search(word(self.port, "cons"))
        self.assertIsNotNone(match, word(self.port, "cons"))
        self.assertGreaterEqual(int(match[1]), 3)
        self.assertEqual(match[1], match[2])
        self.assertTrue(word(self.port, "cons").endswith("(queued=0,recved=0,sent=0)\n\n"))

    def test_counters_are_set_back(self):
        for number in range(50):
            self.zk.create(f"/reset-{number}", b"", ephemeral=True)
        self.assertGreater(int(self.match("srvr")["received"]), 50)
        self.assertEqual(word(self.port, "crst"), "Connection stats reset.\n")
        mine = next(line for line in word(self.port, "cons").splitlines() if "(queued=" in line)
        self.assertLess(int(re.search(r"recved=(\d+)", mine)[1]), 50)
        self.assertGreater(int(self.match("srvr")["received"]), 50)
        self.assertEqual(word(self.port, "srst"), "Server stats reset.\n")
        self.assertLess(int(self.match("srvr")["received"]), 50)

    def test_watches(self):
        for path in ("/one", "/two"):
            self.zk.create(path, b"", ephemeral=True)
            self.zk.get(path, watch=print)
        self.zk.get_children("/two", watch=print)
        self.assertEqual(word(self.port, "wchs"), "1 connections watching 2 paths\nTotal watches:3\n")
        self.assertEqual(word(self.port, "wchc"), f"{self.session}\n\t/one\n\t/two\n\n")
        self.assertEqual(word(self.port, "wchp"), f"/one\n\t{self.session}\n/two\n\t{self.session}\n\n")

    def test_dump(self):
        self.zk.create("/dump", b"", ephemeral=True)
        dump = word(self.port, "dump")
        parts = re.fullmatch(r"SessionTracker dump:\n(?P<tracker>.*)ephemeral nodes dump:\n(?P<ephemerals>.*)"
                             r"Connections dump:\n(?P<connections>.*)", dump, re.DOTALL)
        self.assertIn(f"{self.session}\t10000ms\n", parts["tracker"])
        self.assertIn(f"{self.session}:\n\t/dump\n", parts["ephemerals"])
        self.assertRegex(parts["connections"], rf"\tip: /127\.0\.0\.1:\d+ sessionId: {self.session}\n")

    def test_settings(self):
        settings = dict(line.split("=", 1) for line in word(self.port, "conf").splitlines())
        self.assertEqual(settings["clientPort"], str(self.port))
        self.assertEqual((settings["tickTime"], settings["maxClientCnxns"]), ("2000", "60"))
        self.assertEqual((settings["minSessionTimeout"], settings["maxSessionTimeout"]), ("4000", "40000"))
        self.assertGreater(int(settings["dataDirSize"]), 0)
        # A `long` of Java.
        self.assertTrue(0 < int(settings["serverId"]) < 2 ** 63, settings["serverId"])
        environment = word(self.port, "envi").splitlines()
        self.assertEqual(environment[0], "Environment:")
        self.assertTrue(environment[1].startswith("zookeeper.version=3.9."))
        sizes = re.fullmatch(r"datadir_size: (\d+)\nlogdir_size: (\d+)\n", word(self.port, "dirs"))
        self.assertTrue(all(int(size) > 0 for size in sizes.groups()))
        self.assertEqual((word(self.port, "ruok"), word(self.port, "isro")), ("imok", "rw"))
        self.assertEqual(word(self.port, "nope"), "")

    def test_the_trace_mask(self):
        port = self.cluster.ports[(self.cluster.leader() + 1) % 3]
        self.assertEqual(word(port, "gtmk"), "306")
        self.assertEqual(word(port, "stmk\0\0\0\0\0\0\0\6"), "6")
        self.assertEqual(word(port, "gtmk"), "6")

    def test_the_list(self):
        with Cluster(members=1) as cluster:
            port = cluster.ports[0]
            for name in ("cons", "dump", "wchc", "wchp", "crst", "srst"):
                self.assertEqual(word(port, name), NOT_LISTED.format(name))
            for name in ("ruok", "isro", "srvr", "stat", "mntr", "envi", "conf", "dirs", "wchs", "gtmk"):
                self.assertNotIn("whitelist", word(port, name))
        with Cluster(members=1, options=["--4lw-commands-whitelist", "ruok, srvr"]) as cluster:
            port = cluster.ports[0]
            self.assertEqual(word(port, "mntr"), NOT_LISTED.format("mntr"))
            self.assertEqual(word(port, "ruok"), "imok")


if __name__ == "__main__":
    unittest.main()
