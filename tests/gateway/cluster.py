"""Three members as processes, each with a port for ZooKeeper's clients."""

import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("QUORATE", ROOT / "target/debug/quorate")
PATIENCE = 60


def free_ports(count):
    """Ports that were free at one moment, all at once, and that the system gives to nobody by itself."""
    sockets = []
    while len(sockets) < count:
        each = socket.socket()
        try:
            each.bind(("127.0.0.1", random.randrange(10_000, 32_000)))
            sockets.append(each)
        except OSError:
            each.close()
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def word(port, text):
    """The answer to a four-letter word; empty if there is none."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(text.encode())
            parts = iter(lambda: connection.recv(65536), b"")
            return b"".join(parts).decode()
    except OSError:
        return ""


def wait_until(what, condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.02)


class Cluster:
    def __init__(self, members=3, options=(), options_of=None):
        """Takes the options of all members, or a list with the options of each."""
        self.options = options_of or [options] * members
        self.folder = tempfile.TemporaryDirectory(prefix="quorate-gateway-")
        ports = free_ports(2 * members)
        self.peers = [f"127.0.0.1:{port}" for port in ports[:members]]
        self.ports = ports[members:]
        self.processes = [None] * members

    def __enter__(self):
        try:
            for member in range(len(self.peers)):
                self.start(member)
            # A member that has waited alone for a tick refuses clients until it knows the leader.
            serving = ("leader", "follower", "observer")
            wait_until("all serve", lambda: all(self.mode(member) in serving for member in range(len(self.peers))))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process and process.poll() is None:
                process.kill()
                process.wait()
        self.folder.cleanup()

    @property
    def hosts(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self, member, before=()):
        """Starts a member, by the command `before` if there is one."""
        log = open(pathlib.Path(self.folder.name) / f"log{member}", "ab")
        command = [*before, PROGRAM, "serve", "--peers", ",".join(self.peers), "--listen", self.peers[member],
                   "--data-dir", f"{self.folder.name}/{member}",
                   "--zookeeper", f"127.0.0.1:{self.ports[member]}", *self.options[member]]
        self.processes[member] = subprocess.Popen(command, stderr=log, stdout=log)
        log.close()
        wait_until(f"member {member} listens", lambda: word(self.ports[member], "ruok") == "imok")

    def kill(self, member, how=signal.SIGKILL):
        self.processes[member].send_signal(how)
        self.processes[member].wait(PATIENCE)

    def mode(self, member):
        answer = word(self.ports[member], "srvr")
        return next((line[6:] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def leader(self):
        return next((of for of in range(len(self.peers)) if self.mode(of) == "leader"), None)

    def log(self, member):
        return (pathlib.Path(self.folder.name) / f"log{member}").read_text()
