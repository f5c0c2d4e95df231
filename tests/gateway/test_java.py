"""ZooKeeper's Java client against three members as processes, one of which is killed."""

import pathlib
import subprocess
import tempfile
import unittest

from certificates import Authority
from cluster import Cluster, free_ports, wait_until
from java import CLASSPATH, NETTY, Client


class Java(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(options=["--container-check-interval", "500"]))
        cls.classes = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="quorate-gateway-"))
        subprocess.run(["javac", "-cp", ":".join(CLASSPATH), "-d", cls.classes, "Client.java"], check=True)

    def setUp(self):
        self.java = Client("Client", classpath=[self.classes])
        self.addCleanup(self.java.end)

    def open(self, name, hosts=None):
        self.assertEqual(self.java.run(f"{name} open {hosts or self.cluster.hosts} 30000"), "opened")
        self.java.wait_for(f"~ {name} SyncConnected")

    def expect(self, command, answer):
        self.assertEqual(self.java.run(command), answer, command)

    def host(self, member):
        return f"127.0.0.1:{self.cluster.ports[member]}"

    def test_multi(self):
        self.open("a")
        self.expect("a multi create:/m:1 set:/m:2 check:/m:1 create:/m/x:- delete:/m/x",
                  "[created /m, set 1, CheckResult, created /m/x, DeleteResult]")
        self.expect("a multi create:/m/y:- check:/m:7 create:/m/z:-",
                  "BADVERSION [OK, BADVERSION, RUNTIMEINCONSISTENCY]")
        self.expect("a multi create:/m/y:- create:/m/y:- delete:/m",
                  "NODEEXISTS [OK, NODEEXISTS, RUNTIMEINCONSISTENCY]")
        self.expect("a exists /m/y", "false")

    def test_containers(self):
        self.open("a")
        self.expect("a create /c - CONTAINER", "/c 0 false")
        self.expect("a create /c/x - PERSISTENT", "/c/x 0 false")
        self.expect("a delete /c/x", "done")
        wait_until("the empty container is gone", lambda: self.java.run("a exists /c") == "false")

    def test_access_lists(self):
        self.open("a")
        self.open("b")
        self.expect("a auth alice:secret", "done")
        self.expect("a create /mine s PERSISTENT acl", "/mine 0 false")
        self.expect("b get /mine", "NOAUTH")
        self.expect("b auth alice:secret", "done")
        self.expect("b get /mine", "s")

    def test_watches(self):
        for name in "abc":
            self.open(name)
        self.expect("a create /w 1 PERSISTENT", "/w 0 false")
        self.expect("a data /w", "1")
        self.expect("a children /w", "[]")
        self.expect("a exists /w/x", "false")
        self.expect("a persistent /w", "done")
        # A client of its own, since in this version a client passes events of its other watches to recursive
        # ones.
        self.expect("c recursive /w", "done")
        self.expect("b create /w/x - PERSISTENT", "/w/x 0 false")
        self.expect("b set /w 2", "1")
        self.expect("b set /w/x 3", "1")
        self.expect("b delete /w/x", "done")
        self.java.wait_for(
            "! a children NodeChildrenChanged /w", "! a exists NodeCreated /w/x", "! a data NodeDataChanged /w",
            "! a persistent NodeChildrenChanged /w", "! a persistent NodeDataChanged /w",
            "! a persistent NodeChildrenChanged /w",
            "! c recursive NodeCreated /w/x", "! c recursive NodeDataChanged /w",
            "! c recursive NodeDataChanged /w/x", "! c recursive NodeDeleted /w/x")
        for name in "ac":
            self.expect(f"{name} get /w", "2")
        self.assertEqual([line for line in self.java.printed if line.startswith("!")], [])

    def test_locks(self):
        for name in "abc":
            self.open(name)
        self.expect("a create /locks - PERSISTENT", "/locks 0 false")
        nodes = [f"/locks/lock-{number:010}" for number in range(3)]
        for name, node in zip("abc", nodes):
            self.expect(f"{name} lock /locks", "done")
            self.java.wait_for(f"* {name} waits {node}")
        self.java.wait_for(f"* a holds {nodes[0]}")
        self.expect(f"a delete {nodes[0]}", "done")
        self.java.wait_for(f"* b holds {nodes[1]}")
        # A session that ends gives up its lock.
        self.expect("b close", "closed")
        self.java.wait_for(f"* c holds {nodes[2]}")

    def prepare(self, root):
        """The client a sets a watch of each kind, and acquires a lock."""
        self.expect(f"a create {root} - PERSISTENT", f"{root} 0 false")
        for name in ("data", "children", "persistent", "recursive", "quiet", "gone", "lock"):
            self.expect(f"a create {root}/{name} 0 PERSISTENT", f"{root}/{name} 0 false")
        self.expect(f"a data {root}/data", "0")
        self.expect(f"a data {root}/gone", "0")
        self.expect(f"a data {root}/quiet", "0")
        self.expect(f"a children {root}/children", "[]")
        self.expect(f"a exists {root}/new", "false")
        self.expect(f"a persistent {root}/persistent", "done")
        self.expect(f"a recursive {root}/recursive", "done")
        self.expect(f"a lock {root}/lock", "done")
        self.java.wait_for(f"* a holds {root}/lock/lock-0000000000")

    def change(self, root):
        """The client b changes every watched znode."""
        for number in range(1, 3):
            self.expect(f"b set {root}/data {number}", f"{number}")
        self.expect(f"b delete {root}/gone", "done")
        self.expect(f"b create {root}/children/x - PERSISTENT", f"{root}/children/x 0 false")
        self.expect(f"b create {root}/new - PERSISTENT", f"{root}/new 0 false")
        for number in range(1, 4):
            self.expect(f"b set {root}/persistent {number}", f"{number}")
        self.expect(f"b create {root}/persistent/x - PERSISTENT", f"{root}/persistent/x 0 false")
        self.expect(f"b create {root}/recursive/x - PERSISTENT", f"{root}/recursive/x 0 false")
        self.expect(f"b set {root}/recursive/x 1", "1")
        self.expect(f"b delete {root}/recursive/x", "done")

    def check_events(self, root):
        """The client a receives each change once."""
        self.java.wait_for(f"! a data NodeDataChanged {root}/data", f"! a data NodeDeleted {root}/gone",
                           f"! a children NodeChildrenChanged {root}/children", f"! a exists NodeCreated {root}/new",
                           *[f"! a persistent NodeDataChanged {root}/persistent"] * 3,
                           f"! a persistent NodeChildrenChanged {root}/persistent",
                           f"! a recursive NodeCreated {root}/recursive/x",
                           f"! a recursive NodeDataChanged {root}/recursive/x",
                           f"! a recursive NodeDeleted {root}/recursive/x")
        recursive = [line.split()[3] for line in self.java.all if line.startswith("! a recursive ") and root in line]
        self.assertEqual(recursive, ["NodeCreated", "NodeDataChanged", "NodeDeleted"])
        # All watches go on. The watch whose znode has not changed is still set.
        for name in ("quiet", "persistent", "recursive"):
            self.java.run(f"b set {root}/{name} again")
        self.java.wait_for(f"! a data NodeDataChanged {root}/quiet",
                           f"! a persistent NodeDataChanged {root}/persistent",
                           f"! a recursive NodeDataChanged {root}/recursive")
        self.assertEqual([line for line in self.java.printed if line.startswith("!")], [])

    def check_lock(self, root, session):
        self.expect("a session", session)
        self.expect(f"b owner {root}/lock/lock-0000000000", session)
        self.expect("b lock " + root + "/lock", "done")
        self.java.wait_for(f"* b waits {root}/lock/lock-0000000001")
        self.expect(f"a delete {root}/lock/lock-0000000000", "done")
        self.java.wait_for(f"* b holds {root}/lock/lock-0000000001")

    def test_the_only_member_that_a_client_knows_is_killed(self):
        self.open("a", self.host(0))
        self.open("b", f"{self.host(1)},{self.host(2)}")
        session = self.java.run("a session")
        self.prepare("/only")
        self.cluster.kill(0)
        try:
            self.java.wait_for("~ a Disconnected")
            self.change("/only")
        finally:
            self.cluster.start(0)
        self.java.wait_for("~ a SyncConnected")
        self.check_events("/only")
        self.check_lock("/only", session)

    def test_a_client_goes_on_at_another_member(self):
        self.open("a")
        session, port = self.java.run("a session"), int(self.java.run("a port"))
        killed = self.cluster.ports.index(port)
        self.open("b", ",".join(self.host(member) for member in range(3) if member != killed))
        self.prepare("/moved")
        self.cluster.kill(killed)
        try:
            # Some changes come before the client is back, and some after: it receives all of them.
            self.java.wait_for("~ a Disconnected")
            self.change("/moved")
            self.java.wait_for("~ a SyncConnected")
            self.assertNotEqual(int(self.java.run("a port")), port)
            self.check_events("/moved")
            self.check_lock("/moved", session)
        finally:
            self.cluster.start(killed)


