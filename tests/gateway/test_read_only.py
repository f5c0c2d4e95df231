"""kazoo with read_only=True at a member that has lost its majority."""

import unittest

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import NotReadOnlyCallError
from kazoo.protocol.states import KeeperState

from cluster import PATIENCE, Cluster, wait_until, word


class ReadOnly(unittest.TestCase):
    def client(self, port, **options):
        zk = KazooClient(f"127.0.0.1:{port}", timeout=30, **options)
        self.addCleanup(zk.close)
        self.addCleanup(zk.stop)
        return zk

    def test_reads_without_a_majority(self):
        with Cluster(options=["--read-only-mode"]) as cluster:
            port = cluster.ports[0]
            writer = self.client(port, read_only=True)
            writer.start(PATIENCE)
            writer.create("/a", b"1")
            session = writer.client_id
            seen = []
            writer.add_listener(seen.append)
            for member in (1, 2):
                cluster.kill(member)
            wait_until("it is read-only", lambda: word(port, "isro") == "ro")

            wait_until("the client has gone on read-only", lambda: writer.client_state == KeeperState.CONNECTED_RO)
            self.assertEqual(writer.client_id, session)
            self.assertEqual(writer.get("/a")[0], b"1")
            with self.assertRaises(NotReadOnlyCallError):
                writer.set("/a", b"2")
            fresh = self.client(port, read_only=True)
            fresh.start(PATIENCE)
            self.assertEqual(fresh.client_state, KeeperState.CONNECTED_RO)
            self.assertEqual(fresh.get_children("/"), writer.get_children("/"))
            with self.assertRaises(NotReadOnlyCallError):
                fresh.create("/b", b"")
            refused = self.client(port)
            refused.start_async()

            for member in (1, 2):
                cluster.start(member)
            for zk in (writer, fresh, refused):
                wait_until("it writes again", lambda: zk.client_state == KeeperState.CONNECTED)
            self.assertEqual(word(port, "isro"), "rw")
            self.assertEqual(writer.client_id, session)
            self.assertNotIn(KazooState.LOST, seen)
            writer.set("/a", b"2")
            fresh.create("/b", b"", ephemeral=True)
            self.assertTrue(refused.exists("/b"))


if __name__ == "__main__":
    unittest.main()
