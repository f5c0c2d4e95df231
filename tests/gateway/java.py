"""Programs that use ZooKeeper's Java client, driven by lines of text."""

import pathlib
import queue
import subprocess
import threading

from cluster import PATIENCE

JARS = "/usr/share/java/"
SILENT = JARS + "slf4j-nop.jar"
# Writes to the standard error.
LOGGING = JARS + "slf4j-simple.jar"
CLASSPATH = [JARS + "zookeeper.jar", SILENT]
# The dependencies of the client for TLS. Its own manifest lacks some.
NETTY = sorted(str(jar) for jar in pathlib.Path(JARS).glob("netty-*.jar"))


def command(main, *arguments, classpath=(), options=(), logger=SILENT):
    known = [jar for jar in CLASSPATH if jar != SILENT]
    return ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", *options,
            "-cp", ":".join([*known, logger, *classpath]), main, *arguments]


class Program:
    def __init__(self, main, *arguments, **options):
        self.start(command(main, *arguments, **options))

    def start(self, command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def write(self, *lines):
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def line(self):
        """The next line; `None` at the end."""
        try:
            return self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"no line from the program within {PATIENCE} s") from None

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Client(Program):
    """A program with named clients, by default in Java.

    It answers each line with a line that starts with "=", and prints events as other lines.
    """

    def start(self, command):
        self.all = []
        self.printed = []
        super().start(command)

    def run(self, command):
        """The answer to a command."""
        self.write(command)
        return self.next(lambda line: line.startswith("= "))[2:]

    def wait_for(self, *expected):
        """Waits for all of these lines, in any order."""
        for line in expected:
            self.next(lambda printed: printed == line)

    def next(self, wanted):
        """The first line of a kind among the unread ones."""
        for place, line in enumerate(self.printed):
            if wanted(line):
                return self.printed.pop(place)
        while (line := self.line()) is not None:
            self.all.append(line)
            if wanted(line):
                return line
            self.printed.append(line)
        raise AssertionError(f"the program has ended: {self.printed}")
