"""What a gateway does at its limits, with processes: many files, and clients that do not read."""

import socket
import struct
import subprocess
import unittest

from kazoo.client import KazooClient

from cluster import PATIENCE, Cluster, wait_until, word


def limit_files(process, most):
    """Sets how many files a process may have open. Files that are open stay open."""
    subprocess.run(["prlimit", "--pid", str(process.pid), f"--nofile={most}:"], check=True)


def figure(port, name):
    lines = dict(line.split("\t", 1) for line in word(port, "mntr").splitlines() if "\t" in line)
    return int(lines.get("zk_" + name, -1))


class Limits(unittest.TestCase):
    def test_a_process_without_files_says_so_and_goes_on(self):
        with Cluster(1) as cluster:
            port = cluster.ports[0]
            zk = KazooClient(cluster.hosts, timeout=10)
            zk.start(timeout=PATIENCE)
            zk.create("/a", b"1")
            open_files = figure(port, "open_file_descriptor_count")
            limit_files(cluster.processes[0], open_files)
            # These connections wait in the queue of the socket.
            waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            wait_until("it is said", lambda: "too many files open: raise that limit" in cluster.log(0))
            for number in range(50):
                zk.set("/a", b"%d" % number)
            limit_files(cluster.processes[0], 1024)
            for each in waiting:
                each.settimeout(PATIENCE)
                each.sendall(b"ruok")
                self.assertEqual(each.recv(16), b"imok")
                each.close()
            self.assertLess(cluster.log(0).count("too many files open"), 20)
            zk.stop()
            zk.close()

    def test_some_files_are_left_to_the_member(self):
        with Cluster(1, ["--max-client-cnxns", "0"]) as cluster:
            port = cluster.ports[0]
            cluster.kill(0)
            limited = ["prlimit", "--nofile=160:160"]
            cluster.start(0, limited)
            wait_until("the member serves", lambda: cluster.leader() == 0)
            self.assertIn("the gateway takes at most 80 clients", cluster.log(0))
            clients = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(100)]
            # Those that there is no room for are disconnected at once, but for eight, which may send a word.
            refused = [client for client in clients[88:] if client.recv(1) == b""]
            self.assertEqual(len(refused), 12)
            self.assertIn("files open, and may have only 160", cluster.log(0))
            for client in clients:
                client.close()
            wait_until("there is room again", lambda: word(port, "ruok") == "imok")
            wait_until("it is counted", lambda: figure(port, "connections_ended_too_many_files") >= 12)

    def test_clients_that_do_not_read_are_bounded_together(self):
        with Cluster(1, ["--max-buffer-bytes", str(4 << 20)]) as cluster:
            port = cluster.ports[0]
            zk = KazooClient(cluster.hosts, timeout=10)
            zk.start(timeout=PATIENCE)
            watchers = []
            for _ in range(20):
                watcher = socket.socket()
                watcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                watcher.settimeout(PATIENCE)
                watcher.connect(("127.0.0.1", port))
                watchers.append(watcher)
                hello = struct.pack(">iqiqi16s?", 0, 0, 30_000, 0, 16, bytes(16), False)
                watcher.sendall(struct.pack(">i", len(hello)) + hello)
                self.assertGreater(len(watcher.recv(1024)), 16)
                add = struct.pack(">iii1si", 1, 106, 1, b"/", 1)
                watcher.sendall(struct.pack(">i", len(add)) + add)
                self.assertGreater(len(watcher.recv(1024)), 16)
            number = 0
            while figure(port, "connections_ended_memory") == 0:
                transaction = zk.transaction()
                for _ in range(200):
                    transaction.create(f"/{'n' * 1_000}{number}", b"")
                    number += 1
                transaction.commit()
                self.assertLess(figure(port, "buffered_bytes"), 8 << 20)
                self.assertLess(number, 60_000)
            self.assertIn("the most of all clients", cluster.log(0))
            for watcher in watchers:
                watcher.close()
            wait_until("nothing is kept", lambda: figure(port, "buffered_bytes") < 1_000)
            zk.stop()
            zk.close()


if __name__ == "__main__":
    unittest.main()
