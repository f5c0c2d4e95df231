"""The systems that are compared: how each is built and started, and who leads."""
import ctypes, json, os, re, shutil, signal, socket, subprocess, threading, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "target", "peers", "build")
# Where Cargo builds.
RELEASE = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))), "release")
CARGO_TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", BUILD))
PROGRAM = os.path.join(CARGO_TARGET, "release", "quorate-peers")

# Where Debian puts them.
GOPATH = "/usr/share/gocode"
JAVA = "/usr/share/java/"
ZK_JARS = f"{JAVA}zookeeper.jar:{JAVA}zookeeper-jute.jar"
# Of the clients alone.
CURATOR_JARS = ":".join(JAVA + name + ".jar" for name in (
    "curator-recipes", "curator-framework", "curator-client", "guava"))

MEMBERS = 3
LIBC = ctypes.CDLL(None)


def die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing outlives run.py, however it ends


class System:
    """Three servers on loopback. A subclass says how they are built, started and asked for their part."""

    def __init__(self, data, port_base):
        self.dirs = [os.path.join(data, f"{self.name}-{i}") for i in range(MEMBERS)]
        self.ports = [port_base + self.first_port + i for i in range(self.ports_each * MEMBERS)]
        self.processes = [None] * MEMBERS

    @classmethod
    def missing(cls):
        """What is not installed, of what this needs."""
        return [path for path in cls.needs if not (shutil.which(path) or os.path.exists(path))]

    def address(self, i):
        return f"127.0.0.1:{self.ports[i]}"

    def __enter__(self):
        for port in self.ports:
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("127.0.0.1", port))  # fails if something else has it: see --port-base
        for path in self.dirs:
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
        try:
            for i in range(MEMBERS):
                self.start(i)
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for i in range(MEMBERS):
            self.kill(i)
            shutil.rmtree(self.dirs[i], ignore_errors=True)

    def start(self, i):
        with open(os.path.join(self.dirs[i], "out.log"), "a") as log:
            self.processes[i] = subprocess.Popen(
                self.server(i), stdout=log, stderr=log, cwd=self.dirs[i], preexec_fn=die_with_parent)

    def kill(self, i):
        if self.processes[i]:
            self.processes[i].kill()  # SIGKILL ends a frozen process too
            self.processes[i].wait()

    def wait(self, seconds=60):
        """Until one leads and the others follow; sets `order`, the leader first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            modes = [self.mode(i) for i in range(MEMBERS)]
            if sorted(map(str, modes)) == ["follower", "follower", "leader"]:
                self.order = sorted(range(MEMBERS), key=lambda i: modes[i] == "follower")
                return
            time.sleep(0.05)
        with open(os.path.join(self.dirs[0], "out.log")) as log:
            raise RuntimeError(f"{self.name} did not form: {modes}; {''.join(log.readlines()[-3:])}")

    def run(self, work, seconds):
        """Yields a line of figures for each workload; the client is ended after so many seconds."""
        command = self.client() + ["--servers", ",".join(self.address(i) for i in self.order)] + work
        yield from lines(command, seconds)


def lines(command, seconds):
    """The JSON lines that a program prints, as it prints them."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            yield json.loads(line)
        if process.wait() != 0:
            raise RuntimeError(f"the client ended with {process.returncode} (it had {seconds:.0f} s)")
    finally:
        timer.cancel()
        process.kill()
        process.wait()


class Quorate(System):
    """Three processes, each a member. The clients are threads in them: see quorate/src/main.rs."""
    name, session = "quorate", "session"
    signals = ["KILL", "STOP", "CLOSE"]
    first_port, ports_each = 0, 2  # control, then members
    needs = ["cargo"]

    @staticmethod
    def build():
        subprocess.run(["cargo", "build", "--release", "--quiet"], check=True,
                       cwd=os.path.join(HERE, "quorate"), env=dict(os.environ, CARGO_TARGET_DIR=CARGO_TARGET))

    def server(self, i):
        members = [f"127.0.0.1:{port}" for port in self.ports[MEMBERS:]]
        return [PROGRAM, "member", "--peers", ",".join(members), "--me", members[i],
                "--dir", os.path.join(self.dirs[i], "data"), "--control", str(self.ports[i])]

    def client(self):
        return [PROGRAM, "client"]

    def mode(self, i):
        return ask(self.ports[i], b"mode\n").strip()


