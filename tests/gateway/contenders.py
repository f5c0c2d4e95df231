"""The same recipes in three languages: an application that serves the gateway, Curator, and kazoo."""

import os
import pathlib
import subprocess
import tempfile
import threading

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock, ReadLock, WriteLock

from cluster import PATIENCE, ROOT, free_ports, wait_until
from java import CLASSPATH, JARS, Client, Program

APPLICATION = os.environ.get("APPLICATION", pathlib.Path(os.environ.get("QUORATE", ROOT / "target/debug/quorate")).parent
                             / "examples/shared_recipes")
CURATOR = [JARS + jar + ".jar" for jar in ("curator-recipes", "curator-framework", "curator-client", "guava")]


class SharedLock(Lock):
    """kazoo's lock with a name that Curator, the Go client and quorate count by default."""

    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


class Member(Client):
    """A member's process: the application and its gateway."""

    def __init__(self, *arguments):
        self.start([APPLICATION, *arguments])


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

    def start(self, place):
        data = f"{self.folder.name}/{place}"
        self.members[place] = Member(",".join(self.peers), self.peers[place], data, f"127.0.0.1:{self.ports[place]}")

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


def curator(folder, hosts):
    """A program with two clients of Curator, `java` and `java2`."""
    subprocess.run(["javac", "-cp", ":".join([*CLASSPATH, *CURATOR]), "-d", folder, "Contenders.java"], check=True)
    program = Client("Contenders", classpath=[folder, *CURATOR])
    for name in "java", "java2":
        assert program.run(f"{name} open {hosts}") == "done"
    return program


class Kazoo:
    language = "kazoo"

    def __init__(self, hosts, name="python"):
        self.name = name
        self.client = KazooClient(hosts, timeout=10, connection_retry=-1, command_retry=-1)
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
            "read": lambda: ReadLock(client, path, self.name, extra_lock_patterns=["__WRIT__"]),
            "write": lambda: WriteLock(client, path, self.name, extra_lock_patterns=["__WRIT__", "__READ__"]),
            "read-default": lambda: ReadLock(client, path, self.name),
            "write-default": lambda: WriteLock(client, path, self.name),
            "latch": lambda: client.Lock(path, self.name, extra_lock_patterns=["-latch-"]),
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