# The protocols and the subjects with which clients connect.
SUBJECTS = [
    ("TLSv1.3", "/O=Example, Inc./CN=new"),
    ("TLSv1.2", "/C=DE/ST=Land Berlin/L=Berlin/street=Weg 1/O=Example+OU=a/OU=b/CN=old"),
    ("TLSv1.3", "/DC=org/DC=example/UID=u1/CN= #\"quoted\" <x>;\\\\=\\+y "),
    ("TLSv1.3", "/serialNumber=7/title=t/emailAddress=a@example.org/CN=M\u00fcller \U0001f511"),
]


class JavaOverTls(unittest.TestCase):
    def test_certificates(self):
        with tempfile.TemporaryDirectory(prefix="quorate-tls-") as folder:
            subprocess.run(["javac", "-cp", ":".join(CLASSPATH), "-d", folder, "Client.java"], check=True)
            authority = Authority(f"{folder}/authority")
            certificate, key = authority.issue("server")
            port, = free_ports(1)
            settings = ["--zookeeper-tls", f"127.0.0.1:{port}", "--zookeeper-tls-certificate", certificate,
                        "--zookeeper-tls-key", key, "--zookeeper-tls-authority", str(authority.certificate)]
            with Cluster(members=1, options=settings):
                for number, (version, subject) in enumerate(SUBJECTS):
                    files = authority.issue(f"client{number}", subject)
                    self.serve(folder, authority, port, version, files, f"/made{number}")

    def serve(self, folder, authority, port, version, files, path):
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:
            for file in files:
                both.write(pathlib.Path(file).read_text())
            both.flush()
            java = Client("Client", classpath=[folder, *NETTY], options=[
                "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty",
                "-Dzookeeper.client.secure=true", f"-Dzookeeper.ssl.protocol={version}",
                f"-Dzookeeper.ssl.keyStore.location={both.name}",
                f"-Dzookeeper.ssl.trustStore.location={authority.certificate}"])
            try:
                self.assertEqual(java.run(f"a open 127.0.0.1:{port} 30000"), "opened")
                java.wait_for("~ a SyncConnected")
                # As Java writes it, and therefore ZooKeeper's X509AuthenticationProvider.
                subject = java.run(f"a subject {files[0]}")
                self.assertIn("=", subject)
                self.assertEqual(java.run("a who"), f"[ip:127.0.0.1, x509:{subject}]")
                self.assertEqual(java.run(f"a create {path} x PERSISTENT acl"), f"{path} 0 false")
                self.assertEqual(java.run(f"a get {path}"), "x")
            finally:
                java.end()


