"""kazoo over TLS, with certificates for the clients and for the members."""

import pathlib
import socket
import ssl
import tempfile
import unittest

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import make_acl

from certificates import Authority
from cluster import PATIENCE, Cluster, free_ports, wait_until


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
