"""Clients of a member whose majority is frozen, as in a partition: the member lives, and reaches nobody."""

import signal
import unittest

from kazoo.client import KazooClient, KazooState

from cluster import PATIENCE, Cluster, wait_until, word
from zookeeper import PING, Wire, hello, i32, text

NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"


class Quorum(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def setUp(self):
        self.member = (self.cluster.leader() + 1) % 3
        self.port = self.cluster.ports[self.member]
        self.others = [self.cluster.processes[other] for other in range(3) if other != self.member]

    def freeze(self):
        for process in self.others:
            process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.thaw)

    def thaw(self):
        for process in self.others:
            process.send_signal(signal.SIGCONT)

    def connect(self):
        """A connection, and whether the first packet was answered."""
        wire = Wire(self.port)
        self.addCleanup(wire.close)
        wire.send(text(hello(30000)))
        return wire, wire.frame()

    def test_clients_are_sent_away(self):
        wire, greeted = self.connect()
        self.assertIsNotNone(greeted)
        zk = KazooClient(self.cluster.hosts, timeout=30, randomize_hosts=False)
        zk.start(PATIENCE)
        self.addCleanup(zk.close)
        self.addCleanup(zk.stop)
        session, seen = zk.client_id, []
        zk.create("/own", b"", ephemeral=True)
        zk.add_listener(seen.append)
        self.freeze()
        # Its pings are answered for a while, and then the connection ends, long before its session does.
        wire.socket.settimeout(20)
        pings = 0
        while not wire.closed:
            wire.send(text(i32(-2, PING)))
            pings += wire.frame() is not None
        self.assertGreater(pings, 0)
        # Others are refused at once.
        for _ in range(3):
            wire, greeted = self.connect()
            self.assertEqual((greeted, wire.closed), (None, True))
        self.assertEqual((word(self.port, "ruok"), word(self.port, "isro")), ("imok", "null"))
        for name in ("srvr", "stat", "mntr", "conf"):
            self.assertEqual(word(self.port, name), NOT_SERVING)

        self.thaw()
        wait_until("clients are served", lambda: word(self.port, "isro") == "rw")
        wait_until("kazoo is connected", lambda: zk.connected)
        self.assertIsNotNone(zk.exists("/own"))
        self.assertEqual(zk.client_id, session)
        self.assertNotIn(KazooState.LOST, seen)
        _, greeted = self.connect()
        self.assertIsNotNone(greeted)


if __name__ == "__main__":
    unittest.main()
