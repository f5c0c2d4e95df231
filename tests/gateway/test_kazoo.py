"""kazoo, Python's client, against three members as processes."""

import threading
import unittest

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError,
    RolledBackError, RuntimeInconsistency)
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.recipe.barrier import DoubleBarrier
from kazoo.recipe.watchers import ChildrenWatch, DataWatch
from kazoo.security import make_digest_acl

from cluster import PATIENCE, Cluster, wait_until, word


class Events:
    """Collects watch events."""

    def __init__(self):
        self.all = []

    def wait_for(self, count):
        wait_until(f"{count} events, now {self.all}", lambda: len(self.all) >= count)
        return [(event.type, event.path) for event in self.all]

    def __call__(self, event):
        self.all.append(event)


class Kazoo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster())

    def client(self, hosts=None, **options):
        client = KazooClient(hosts or self.cluster.hosts, timeout=10, connection_retry=-1, command_retry=-1, **options)
        client.start(timeout=PATIENCE)
        self.addCleanup(self.end, client)
        return client

    @staticmethod
    def end(client):
        client.stop()
        client.close()

    def test_znodes(self):
        zk = self.client()
        self.assertEqual(zk.create("/a", b"1"), "/a")
        data, stat = zk.get("/a")
        self.assertEqual((data, stat.version, stat.dataLength, stat.numChildren), (b"1", 0, 1, 0))
        self.assertEqual((stat.czxid, stat.ephemeralOwner), (stat.mzxid, 0))
        with self.assertRaises(NodeExistsError):
            zk.create("/a", b"")
        self.assertEqual(zk.set("/a", b"22").version, 1)
        with self.assertRaises(BadVersionError):
            zk.set("/a", b"3", version=0)
        path, stat = zk.create("/a/b", b"", include_data=True)
        self.assertEqual((path, stat.version), ("/a/b", 0))
        with self.assertRaises(NotEmptyError):
            zk.delete("/a")
        self.assertEqual(zk.create("/a/s-", b"", sequence=True), "/a/s-0000000001")
        children, stat = zk.get_children("/a", include_data=True)
        self.assertEqual((sorted(children), stat.cversion), (["b", "s-0000000001"], 2))
        self.assertIsNone(zk.exists("/none"))
        with self.assertRaises(NoNodeError):
            zk.get("/none")
        self.assertEqual(zk.sync("/a"), "/a")
        zk.delete("/a", recursive=True)
        self.assertIsNone(zk.exists("/a"))

    def test_a_znode_with_many_children_is_listed_and_deleted(self):
        """The list is longer than any request may be. The gateway closed the connection, so that no client
        could list these children, and hence not delete them."""
        zk = self.client()
        zk.create("/many", b"")
        names = [f"_c_{number:024}-lock-" + str(number % 10) for number in range(34_000)]
        self.assertEqual(len(names[0]), 34)
        for first in range(0, len(names), 1_000):
            transaction = zk.transaction()
            for name in names[first:first + 1_000]:
                transaction.create(f"/many/{name}", b"")
            self.assertEqual(len(transaction.commit()), 1_000)
        self.assertEqual(sorted(zk.get_children("/many")), names)
        children, stat = zk.get_children("/many", include_data=True)
        self.assertEqual((len(children), stat.numChildren), (34_000, 34_000))
        zk.delete("/many", recursive=True)
        self.assertIsNone(zk.exists("/many"))

    def test_ephemerals_go_with_the_session(self):
        other = self.client()
        zk = self.client()
        zk.create("/eph", b"", ephemeral=True)
        owner = other.exists("/eph").ephemeralOwner
        self.assertEqual(owner, zk.client_id[0])
        zk.stop()
        other.sync("/")
        self.assertIsNone(other.exists("/eph"))

    def test_multi(self):
        zk = self.client()
        multi = zk.transaction()
        multi.create("/m", b"1")
        multi.set_data("/m", b"2")
        multi.check("/m", 1)
        multi.create("/m/x", b"")
        multi.delete("/m/x")
        results = multi.commit()
        self.assertEqual(results[0], "/m")
        self.assertEqual(results[1].version, 1)
        self.assertEqual(results[2:], [True, "/m/x", True])
        multi = zk.transaction()
        multi.create("/m/y", b"")
        multi.check("/m", 7)
        multi.create("/m/z", b"")
        results = [type(result) for result in multi.commit()]
        self.assertEqual(results, [RolledBackError, BadVersionError, RuntimeInconsistency])
        self.assertIsNone(zk.exists("/m/y"))

    def test_watches(self):
        zk, other = self.client(), self.client()
        zk.create("/w", b"")
        data, exists, children = Events(), Events(), Events()
        zk.get("/w", watch=data)
        zk.exists("/w/new", watch=exists)
        zk.get_children("/w", watch=children)
        other.create("/w/new", b"")
        other.set("/w", b"1")
        other.set("/w", b"2")
        self.assertEqual(exists.wait_for(1), [(EventType.CREATED, "/w/new")])
        self.assertEqual(children.wait_for(1), [(EventType.CHILD, "/w")])
        self.assertEqual(data.wait_for(1), [(EventType.CHANGED, "/w")])
        # Both kinds of watch on a znode: one event for its deletion.
        zk.get("/w/new", watch=(gone := Events()))
        zk.get_children("/w/new", watch=gone)
        other.delete("/w/new")
        self.assertEqual(gone.wait_for(1)[0], (EventType.DELETED, "/w/new"))
        for events in data, exists, children:
            self.assertEqual(len(events.all), 1)

    def test_access_lists(self):
        zk, stranger = self.client(), self.client()
        zk.add_auth("digest", "alice:secret")
        acl = [make_digest_acl("alice", "secret", all=True)]
        zk.create("/mine", b"s", acl=acl)
        self.assertEqual(zk.get_acls("/mine")[0], acl)
        with self.assertRaises(NoAuthError):
            stranger.get("/mine")
        stranger.add_auth("digest", "alice:secret")
        self.assertEqual(stranger.get("/mine")[0], b"s")

    def test_a_session_moves_with_its_client(self):
        first, other = self.cluster.ports[0], self.client()
        zk = self.client(self.cluster.hosts, randomize_hosts=False)
        states = []
        zk.add_listener(states.append)
        zk.create("/moving", b"", ephemeral=True)
        other.create("/seen", b"1")
        values = []
        DataWatch(zk, "/seen", lambda data, stat: values.append(data))
        self.cluster.kill(0)
        try:
            other.retry(other.set, "/seen", b"2")
            wait_until("the value is seen", lambda: values[-1:] == [b"2"])
            zk.retry(zk.set, "/moving", b"still there")
            self.assertNotIn(KazooState.LOST, states)
            self.assertEqual(other.retry(other.exists, "/moving").ephemeralOwner, zk.client_id[0])
        finally:
            self.cluster.start(0)
        self.assertEqual(word(first, "ruok"), "imok")

    def test_recipes(self):
        zk, other = self.client(), self.client()
        # A lock has one holder.
        held, inside = [], threading.Lock()

        def work(client, name):
            for _ in range(5):
                with client.Lock("/lock", name):
                    self.assertTrue(inside.acquire(blocking=False))
                    held.append(name)
                    inside.release()

        threads = [threading.Thread(target=work, args=(client, name))
                   for client, name in [(zk, "a"), (other, "b")]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(sorted(held), ["a"] * 5 + ["b"] * 5)
        # A queue hands out each item once.
        queue = zk.LockingQueue("/queue")
        queue.put_all([str(item).encode() for item in range(5)])
        taken = []
        for client in (zk, other, zk, other, zk):
            of = client.LockingQueue("/queue")
            taken.append(int(of.get(PATIENCE)))
            of.consume()
        self.assertEqual(sorted(taken), list(range(5)))
        # A counter counts, and an election elects one.
        counter = zk.Counter("/counter")
        counter += 2
        second = other.Counter("/counter")
        second += 3
        self.assertEqual(counter.value, 5)
        elected = []
        for client in (zk, other):
            client.Election("/election", "x").run(elected.append, client)
        self.assertEqual(elected, [zk, other])
        # A party lists its participants.
        party = zk.Party("/party", "zk")
        party.join()
        joined = other.Party("/party", "other")
        joined.join()
        self.assertEqual(sorted(party), ["other", "zk"])
        # A double barrier lets all in at once.
        entered = []
        barriers = [DoubleBarrier(client, "/barrier", 2) for client in (zk, other)]
        threads = [threading.Thread(target=lambda each=each: (each.enter(), entered.append(each)))
                   for each in barriers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(len(entered), 2)

    def test_watchers(self):
        zk, other = self.client(), self.client()
        zk.create("/conf", b"1")
        values, names = [], []
        DataWatch(zk, "/conf", lambda data, stat: values.append(data))
        ChildrenWatch(zk, "/conf", lambda children: names.append(sorted(children)))
        other.set("/conf", b"2")
        other.create("/conf/a", b"")
        wait_until("the value is seen", lambda: values[-1:] == [b"2"])
        wait_until("the child is seen", lambda: names[-1:] == [["a"]])

    def test_a_client_with_sasl_hears_that_there_is_none(self):
        options = {"mechanism": "DIGEST-MD5", "username": "ann", "password": "secret"}
        zk = KazooClient(self.cluster.hosts, timeout=4, sasl_options=options)
        self.addCleanup(zk.close)
        states = []
        zk.add_listener(lambda _: states.append(zk.client_state))
        zk.start(timeout=PATIENCE)
        # It asks again and again, until its session is over.
        wait_until("it has failed", lambda: KeeperState.AUTH_FAILED in states)
        stops = threading.Thread(target=zk.stop, daemon=True)
        stops.start()
        stops.join(PATIENCE)
        self.assertFalse(stops.is_alive())

    def test_words(self):
        self.assertEqual(self.client().server_version()[:2], (3, 9))
        port = self.cluster.ports[self.cluster.leader()]
        self.assertIn("zk_server_state\tleader", word(port, "mntr"))
        self.assertEqual(word(port, "isro"), "rw")
        self.assertEqual(word(port, "nope"), "")


if __name__ == "__main__":
    unittest.main()