class JavaReadOnly(unittest.TestCase):
    def test_reads_without_a_majority(self):
        with tempfile.TemporaryDirectory(prefix="quorate-gateway-") as folder:
            subprocess.run(["javac", "-cp", ":".join(CLASSPATH), "-d", folder, "Client.java"], check=True)
            java = Client("Client", classpath=[folder])
            self.addCleanup(java.end)
            with Cluster(options=["--read-only-mode"]) as cluster:
                java.run(f"a open 127.0.0.1:{cluster.ports[0]} 30000 read-only")
                java.wait_for("~ a SyncConnected")
                self.assertEqual(java.run("a create /a 1 PERSISTENT"), "/a 0 false")
                self.assertEqual(java.run("a data /a"), "1")
                session = java.run("a session")
                for member in (1, 2):
                    cluster.kill(member)
                java.wait_for("~ a ConnectedReadOnly")
                self.assertEqual(java.run("a get /a"), "1")
                self.assertEqual(java.run("a set /a 2"), "NOTREADONLY")
                # A client that never had an ordinary connection has no session to keep.
                java.run(f"b open 127.0.0.1:{cluster.ports[0]} 30000 read-only")
                java.wait_for("~ b ConnectedReadOnly")
                self.assertEqual(java.run("b session"), "0")
                self.assertEqual(java.run("b exists /a"), "true")
                for member in (1, 2):
                    cluster.start(member)
                java.wait_for("~ a SyncConnected", "~ b SyncConnected")
                self.assertEqual(java.run("a session"), session)
                self.assertNotEqual(java.run("b session"), "0")
                self.assertNotIn("~ a Expired", java.all)
                self.assertEqual(java.run("b set /a 2"), "1")
                java.wait_for("! a data NodeDataChanged /a", "! b exists NodeDataChanged /a")


if __name__ == "__main__":
    unittest.main()
