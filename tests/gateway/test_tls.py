"""Clients over TLS, with certificates for them and for the members."""

import pathlib
import socket
import ssl
import struct
import tempfile
import unittest

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

import zookeeper
from certificates import Authority
from cluster import PATIENCE, Cluster, free_ports, wait_until
from zookeeper import Wire, create, hello, i32, read, versioned


class WaitingWire(Wire):
    """Reads as ZooKeeper's C client does: it waits for the socket, reads a frame, and waits for the socket again. So it
    waits in vain for what OpenSSL has decrypted already. (Debian's C client has no TLS.)"""

    def __init__(self, port, context):
        super().__init__(port)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def frame(self):
        assert self.socket.pending() == 0, "a frame is in memory while its reader waits for the socket"
        return super().frame()

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the connection is closed"
            data += more
        return data


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="quorate-tls-"))
        cls.authority = Authority(pathlib.Path(folder) / "clients")
        cls.members = Authority(pathlib.Path(folder) / "members")
        cls.certificate, cls.key = cls.authority.issue("server")
        member, member_key = cls.members.issue("member")
        cls.settings = pathlib.Path(folder) / "settings"
        cls.settings.write_text(f"""# The settings of all members.
members-tls-authority = {cls.members.certificate}
members-tls-certificate = {member}
members-tls-key = {member_key}
zookeeper-tls-certificate = {cls.certificate}
zookeeper-tls-key = {cls.key}
zookeeper-tls-authority = {cls.authority.certificate}
ssl.clientAuth = need
X509AuthenticationProvider.superUser = CN=root,O=Example\\, Inc.
maxSessionTimeout = 90000
4lw.commands.whitelist = *
""")
        ports = free_ports(3)
        cls.port = ports[0]
        options = [["--config", str(cls.settings), "--zookeeper-tls", f"127.0.0.1:{port}"] for port in ports]
        cls.cluster = cls.enterClassContext(Cluster(options_of=options))

    def client(self, name, **options):
        certificate, key = self.authority.issue(name)
        zk = KazooClient(f"127.0.0.1:{self.port}", use_ssl=True, ca=str(self.authority.certificate),
                         certfile=certificate, keyfile=key, **options)
        self.addCleanup(zk.close)
        self.addCleanup(zk.stop)
        zk.start(PATIENCE)
        return zk

    def test_a_certificate_is_an_id(self):
        billing, shipping, root = (self.client(name) for name in ("billing", "shipping", "root"))
        own = make_acl("x509", "CN=billing,O=Example\\, Inc.", all=True)
        billing.create("/bills", b"12", acl=[own])
        self.assertEqual(billing.get("/bills")[0], b"12")
        self.assertEqual(billing.get_acls("/bills")[0], [own])
        with self.assertRaises(NoAuthError):
            shipping.get("/bills")
        root.set("/bills", b"13")
        self.assertEqual(billing.get("/bills")[0], b"13")
        # `auth` stands for the certificate's id.
        shipping.create("/shipped", b"", acl=[make_acl("auth", "", all=True)])
        with self.assertRaises(NoAuthError):
            billing.get("/shipped")

    def test_large_data_and_watches(self):
        zk = self.client("large")
        events = []
        zk.create("/large", b"")
        zk.DataWatch("/large", lambda data, stat: events.append(data))
        data = bytes(range(256)) * 3000
        zk.set("/large", data)
        self.assertEqual(zk.get("/large")[0], data)
        zk.set("/large", b"end")
        wait_until("the watch has shown the last data", lambda: events[-1:] == [b"end"])

    def test_a_client_that_waits_for_the_socket_misses_no_frame(self):
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(*self.authority.issue("waiting"))
        wire = WaitingWire(self.port, context)
        self.addCleanup(wire.close)
        requests = [hello()]
        for number in range(20):
            path = f"/waiting-{number}"
            # The event comes together with the reply to the deletion.
            for op, body in ((zookeeper.CREATE, create(path, bytes(100_000 * (number % 2)))), (zookeeper.GET, read(path, True)),
                             (zookeeper.DELETE, versioned(path)), (zookeeper.GET, read("/"))):
                requests.append(i32(len(requests), op) + body)
        # All of them at once, so that replies are written together.
        wire.send(b"".join(map(zookeeper.text, requests)))
        wire.frame()
        xids = [struct.unpack(">i", wire.frame()[:4])[0] for _ in range(20 * 5)]
        self.assertEqual([xid for xid in xids if xid != -1], list(range(1, len(requests))))
        self.assertEqual(xids.count(-1), 20)

    def test_kazoo_waits_for_no_frame_that_it_has(self):
        zk = self.client("pipelining", timeout=80)
        select, in_vain = zk.handler.select, []

        def waiting(reads, *others):
            in_vain.extend(each.pending() for each in reads if isinstance(each, ssl.SSLSocket) and each.pending())
            return select(reads, *others)

        zk.handler.select = waiting
        events = []
        for number in range(50):
            zk.create(f"/pipelined-{number}", b"")
            zk.get(f"/pipelined-{number}", watch=events.append)
        for deleted in [zk.delete_async(f"/pipelined-{number}") for number in range(50)]:
            deleted.get(PATIENCE)
        wait_until("all events have come", lambda: len(events) == 50)
        self.assertEqual(in_vain, [])

    def test_a_session_may_last_longer(self):
        zk = self.client("lasting", timeout=80)
        self.assertEqual(zk._session_timeout, 80_000)

    def test_strangers_are_refused(self):
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        for stranger in (None, self.members.issue("stranger")):
            if stranger:
                context.load_cert_chain(*stranger)
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as plain:
                    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                        connection.sendall(b"ruok")
                        if not connection.recv(4):
                            raise ConnectionError("it is closed")
        context.load_cert_chain(*self.authority.issue("monitor"))
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                connection.sendall(b"ruok")
                self.assertEqual(connection.recv(100), b"imok")
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as plain:
            plain.sendall(b"ruok\n")
            self.assertNotIn(b"imok", plain.recv(100))


if __name__ == "__main__":
    unittest.main()
