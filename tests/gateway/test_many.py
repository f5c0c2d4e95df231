"""Five thousand clients at once, each with a watch on the same znode."""

import resource
import selectors
import socket
import struct
import unittest

from cluster import PATIENCE, Cluster, word

CLIENTS = 5000


def frame(body):
    return struct.pack(">i", len(body)) + body


def text(value):
    return struct.pack(">i", len(value)) + value


HELLO = frame(struct.pack(">iqiq", 0, 0, 30000, 0) + text(bytes(16)) + b"\0")
READ = frame(struct.pack(">ii", 1, 4) + text(b"/") + b"\1")
SET = frame(struct.pack(">ii", 2, 5) + text(b"/") + text(b"new") + struct.pack(">i", -1))
EVENT = struct.pack(">i", -1)


class Many(unittest.TestCase):
    def read(self, connections):
        """Reads one frame from each connection, as they come."""
        waiting = selectors.DefaultSelector()
        for connection in connections:
            waiting.register(connection, selectors.EVENT_READ, bytearray())
        frames = []
        while len(frames) < len(connections):
            ready = waiting.select(PATIENCE)
            self.assertTrue(ready, f"{len(frames)} of {len(connections)} have an answer")
            for key, _ in ready:
                # Reads one frame and no more: later bytes stay in the socket.
                had = key.data
                wanted = 4 if len(had) < 4 else 4 + struct.unpack(">i", had[:4])[0]
                part = key.fileobj.recv(wanted - len(had))
                self.assertTrue(part, "the connection is closed")
                had += part
                if len(had) >= 4 and len(had) == 4 + struct.unpack(">i", had[:4])[0]:
                    frames.append(bytes(had[4:]))
                    waiting.unregister(key.fileobj)
        return frames

    def test_all_are_served(self):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = CLIENTS + 100
        if most != resource.RLIM_INFINITY and most < wanted:
            self.skipTest(f"a process may open {most} files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, 8192), most))
        with Cluster(options=["--max-client-cnxns", "0"]) as cluster:
            connections = []
            try:
                for place in range(CLIENTS):
                    port = cluster.ports[place % len(cluster.ports)]
                    connections.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
                    connections[-1].sendall(HELLO + READ)
                sessions = {answer[8:16] for answer in self.read(connections)}
                self.assertEqual(len(sessions), CLIENTS)
                for answer in self.read(connections):
                    self.assertEqual(answer[12:16], bytes(4))
                connections[0].sendall(SET)
                # The writer gets its event before its reply.
                events = self.read(connections)
                self.assertTrue(all(event.startswith(EVENT) for event in events))
                reply = self.read(connections[:1])[0]
                self.assertEqual((reply[:4], reply[12:16]), (struct.pack(">i", 2), bytes(4)))
                served = [line for line in word(cluster.ports[0], "srvr").splitlines()
                          if line.startswith("Connections:")]
                self.assertGreater(int(served[0].split()[1]), CLIENTS // 3)
            finally:
                for connection in connections:
                    connection.close()


if __name__ == "__main__":
    unittest.main()
