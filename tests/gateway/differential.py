"""Two servers get the same requests, and their replies and events must be alike."""

import contextlib

from cluster import ROOT
from zookeeper import *  # noqa: F403  the names of the protocol

PAGE = ROOT / "docs/shared-recipes.md"


class Server:
    """One of the two servers, with the names that replace its ids and zxids in a comparison."""

    def __init__(self, port, ours):
        self.port, self.ours = port, ours
        self.wires = {}
        self.sessions = {}
        self.names = {0: "none"}
        self.zxids = {}
        self.seen, self.aside = 0, False
        self.marks = {}
        self.last = 0
        self.written = 0

    def zxid(self, number):
        """A name for a znode's zxid: its place in the order of first appearance."""
        if number > 0 and number not in self.zxids:
            # If one server writes and the other refuses, later zxids still get the same names.
            self.zxids[number] = "aside" if self.aside else f"zxid {self.seen}"
            self.seen += not self.aside
        return self.zxids.get(number, number)

    def stat(self, reader):
        czxid, mzxid = reader.long(), reader.long()
        times = [reader.long() > 0 for _ in range(2)]
        version, cversion, aversion = (reader.int() for _ in range(3))
        owner = reader.long()
        length, children = reader.int(), reader.int()
        pzxid = reader.long()
        return {"czxid": self.zxid(czxid), "mzxid": self.zxid(mzxid), "pzxid": self.zxid(pzxid), "times": times,
                "versions": (version, cversion, aversion), "owner": self.names.get(owner, owner),
                "length": length, "children": children}

    def body(self, op, reader):
        if op in (CREATE, SYNC):
            return reader.text()
        if op in (CREATE2, CONTAINER, TTL):
            return reader.text(), self.stat(reader)
        if op in (EXISTS, SET, SET_ACL):
            return self.stat(reader)
        if op == GET:
            return reader.text(), self.stat(reader)
        if op in (CHILDREN, EPHEMERALS):
            return sorted(reader.list(reader.text))
        if op == CHILDREN2:
            return sorted(reader.list(reader.text)), self.stat(reader)
        if op == GET_ACL:
            entries = reader.list(lambda: (reader.int(), reader.text(), reader.text()))
            return sorted(entries), self.stat(reader)
        if op == WHO_AM_I:
            return sorted(reader.list(lambda: (reader.text(), reader.text())))
        if op in (MULTI, MULTI_READ):
            return self.results(reader)
        return None

    def results(self, reader):
        results = []
        while True:
            kind, done, err = reader.int(), reader.take(1), reader.int()
            if done != b"\0":
                return results + [("end", kind, done, err)]
            results.append((kind, err, reader.int() if kind == -1 else self.body(kind, reader)))

    def reply(self, op, frame):
        """The content of a frame, without values that differ from server to server."""
        reader = Reader(frame)
        xid, zxid, err = reader.int(), reader.long(), reader.int()
        if xid == -1:
            if self.ours and zxid not in (-1, self.written):
                return "event", f"has zxid {zxid} and not that of its change, {self.written}"
            return "event", err, reader.int(), reader.int(), reader.text(), reader.rest()
        if op == CREATE_SESSION:
            return "bare", len(frame)
        if zxid > 0:
            if zxid < self.last:
                return "reply", f"goes back to zxid {zxid} from {self.last}"
            self.last = zxid
        try:
            body = self.body(op, reader) if err == 0 else None
        except ValueError as error:
            body = f"cannot be read: {error}"
        created = op in (CREATE, CREATE2, CONTAINER, TTL) or (
            op == MULTI and any(result[0] in (CREATE, CREATE2) for result in body or ()))
        if created and err == 0:
            self.zxid(zxid)
        # After an error a multi may end as if it had results; no client reads them.
        rest = b"" if err and op in (MULTI, MULTI_READ) else reader.rest()
        return "reply", xid, zxid if zxid <= 0 else "zxid", err, body, rest

    def connect(self, name, packet, session):
        """Sends the first packet and returns the answer. `session` is the name of the session."""
        wire = self.wires[name] = Wire(self.port)
        self.sessions.setdefault(session, (0, bytes(16)))
        packet = packet(self) if callable(packet) else packet
        wire.send(i32(len(packet)) + packet)
        frame = wire.frame()
        if frame is None:
            return "closed"
        reader = Reader(frame)
        try:
            version, timeout, number, password = reader.int(), reader.int(), reader.long(), reader.text()
        except ValueError:
            return frame
        if number:
            self.sessions[session] = number, password
            self.names[number] = session
        rest = reader.rest()
        return version, timeout, self.names[number], len(password), password == bytes(16), rest

    def ask(self, name, op, body, xid):
        """Sends one request. Returns everything that comes back on all connections."""
        body = body(self) if callable(body) else body
        self.send(name, i32(xid, op) + body)
        return self.gather(name, op)

    def send(self, name, packet):
        self.wires[name].send(i32(len(packet)) + packet)

    def gather(self, name, op):
        seen = {name: []}
        wire = self.wires[name]
        frames = []
        while (frame := wire.frame()) is not None:
            frames.append(frame)
            if Reader(frame).int() != -1:
                if op in WRITES and Reader(frame[12:]).int() == 0:
                    self.written = Reader(frame[4:]).long()
                break
        seen[name] = [self.reply(op, frame) for frame in frames] + ["closed"] * wire.closed
        for other, wire in self.wires.items():
            seen.setdefault(other, []).extend(self.events(wire))
        if op == CLOSE:
            # Here the ephemerals of a closed session are deleted in the order of their paths; ZooKeeper has
            # no order.
            seen = {of: sorted(what, key=lambda one: (one[0] != "event", str(one))) for of, what in seen.items()}
        return {of: what for of, what in seen.items() if what}

    def events(self, wire):
        """All frames before the reply to a ping."""
        if wire.closed:
            return []
        seen = []
        wire.send(i32(8, -2, PING))
        while (frame := wire.frame()) is not None:
            if frame[:4] == i32(-2):
                return seen
            seen.append(self.reply(PING, frame))
        return seen + ["closed"]

    def close_late(self, seen, others):
        """Adds to `seen` the connections that the other server has closed, once they are closed here too: a
        server may answer one more ping before it closes a connection."""
        for name, what in others.items():
            if what[-1] == "closed" and "closed" not in seen.get(name, []):
                with contextlib.suppress(TimeoutError):
                    if self.wires[name].frame() is None:
                        seen.setdefault(name, []).append("closed")
        return seen

    def drop(self, name):
        self.wires.pop(name).close()


