"""`quorate import` copies a tree from three ZooKeeper servers into three members."""

import json
import socket
import subprocess
import threading
import unittest

from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

import zookeeper
from cluster import PATIENCE, PROGRAM, Cluster, wait_until
from zookeeper import CONTAINER, COUNT, TTL, Ensemble, Wire, create, hello, i32, text

ADMIN = "digest:super:admin"
PLAIN = 1900


class Proxy:
    """Forwards connections to a port. After this many bytes of replies it pauses until the test lets it go on."""

    def __init__(self, port, after):
        self.port_behind = port
        self.left = after
        self.stopped = threading.Event()
        self.go_on = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.listener.close()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.port_behind))
            except OSError:
                client.close()
                continue
            for source, to, answers in ((client, server, False), (server, client, True)):
                threading.Thread(target=self.forward, args=(source, to, answers), daemon=True).start()

    def forward(self, source, to, answers):
        try:
            while data := source.recv(4096):
                if answers:
                    self.left -= len(data)
                    if self.left < 0:
                        self.stopped.set()
                        self.go_on.wait()
                to.sendall(data)
        except OSError:
            pass
        for each in (source, to):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()


@unittest.skipUnless(zookeeper.JAR.exists(), f"there is no {zookeeper.JAR}")
class Import(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.source = cls.enterClassContext(Ensemble())
        cls.target = cls.enterClassContext(Cluster(options=["--super-digest", zookeeper.SUPER]))

    def client(self, hosts):
        client = KazooClient(hosts, timeout=30, connection_retry=-1, command_retry=-1)
        client.start(timeout=PATIENCE)
        self.addCleanup(client.close)
        self.addCleanup(client.stop)
        client.add_auth("digest", "super:admin")
        return client

    def clients(self):
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.source.ports)
        return self.client(hosts), self.client(self.target.hosts)

    def command(self, *options, servers=None):
        servers = servers or [f"127.0.0.1:{port}" for port in self.source.ports]
        return [PROGRAM, "import", "--from", ",".join(servers), "--peers", ",".join(self.target.peers),
                "--auth", ADMIN, "--json", *options]

    def run_import(self, *options, expect=0):
        """The counts, and the differences."""
        done = subprocess.run(self.command(*options), capture_output=True, text=True, timeout=2 * PATIENCE)
        self.assertEqual(done.returncode, expect, done.stderr + done.stdout)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return lines[-1], sorted((line["path"], line["difference"]) for line in lines[:-1])

    def make(self, *requests):
        """Sends requests that kazoo does not support."""
        wire = Wire(self.source.ports[self.source.leader()])
        wire.send(text(hello()))
        wire.frame()
        for op, body in requests:
            wire.send(text(i32(1) + i32(op) + body))
            self.assertEqual(wire.frame()[12:16], i32(0))
        wire.close()

    def count(self, path):
        wire = Wire(self.target.ports[0])
        wire.send(text(hello()))
        wire.frame()
        wire.send(text(i32(1) + i32(COUNT) + text(path)))
        answer = zookeeper.Reader(wire.frame())
        answer.take(12)
        found = answer.int() == 0 and answer.int()
        wire.close()
        return found or 0

    @staticmethod
    def tree(client, root):
        """The content that a copy must have: data, access list and children of all znodes that are not ephemeral."""
        found, paths = {}, [root]
        while paths:
            names = [client.get_children_async(path) for path in paths]
            data = [client.get_async(path) for path in paths]
            lists = [client.get_acls_async(path) for path in paths]
            answers = zip(paths, (each.get() for each in names), (each.get() for each in data),
                          (each.get() for each in lists))
            paths = []
            for path, names, (data, stat), (access, _) in answers:
                if not stat.ephemeralOwner:
                    found[path] = (data, access)
                    paths += [f"{path}/{name}" for name in names]
        return found

    def fill(self, zk):
        alice, reader = make_digest_acl("alice", "a", all=True), make_acl("ip", "10.0.0.0/8", read=True)
        zk.create("/app", b"root")
        self.make((CONTAINER, create("/app/container", b"c", flags=4)), (TTL, create("/app/ttl", b"t", flags=5, ttl=10**9)),
                  (zookeeper.CREATE, create("/app/null", None)))
        zk.create("/app/empty", b"")
        zk.create("/app/large", bytes(range(256)) * 2000)
        zk.create("/app/\N{GREEK SMALL LETTER ALPHA} b", "\N{SNOWMAN}".encode())
        zk.create("/app/container/child", b"")
        zk.create("/app/mine", b"m", acl=[alice])
        zk.create("/app/mine/below", b"b", acl=[alice, reader])
        zk.create("/app/hers", b"h", acl=[make_digest_acl("bob", "b", read=True)])
        zk.create("/app/queue", b"")
        for _ in range(20):
            last = zk.create("/app/queue/n-", b"", sequence=True)
            zk.delete(last)
        for _ in range(3):
            zk.create("/app/queue/n-", b"item", sequence=True)
        zk.create("/app/members", b"")
        zk.create("/app/members/m-", b"", ephemeral=True, sequence=True)
        zk.create("/app/tree", b"")
        made = [zk.create_async(f"/app/tree/{top}", b"") for top in range(19)]
        made += [zk.create_async(f"/app/tree/{number % 19}/{number}", str(number).encode() * 20) for number in range(PLAIN)]
        for each in made:
            each.get()

    def test_a_tree_of_all_kinds_moves_through_kills_and_lost_servers(self):
        zk, there = self.clients()
        self.fill(zk)
        # The leader is killed, and its successor has the whole tree in a snapshot.
        lost = self.source.leader()
        self.source.kill(lost)
        wait_until("there is another leader", lambda: self.source.leader() is not None)
        leader = self.source.leader()
        follower = next(server for server in range(3) if server not in (lost, leader))
        wait_until("the follower follows", lambda: self.source.mode(follower) == "follower")
        kinds = ["--root", "/app", "--snapshot", str(self.source.snapshot(leader))]
        dead = f"127.0.0.1:{self.source.ports[lost]}"
        expected = self.tree(zk, "/app")
        self.assertEqual(len(expected), PLAIN + 19 + 17)

        # The import is killed half-way. The first of its servers is down.
        with Proxy(self.source.ports[leader], after=700_000) as proxy:
            process = subprocess.Popen(self.command(*kinds, servers=[dead, proxy.address]),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertTrue(proxy.stopped.wait(PATIENCE))
            wait_until("something has arrived", lambda: self.count("/app") > 0)
            process.kill()
            process.wait()
        copied = self.count("/app") + 1
        self.assertLess(copied, len(expected))

        # The second run loses the server from which it reads.
        self.source.start(lost)
        wait_until("the lost server is back", lambda: self.source.mode(lost) == "follower")
        others = [f"127.0.0.1:{self.source.ports[server]}" for server in (lost, leader)]
        with Proxy(self.source.ports[follower], after=800_000) as proxy:
            process = subprocess.Popen(self.command(*kinds, servers=[proxy.address, *others]),
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertTrue(proxy.stopped.wait(PATIENCE))
            self.source.kill(follower)
            proxy.go_on.set()
            output, errors = process.communicate(timeout=2 * PATIENCE)
        self.source.start(follower)
        self.assertEqual(process.returncode, 0, errors)
        counts = json.loads(output)
        self.assertEqual(counts["same"] + counts["created"], len(expected), counts)
        self.assertGreaterEqual(counts["same"], copied)
        self.assertGreater(counts["created"], 0)
        self.assertEqual((counts["ephemerals"], counts["differing"]), (1, 0))
        self.assertGreater(counts["reconnects"], 0)

        # The whole tree is there, for a client and for the program itself.
        there.sync("/")
        self.assertEqual(self.tree(there, "/app"), expected)
        counts, differences = self.run_import(*kinds, "--verify")
        self.assertEqual((counts["same"], differences), (len(expected), []))
        # The next sequential name continues the source's numbers.
        self.assertEqual(there.create("/app/queue/n-", b"", sequence=True), "/app/queue/n-0000000023")
        there.delete("/app/queue/n-0000000023")
        self.assertEqual(there.create("/app/members/m-", b"", sequence=True), "/app/members/m-0000000001")
        there.delete("/app/members/m-0000000001")

        # Both sides go on.
        zk.set("/app/empty", b"changed")
        zk.set_acls("/app/hers", [make_digest_acl("carol", "c", all=True)])
        zk.delete("/app/tree/0", recursive=True)
        zk.create("/app/tree/new", b"")
        changed = [("/app/empty", "data"), ("/app/hers", "acl"), ("/app/tree/0", "extra"), ("/app/tree/new", "missing")]
        self.assertEqual(self.run_import(*kinds, "--dry-run")[1], changed)
        self.assertEqual(self.run_import(*kinds, "--verify", expect=1)[1], changed)
        counts, differences = self.run_import(*kinds, expect=1)
        self.assertEqual((counts["created"], differences), (1, changed[:2]))
        counts, differences = self.run_import(*kinds, "--overwrite", "--delete")
        self.assertEqual((counts["overwritten"], counts["deleted"], differences), (2, 1, []))
        there.sync("/")
        self.assertEqual(self.tree(there, "/app"), self.tree(zk, "/app"))

    def test_times_to_live_go_on_and_ephemerals_do_not(self):
        zk, there = self.clients()
        zk.create("/brief", b"")
        self.make((TTL, create("/brief/ttl", b"", flags=5, ttl=1000)))
        zk.create("/brief/ephemeral", b"", ephemeral=True)
        self.source.kill(lost := self.source.leader())
        wait_until("there is another leader", lambda: self.source.leader() is not None)
        snapshot = str(self.source.snapshot(self.source.leader()))
        self.source.start(lost)
        counts, _ = self.run_import("--root", "/brief", "--to", "/moved/here", "--snapshot", snapshot)
        self.assertEqual((counts["created"], counts["ephemerals"]), (2, 1))
        self.assertIsNone(there.exists("/moved/here/ephemeral"))
        wait_until("its time to live is over", lambda: there.exists("/moved/here/ttl") is None)
        self.assertIsNotNone(zk.exists("/brief/ttl"), "the source keeps it")

    def test_what_cannot_be_read_is_an_error(self):
        zk, _ = self.clients()
        zk.create("/closed", b"", acl=[make_digest_acl("alice", "a", read=True)])
        command = self.command("--root", "/closed")
        command[command.index(ADMIN)] = "digest:alice:a"
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("hides a part of the access list of /closed (digest:alice:x)", done.stderr)
        command = self.command("--root", "/missing")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("the source has no znode /missing", done.stderr)
        done = subprocess.run(self.command("--verify", "--dry-run"), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
