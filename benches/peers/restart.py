#!/usr/bin/env python3
"""How long quorate, ZooKeeper and etcd take from a restart to the first read: see README.md.

One server of each, filled with many znodes, is killed or ended and started again. quorate and ZooKeeper are asked by
the same client, in ZooKeeper's protocol; etcd by its HTTP gateway, for a read that is not linearizable.
"""
import argparse, base64, http.client, json, os, shutil, signal, socket, statistics, struct, subprocess, sys, tempfile, time

sys.dont_write_bytecode = True
from systems import JAVA, RELEASE, ROOT, ZK_JARS, die_with_parent, write

DATA = bytes([7]) * 100
PARENTS = 1000
BATCH = 1000
PATIENCE = 0.5  # seconds for an answer of a server that starts


def path(n):
    return f"/d/{n % PARENTS:03}/{n:09}"


def parents():
    return ["/d"] + [f"/d/{n:03}" for n in range(PARENTS)]


class Client:
    """A session in ZooKeeper's protocol (docs/zookeeper.md)."""

    def __init__(self, port):
        # ZooKeeper drops what comes before it serves, and leaves the connection open.
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.replies = self.socket.makefile("rb")
        self.socket.sendall(frame(struct.pack(">iqiqi16s?", 0, 0, 30000, 0, 16, b"", False)))
        self.receive()

    def receive(self):
        length = self.replies.read(4)
        if len(length) < 4:
            raise OSError("the server has closed the connection")
        return self.replies.read(struct.unpack(">i", length)[0])

    def call(self, requests):
        self.socket.sendall(b"".join(map(frame, requests)))
        for _ in requests:
            error = struct.unpack(">i", self.receive()[12:16])[0]
            if error != 0:
                raise RuntimeError(f"ZooKeeper's error {error}")

    def create(self, paths):
        acl = struct.pack(">ii", 1, 31) + string(b"world") + string(b"anyone")
        self.call([struct.pack(">ii", 1, 1) + string(each.encode()) + string(DATA) + acl + bytes(4) for each in paths])

    def read(self, of):
        self.call([struct.pack(">ii", 1, 4) + string(of.encode()) + bytes(1)])

    def wait_longer(self):
        self.socket.settimeout(60)

    def close(self):
        self.socket.close()


class EtcdClient:
    """etcd's HTTP gateway."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self.connection.connect()

    def post(self, what, body):
        self.connection.request("POST", what, json.dumps(body))
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            raise OSError(answer)
        return answer

    def create(self, paths):
        data = base64.b64encode(DATA).decode()
        puts = [{"request_put": {"key": base64.b64encode(each.encode()).decode(), "value": data}} for each in paths]
        for start in range(0, len(puts), 128):  # etcd's limit for a transaction
            self.post("/v3/kv/txn", {"success": puts[start:start + 128]})

    def read(self, of):
        found = self.post("/v3/kv/range", {"key": base64.b64encode(of.encode()).decode(), "serializable": True})
        if found.get("count") != "1":
            raise OSError("it is not there yet")

    def wait_longer(self):
        self.connection.sock.settimeout(60)

    def close(self):
        self.connection.close()


def frame(body):
    return struct.pack(">i", len(body)) + body


def string(of):
    return struct.pack(">i", len(of)) + of


class Server:
    client = Client

    def __init__(self, folder, port):
        self.dir, self.port, self.process = os.path.join(folder, self.name), port, None
        os.makedirs(self.dir)

    def start(self):
        with open(os.path.join(self.dir, "out.log"), "a") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, cwd=self.dir,
                                            preexec_fn=die_with_parent)

    def connect(self, first):
        """A client, once a read of `first` is answered (`None`: once there is a session)."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                client = self.client(self.port)
                if first:
                    client.read(first)
                client.wait_longer()
                return client
            except (OSError, RuntimeError, http.client.HTTPException):
                time.sleep(0.005)
        raise RuntimeError(f"{self.name} does not answer: see {self.dir}/out.log")

    def stop(self, how):
        if self.process:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


class Quorate(Server):
    name, needs = "quorate", "cargo"

    def command(self):
        peer = f"127.0.0.1:{self.port + 1}"
        return [self.program, "serve", "--peers", peer, "--listen", peer,
                "--data-dir", os.path.join(self.dir, "data"), "--zookeeper", f"127.0.0.1:{self.port}"]


class ZooKeeper(Server):
    name, needs = "zookeeper", "java"

    def command(self):
        settings = os.path.join(self.dir, "zoo.cfg")
        write(settings, [f"dataDir={self.dir}/data", f"clientPort={self.port}", "clientPortAddress=127.0.0.1",
                         "tickTime=2000", "admin.enableServer=false"])
        # The heap is that of the project's own zkEnv.sh.
        return ["java", "-Xmx1000m", "-cp", f"{self.dir}:{ZK_JARS}:{JAVA}slf4j-nop.jar",
                "-Dzookeeper.jmx.log4j.disable=true", "org.apache.zookeeper.server.ZooKeeperServerMain", settings]


class Etcd(Server):
    name, needs, client = "etcd", "etcd", EtcdClient

    def command(self):
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"
        return ["etcd", "--name", "n0", "--data-dir", os.path.join(self.dir, "data"), "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", f"n0={peer}"]


def measure(server, options):
    server.start()
    client = server.connect(None)
    client.create(parents())
    for start in range(0, options.znodes, BATCH):
        client.create([path(n) for n in range(start, min(start + BATCH, options.znodes))])
    client.close()
    times = {"killed": [], "ended": []}
    for _ in range(options.runs):
        for row, how in (("killed", signal.SIGKILL), ("ended", signal.SIGTERM)):
            server.stop(how)
            begun = time.monotonic()
            server.start()
            server.connect(path(options.znodes - 1)).close()
            times[row].append(time.monotonic() - begun)
            print(f"{server.name}, {row}: {times[row][-1]:.2f} s", file=sys.stderr, flush=True)
    server.stop(signal.SIGKILL)
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--znodes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port-base", type=int, default=27450)
    parser.add_argument("--data", help="a folder on the disk to measure")
    parser.add_argument("--program", help="the built quorate")
    options = parser.parse_args()
    if not options.program:
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", "quorate-cli"], check=True, cwd=ROOT)
    Quorate.program = os.path.abspath(options.program or os.path.join(RELEASE, "quorate"))
    folder = tempfile.mkdtemp(prefix="quorate-restart-", dir=options.data)
    try:
        servers = [each(folder, options.port_base + 10 * place)
                   for place, each in enumerate((Quorate, ZooKeeper, Etcd)) if shutil.which(each.needs)]
        measured = {server.name: measure(server, options) for server in servers}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"| {options.znodes:,} znodes of {len(DATA)} B, to the first read | {' | '.join(measured)} | best peer / quorate |")
    print("| --- |" + " ---: |" * (len(measured) + 1))
    for row, words in (("killed", "SIGKILL and a restart"), ("ended", "SIGTERM and a restart")):
        medians = {name: statistics.median(times[row]) for name, times in measured.items()}
        cells = [f"{medians[name]:.2f} s [{min(times[row]):.2f}..{max(times[row]):.2f}]"
                 for name, times in measured.items()]
        peers = [median for name, median in medians.items() if name != "quorate"]
        ratio = f"{min(peers) / medians['quorate']:.1f}" if peers else "-"
        print(f"| {words} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    main()