class Pair:
    """Both servers, which get each request in turn."""

    def __init__(self, theirs, ours, note=""):
        self.servers = [Server(theirs, False), Server(ours, True)]
        self.note, self.xid, self.steps = note, 0, 0

    def both(self, what, step, differs=None):
        self.steps += 1
        for server in self.servers:
            server.aside = differs is not None
        theirs, ours = (step(server) for server in self.servers)
        # If they differ on purpose, one of them may leave a connection open, so waiting for its end is
        # useless.
        if not differs and theirs != ours and isinstance(theirs, dict) and isinstance(ours, dict):
            theirs = self.servers[0].close_late(theirs, ours)
            ours = self.servers[1].close_late(ours, theirs)
        if differs:
            if f"| {differs} |" not in PAGE.read_text():
                raise AssertionError(f"{PAGE} does not name it: {differs}")
            if theirs == ours:
                raise AssertionError(f"{self.note}, {what}: no longer differs: {differs}\n{ours}")
        elif theirs != ours:
            raise AssertionError(f"{self.note}, step {self.steps}, {what}:\nZooKeeper: {theirs}\nhere:      {ours}")
        return ours

    def connect(self, name, packet=None, session=None, **differs):
        packet = hello() if packet is None else packet
        return self.both(f"connect {name} {packet}", lambda of: of.connect(name, packet, session or name), **differs)

    def resume(self, name, session):
        return self.connect(name, lambda of: hello(40000, *of.sessions[session]), session)

    def ask(self, name, op, body=b"", xid=None, **differs):
        self.xid += 1
        xid = self.xid if xid is None else xid
        return self.both(f"{name}: op {op}, {body}", lambda of: of.ask(name, op, body, xid), **differs)

    def raw(self, name, data, **differs):
        """Sends bytes that are not a request."""
        def step(server):
            server.wires[name].send(data)
            return server.gather(name, 0)
        return self.both(f"{name}: {data[:40]}", step, **differs)

    def mark(self, name):
        """Stores the last zxid that was seen."""
        for server in self.servers:
            server.marks[name] = server.last

    def drop(self, name):
        for server in self.servers:
            server.drop(name)

    def end(self):
        for server in self.servers:
            for name in list(server.wires):
                if not server.wires[name].closed:
                    server.ask(name, CLOSE, b"", 1)
                server.drop(name)
