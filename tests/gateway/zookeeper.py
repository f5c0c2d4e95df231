"""A raw client of ZooKeeper's protocol, and ZooKeeper servers: a standalone one, or an ensemble."""

import contextlib
import pathlib
import socket
import struct
import subprocess
import tempfile

from cluster import PATIENCE, free_ports, wait_until, word

JAR = pathlib.Path("/usr/share/java/zookeeper.jar")
SUPER = "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="  # super:admin

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SET_ACL, CHILDREN, SYNC = range(1, 10)
PING, CHILDREN2, CHECK, MULTI, CREATE2, RECONFIG, CHECK_WATCHES, REMOVE_WATCHES = range(11, 19)
CONTAINER, DELETE_CONTAINER, TTL, MULTI_READ = range(19, 23)
AUTH, SET_WATCHES, SASL, EPHEMERALS, COUNT, SET_WATCHES2, ADD_WATCH, WHO_AM_I = range(100, 108)
CREATE_SESSION, CLOSE = -10, -11
WRITES = {CREATE, CREATE2, CONTAINER, TTL, DELETE, SET, SET_ACL, MULTI, CLOSE}
CHILDREN_TYPE, DATA_TYPE, ANY_TYPE, PERSISTENT_TYPE, RECURSIVE_TYPE = range(1, 6)
OPEN = [(31, "world", "anyone")]


def i32(*numbers):
    return struct.pack(f">{len(numbers)}i", *numbers)


def i64(number):
    return struct.pack(">q", number)


def text(value):
    """A string or bytes; `None` is null."""
    if value is None:
        return i32(-1)
    value = value.encode() if isinstance(value, str) else value
    return i32(len(value)) + value


def texts(values):
    return i32(-1) if values is None else i32(len(values)) + b"".join(map(text, values))


def acl(entries):
    if entries is None:
        return i32(-1)
    return i32(len(entries)) + b"".join(i32(perms) + text(scheme) + text(who) for perms, scheme, who in entries)


def create(path, data=b"", access=OPEN, flags=0, ttl=None):
    return text(path) + text(data) + acl(access) + i32(flags) + (b"" if ttl is None else i64(ttl))


def read(path, watch=False):
    return text(path) + bytes([watch])


def versioned(path, version=-1):
    return text(path) + i32(version)


def set_data(path, data, version=-1):
    return text(path) + text(data) + i32(version)


def multi(*ops):
    parts = [i32(op) + b"\0" + i32(-1) + body for op, body in ops]
    return b"".join(parts) + i32(-1) + b"\1" + i32(-1)


def hello(timeout=40000, session=0, password=bytes(16), seen=0, read_only=b"\0"):
    return i32(0) + i64(seen) + i32(timeout) + i64(session) + text(password) + read_only


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count < 0 or self.at + count > len(self.data):
            raise ValueError("too short")
        self.at += count
        return self.data[self.at - count:self.at]

    def int(self):
        return struct.unpack(">i", self.take(4))[0]

    def long(self):
        return struct.unpack(">q", self.take(8))[0]

    def text(self):
        length = self.int()
        return None if length == -1 else self.take(length)

    def list(self, each):
        length = self.int()
        return None if length == -1 else [each() for _ in range(length)]

    def rest(self):
        return self.take(len(self.data) - self.at)


class Wire:
    """A connection: frames, and whether the server has closed it."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.closed = False

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def frame(self):
        """The next frame; `None` if the connection is closed."""
        header = self.exactly(4)
        return header and self.exactly(struct.unpack(">i", header)[0])

    def exactly(self, count):
        while len(self.buffer) < count:
            try:
                more = self.socket.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                more = b""
            if not more:
                self.closed = True
                return None
            self.buffer += more
        part, self.buffer = self.buffer[:count], self.buffer[count:]
        return part

    def close(self):
        self.closed = True
        self.socket.close()


@contextlib.contextmanager
def standalone():
    """Runs a standalone ZooKeeper server. Yields its port."""
    with tempfile.TemporaryDirectory(prefix="zookeeper-") as folder:
        [port] = free_ports(1)
        folder = pathlib.Path(folder)
        (folder / "zoo.cfg").write_text(
            f"tickTime=2000\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\nextendedTypesEnabled=true\n4lw.commands.whitelist=*\n")
        settings = {"forceSync": "no", "DigestAuthenticationProvider.superDigest": SUPER}
        options = [f"-Dzookeeper.{name}={value}" for name, value in settings.items()]
        # Containers are not deleted while a test runs.
        options += ["-Dznode.container.checkIntervalMs=86400000", "-Xmx256m"]
        command = ["java", *options, "-cp", str(JAR),
                   "org.apache.zookeeper.server.ZooKeeperServerMain", str(folder / "zoo.cfg")]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until("ZooKeeper serves", lambda: "Mode:" in word(port, "srvr") or process.poll() is not None)
            if process.poll() is not None:
                raise AssertionError((folder / "log").read_text())
            yield port
        finally:
            process.kill()
            process.wait()


class Ensemble:
    """An ensemble of ZooKeeper servers. A new leader writes a snapshot before it serves."""

    def __init__(self, servers=3):
        self.folder = tempfile.TemporaryDirectory(prefix="zookeeper-")
        ports = free_ports(3 * servers)
        self.ports = ports[:servers]
        self.processes = [None] * servers
        peers = zip(ports[servers:2 * servers], ports[2 * servers:])
        self.peers = "".join(f"server.{number}=127.0.0.1:{quorum}:{election}\n"
                             for number, (quorum, election) in enumerate(peers, 1))

    def __enter__(self):
        for server in range(len(self.ports)):
            self.start(server)
        for server in range(len(self.ports)):
            wait_until(f"server {server} serves", lambda: self.mode(server))
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()

    def start(self, server):
        folder = pathlib.Path(self.folder.name) / str(server)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data/myid").write_text(str(server + 1))
        (folder / "zoo.cfg").write_text(
            f"tickTime=500\ninitLimit=40\nsyncLimit=20\ndataDir={folder}/data\nclientPort={self.ports[server]}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nextendedTypesEnabled=true\n"
            f"maxClientCnxns=0\n4lw.commands.whitelist=*\n{self.peers}")
        options = ["-Dzookeeper.forceSync=no", f"-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER}",
                   "-Dznode.container.checkIntervalMs=86400000", "-Xmx256m"]
        with open(folder / "log", "ab") as log:
            self.processes[server] = subprocess.Popen(
                ["java", *options, "-cp", str(JAR), "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                 str(folder / "zoo.cfg")], stdout=log, stderr=log)

    def kill(self, server):
        self.processes[server].kill()
        self.processes[server].wait()

    def mode(self, server):
        """`leader` or `follower`; empty while it does not serve."""
        lines = word(self.ports[server], "srvr").splitlines()
        return next((line[6:] for line in lines if line.startswith("Mode: ")), "")

    def leader(self):
        return next((server for server in range(len(self.ports)) if self.mode(server) == "leader"), None)

    def snapshot(self, server):
        """The newest snapshot of a server."""
        files = pathlib.Path(self.folder.name).glob(f"{server}/data/version-2/snapshot.*")
        return max(files, key=lambda file: int(file.suffix[1:], 16))
