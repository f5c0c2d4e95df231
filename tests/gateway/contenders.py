"""The same recipes in three languages: an application that serves the gateway, Curator, and kazoo."""

import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

from cluster import PATIENCE, ROOT, free_ports, wait_until
from java import CLASSPATH, JARS, Client, Program

APPLICATION = os.environ.get("APPLICATION", pathlib.Path(os.environ.get("QUORATE", ROOT / "target/debug/quorate")).parent
                             / "examples/shared_recipes")
CURATOR = [JARS + jar + ".jar" for jar in (
    "curator-x-discovery", "curator-recipes", "curator-framework", "curator-client", "guava",
    "jackson-annotations", "jackson-core", "jackson-databind")]


class Proxy:
    """Passes connections on to a port, and cuts them."""

    def __init__(self, port):
        self.target, self.connections = port, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            self.connections.append((client, server))
            for one, other in (client, server), (server, client):
                threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    def pass_on(self, one, other):
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        self.close(one, other)

    @staticmethod
    def close(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def cut(self):
        while self.connections:
            self.close(*self.connections.pop())

    def end(self):
        self.close(self.listener)
        self.cut()


class SharedLock(Lock):
    """kazoo's lock with a name that Curator, the Go client and quorate count by default."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class SharedReadLock(ReadLock):
    _NODE_NAME = "__READ__"
    _EXCLUDE_NAMES = ["__WRIT__"]


class SharedWriteLock(WriteLock):
    _NODE_NAME = "__WRIT__"
    _EXCLUDE_NAMES = ["__WRIT__", "__READ__"]


class SharedLatch(Lock):
    _NODE_NAME = "-latch-"
    _EXCLUDE_NAMES = ["-latch-"]


class Native(Client):
    """A program that is driven by lines and needs no Java: the application, or Go's client."""

    def __init__(self, *command):
        self.start(command)


class Application:
    """Three instances of an application, each with a gateway."""

    language = "rust"

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quorate-shared-")
        ports = free_ports(6)
        self.peers = [f"127.0.0.1:{port}" for port in ports[:3]]
        self.ports = ports[3:]
        self.members = [None] * 3

    def __enter__(self):
        for place in range(3):
            self.start(place)
        for member in self.members:
            member.wait_for("* ready")
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.end()
        self.folder.cleanup()

    def kill(self, place):
        """Kills a member with everything that its application holds."""
        self.members[place].end()

    def start(self, place):
        data = f"{self.folder.name}/{place}"
        self.members[place] = Native(APPLICATION, ",".join(self.peers), self.peers[place], data, f"127.0.0.1:{self.ports[place]}")

    @property
    def hosts(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)


class Lines:
    """A name in a program that is driven by lines."""

    def __init__(self, program, name, language):
        self.program, self.name, self.language = program, name, language

    def begin(self, kind, path):
        """Starts to acquire."""
        assert self.program.run(f"{self.name} {kind} {path}") == "done"

    def wait_held(self):
        self.program.wait_for(f"* {self.name} holds")

    def attempt(self, kind, path):
        """Whether it was free."""
        answer = self.program.run(f"{self.name} try-{kind} {path}")
        return {"true": True, "false": False}.get(answer, answer)

    def release(self):
        assert self.program.run(f"{self.name} release") == "done"
        self.program.wait_for(f"* {self.name} has released")


def curator(folder, hosts, *names):
    """A program with a client of Curator for each name."""
    subprocess.run(["javac", "-cp", ":".join([*CLASSPATH, *CURATOR]), "-d", folder, "Contenders.java"], check=True)
    program = Client("Contenders", classpath=[str(folder), *CURATOR])
    for name in names:
        assert program.run(f"{name} open {hosts}") == "done"
    return program


def go(folder, hosts):
    """A program with Go's client."""
    packages = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": f"{folder}/cache", "GOFLAGS": ""}
    program = f"{folder}/go-client"
    subprocess.run(["go", "build", "-o", program, "main.go"], cwd="go-client", env=os.environ | packages, check=True)
    return Native(program, hosts)


class Kazoo:
    language = "kazoo"

    def __init__(self, hosts, name="python"):
        self.name = name
        self.client = KazooClient(hosts, timeout=5, connection_retry=-1, command_retry=-1)
        self.client.start(timeout=PATIENCE)

    def end(self):
        self.client.stop()
        self.client.close()

    def recipe(self, kind, path):
        """A kind is a recipe, and the setting that lets kazoo count the others."""
        client = self.client
        return {
            "lock": lambda: client.Lock(path, self.name, extra_lock_patterns=["-lock-"]),
            "lock-default": lambda: client.Lock(path, self.name),
            "lock-shared": lambda: SharedLock(client, path, self.name),
            "read-shared": lambda: SharedReadLock(client, path, self.name),
            "write-shared": lambda: SharedWriteLock(client, path, self.name),
            "latch-shared": lambda: SharedLatch(client, path, self.name),
            "elected": lambda: SharedLatch(client, path, self.name),
            "handed": lambda: SharedLatch(client, path, self.name),
            "read": lambda: ReadLock(client, path, self.name, extra_lock_patterns=["__WRIT__"]),
            "write": lambda: WriteLock(client, path, self.name, extra_lock_patterns=["__WRIT__", "__READ__"]),
            "read-default": lambda: ReadLock(client, path, self.name),
            "write-default": lambda: WriteLock(client, path, self.name),
            "latch": lambda: client.Lock(path, self.name, extra_lock_patterns=["-latch-"]),
            "semaphore-default": lambda: client.Semaphore(path, self.name, max_leases=2),
            "election-default": lambda: client.Election(path, self.name).lock,
        }[kind]()

    def begin(self, kind, path):
        self.lock, self.held = self.recipe(kind, path), threading.Event()

        def acquire():
            self.lock.acquire()
            self.held.set()

        threading.Thread(target=acquire, daemon=True).start()

    def wait_held(self):
        assert self.held.wait(PATIENCE), f"{self.name} does not hold"

    def attempt(self, kind, path):
        lock = self.recipe(kind, path)
        if held := lock.acquire(blocking=False):
            lock.release()
        return held

    def release(self):
        self.lock.release()

    def token(self, path, lock):
        """The token of the leader; None if it was passed, or does not lead any more."""
        own, election = (self.client.retry(self.client.exists, of) for of in (f"{path}/{lock.node}", path))
        return own.czxid if own and own.czxid > election.mzxid else None

    def contend(self, kind, path, folder, end):
        """Acquires and releases again and again, and returns how often. What is held is written into a folder."""
        turns = 0
        while not end.wait(0.001):
            lock = self.recipe(kind, path)
            try:
                lock.acquire()
            except KazooException:
                # Its session has ended.
                continue
            # The name of the file, what it is not to be beside, and how many of these there may be.
            file, others, most = {
                "read": (f"reader-{self.name}", "holder", 0),
                "semaphore": (f"permit-{self.name}", "permit", 2),
            }.get(kind.split("-")[0], ("holder", "reader", 0))
            file = folder / file
            # A link that names its holder: made in one step, whenever somebody is killed.
            file.symlink_to(self.name)
            beside = [other.name for other in folder.iterdir() if other.name.startswith(others)]
            if len(beside) > most:
                raise AssertionError(f"{self.name} holds beside {beside}")
            if file.name == "holder":
                place = self.token(path, lock) if kind in ("elected", "handed") else f"{path}/{lock.node}"
                with open(folder / "order", "a") as order:
                    order.write(f"{self.name} {place}\n")
            time.sleep(0.003)
            file.unlink()
            turns += 1
            lock.release()
        return turns