class ZooKeeper(System):
    name, session = "zookeeper", "rawsession"
    signals = ["KILL", "STOP"]
    first_port, ports_each = 6, 3  # clients, quorum, election
    needs = ["java", "javac", JAVA + "zookeeper.jar", JAVA + "curator-recipes.jar"]

    @staticmethod
    def build():
        os.makedirs(BUILD, exist_ok=True)
        source = os.path.join(HERE, "zk", "ZkBench.java")
        subprocess.run(["javac", "-proc:none", "-cp", f"{ZK_JARS}:{CURATOR_JARS}", "-d", BUILD, source], check=True)

    def server(self, i):
        path = self.dirs[i]
        data = os.path.join(path, "data")
        os.makedirs(data, exist_ok=True)
        # ZooKeeper's own defaults, but for what three on a machine need.
        settings = [f"dataDir={data}", f"clientPort={self.ports[i]}", "clientPortAddress=127.0.0.1",
                    "tickTime=2000", "initLimit=10", "syncLimit=5", "maxClientCnxns=0",
                    "admin.enableServer=false", "4lw.commands.whitelist=srvr"]
        for j in range(MEMBERS):
            settings.append(f"server.{j + 1}=127.0.0.1:{self.ports[MEMBERS + j]}:{self.ports[2 * MEMBERS + j]}")
        write(os.path.join(path, "zoo.cfg"), settings)
        write(os.path.join(data, "myid"), [str(i + 1)])
        write(os.path.join(path, "log4j.properties"), [
            "log4j.rootLogger=INFO, A", "log4j.appender.A=org.apache.log4j.ConsoleAppender",
            "log4j.appender.A.layout=org.apache.log4j.PatternLayout",
            "log4j.appender.A.layout.ConversionPattern=%d %p %m%n"])
        # The heap is that of the project's own zkEnv.sh.
        return ["java", "-Xmx1000m", "-Dzookeeper.jmx.log4j.disable=true",
                "-cp", f"{path}:{ZK_JARS}:{JAVA}slf4j-log4j12.jar:{JAVA}log4j-1.2.jar",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", os.path.join(path, "zoo.cfg")]

    def client(self):
        return ["java", "-cp", f"{BUILD}:{ZK_JARS}:{CURATOR_JARS}:{JAVA}slf4j-nop.jar", "ZkBench"]

    def mode(self, i):
        mode = re.search(r"Mode: (\w+)", ask(self.ports[i], b"srvr"))
        return mode and mode.group(1)


class Etcd(System):
    name, session = "etcd", "session"
    signals = ["KILL", "STOP"]
    first_port, ports_each = 15, 2  # clients, peers
    needs = ["etcd", "go", GOPATH + "/src/go.etcd.io/etcd/clientv3"]

    @staticmethod
    def build():
        # Debian's own sources of the client: nothing is downloaded.
        env = dict(os.environ, GO111MODULE="off", GOPATH=GOPATH, GOCACHE=os.path.join(BUILD, "gocache"))
        subprocess.run(["go", "build", "-o", os.path.join(BUILD, "etcd-client"), "."], check=True,
                       cwd=os.path.join(HERE, "etcd"), env=env)

    def server(self, i):
        client, peer = f"http://{self.address(i)}", f"http://127.0.0.1:{self.ports[MEMBERS + i]}"
        cluster = ",".join(f"n{j}=http://127.0.0.1:{self.ports[MEMBERS + j]}" for j in range(MEMBERS))
        return ["etcd", "--name", f"n{i}", "--data-dir", os.path.join(self.dirs[i], "data"),
                "--listen-client-urls", client, "--advertise-client-urls", client,
                "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", cluster, "--initial-cluster-state", "new"]

    def client(self):
        return [os.path.join(BUILD, "etcd-client")]

    def mode(self, i):
        try:
            request = urllib.request.Request(f"http://{self.address(i)}/v3/maintenance/status", data=b"{}")
            status = json.load(urllib.request.urlopen(request, timeout=1))
        except (OSError, ValueError):
            return None
        if not int(status.get("leader", 0)):
            return None
        return "leader" if status["leader"] == status["header"]["member_id"] else "follower"


SYSTEMS = {system.name: system for system in (Quorate, ZooKeeper, Etcd)}


def write(path, content):
    with open(path, "w") as f:
        f.write("\n".join(content) + "\n")


def ask(port, question):
    """One question over a connection of its own, and what comes before it is closed or a line has ended."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as s:
            s.settimeout(1)
            s.sendall(question)
            answer = b""
            # Only quorate's answers are of one line.
            while chunk := s.recv(4096):
                answer += chunk
                if question.endswith(b"\n") and answer.endswith(b"\n"):
                    break
            return answer.decode()
    except OSError:
        return ""
