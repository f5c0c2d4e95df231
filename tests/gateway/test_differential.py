"""One history against ZooKeeper's own server and against a member: replies and events must be alike.

Intended differences are named where they appear, by the first column of the table in docs/shared-recipes.md.
"""

import unittest

import zookeeper
from cluster import Cluster
from differential import Pair
from generated import Generator
from zookeeper import *  # noqa: F403  the names of the protocol

SEEDS = range(60)
STEPS = 200


@unittest.skipUnless(zookeeper.JAR.exists(), f"there is no {zookeeper.JAR}")
class Differential(unittest.TestCase):
    ODD = [None, "", "a", "a/b", "//", "/x/", "/x//y", "/x/.", "/x/..", "/x/./y", "/x/\0", "/x/\u0001", "/x/\u007f",
           "/x/\ud7ff", "/x/\ue000", "/x/\uffff", b"/x/\xff", "/none", "/none/", "/none//y"]
    MULTI_DIFFERS = {CREATE: (-1, 7, 8), CREATE2: (-1, 0, 1, 2, 3, 7, 8), CONTAINER: (-1, 0, 1, 7, 8)}
    PLAIN = [None, "/x/\ud7ff", "/none"]

    @classmethod
    def setUpClass(cls):
        cls.port = cls.enterClassContext(standalone())
        cls.cluster = cls.enterClassContext(Cluster(members=1, options=["--super-digest", SUPER]))

    def pair(self, note):
        return Pair(self.port, self.cluster.ports[0], note)

    def test_a_fresh_tree(self):
        # The name makes this test run first, since it counts all znodes.
        p = self.pair("always there")
        p.connect("a")
        for path in ("/", "", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"):
            config = path == "/zookeeper/config"
            fresh = None if path == "/zookeeper/quota" else "what is always there"
            for op in (EXISTS, GET, CHILDREN, CHILDREN2):
                p.ask("a", op, read(path), differs=None if op == CHILDREN else fresh)
            p.ask("a", GET_ACL, text(path), differs=fresh)
            p.ask("a", COUNT, text(path), differs=None if path else "what is always there")
            for op, body in ((CREATE, create(path)), (DELETE, versioned(path)), (SET, set_data(path, b"", 99)),
                             (SET_ACL, text(path) + acl(OPEN) + i32(99))):
                p.ask("a", op, body, differs="what is always there" if config and op in (SET, SET_ACL) else None)
        p.ask("a", CREATE, create("/", flags=2))
        p.ask("a", CREATE, create("/zookeeper/a"))
        p.ask("a", CREATE, create("/zookeeper/config/a"), differs="what is always there")
        p.ask("a", CREATE, create("/zookeeper/quota/a"))
        p.ask("a", DELETE, versioned("/zookeeper/a"))
        p.end()

    def test_handshakes(self):
        p = self.pair("handshakes")
        p.connect("a")
        p.connect("older", hello(read_only=b""))
        p.connect("reader", hello(read_only=b"\7"))
        p.connect("longer", hello() + b"more")
        p.connect("version", i32(7) + hello()[4:])
        for timeout in (0, -1, 1, 4000, 12345, 10 ** 9):
            p.connect(f"timeout {timeout}", hello(timeout))
        for password in (None, b"", b"123", bytes(300)):
            p.connect(f"password {password}", hello(password=password))
        p.connect("past", hello(seen=-1))
        p.connect("future", hello(seen=2 ** 62))
        p.connect("unknown", hello(session=12345))
        p.connect("negative", hello(session=-12345))
        p.connect("victim")
        for password in (bytes(16), None, b"", b"123", bytes(17)):
            p.connect(f"wrong {password}", lambda of, password=password: hello(session=of.sessions["victim"][0], password=password))
        p.both("victim", lambda of: (of.events(of.wires["victim"]), of.drop("victim")), differs="a wrong password")
        p.connect("new", lambda of: hello(password=of.sessions["a"][1]))
        p.ask("a", CREATE, create("/handshakes", b"", OPEN, 1))
        p.connect("again", lambda of: hello(4000, *of.sessions["a"]), "a")
        p.both("the former connection", lambda of: of.gather("a", 0))
        p.ask("again", EXISTS, read("/handshakes"))
        p.ask("again", CLOSE)
        p.connect("too late", lambda of: hello(4000, *of.sessions["a"]), "a")
        for length in (0, 1, 3, 4, 16, 24, 27, 28, 43):
            p.connect(f"short {length}", hello()[:length])
        p.connect("length", hello()[:24] + i32(-2))
        p.connect("too long", hello()[:24] + i32(17) + bytes(16))
        p.connect("twice")
        p.raw("twice", i32(len(hello())) + hello())
        p.end()

    def test_frames(self):
        p = self.pair("frames")
        for length in range(8):
            p.connect(f"short {length}")
            p.raw(f"short {length}", i32(length) + bytes(length))
        for length in (-1, -2 ** 31, 2 ** 31 - 1, 1048576):
            p.connect(f"length {length}")
            p.raw(f"length {length}", i32(length))
        p.connect("a")
        p.ask("a", CREATE, create("/frames"))
        p.ask("a", GET, read("/frames") + b"more")
        p.ask("a", GET, text("/frames") + b"\x85")
        p.ask("a", PING, b"more", xid=5)
        p.ask("a", SET, set_data("/frames", bytes(1000000)))
        p.ask("a", GET, read("/frames"))
        p.ask("a", SET, set_data("/frames", bytes(1048575 - 8 - 4 - 7 - 4 - 4)))
        p.ask("a", GET, read("/frames"))
        p.ask("a", SET, set_data("/frames", b""))
        p.end()

    def test_xids(self):
        p = self.pair("xids")
        p.connect("a")
        for xid in (5, 5, 3, 0, -2, -4, -8, -3, 2 ** 31 - 1, -2 ** 31):
            p.ask("a", EPHEMERALS, text("/"), xid=xid)
            p.ask("a", SYNC, text("/"), xid=xid)
            p.ask("a", PING, xid=xid)
        p.end()

    def test_unreadable_bodies(self):
        p = self.pair("unreadable")
        p.connect("a")
        whole = {CREATE: create("/u"), CREATE2: create("/u"), CONTAINER: create("/u", flags=4),
                 TTL: create("/u", flags=5, ttl=1000), DELETE: versioned("/u"), EXISTS: read("/u"), GET: read("/u"),
                 CHILDREN: read("/u"), CHILDREN2: read("/u"), SET: set_data("/u", b""), GET_ACL: text("/u"),
                 SET_ACL: text("/u") + acl(OPEN) + i32(-1), SYNC: text("/u"), EPHEMERALS: text("/u"),
                 COUNT: text("/u"), ADD_WATCH: text("/u") + i32(0), CHECK_WATCHES: text("/u") + i32(1),
                 REMOVE_WATCHES: text("/u") + i32(1), SET_WATCHES: i64(0) + texts([]) * 3,
                 SET_WATCHES2: i64(0) + texts([]) * 5, MULTI: multi((DELETE, versioned("/u"))),
                 MULTI_READ: multi((GET, read("/u"))), CHECK: versioned("/u")}
        for op, body in whole.items():
            for length in (0, 3, len(body) // 2, len(body) - 1):
                p.ask("a", op, body[:length])
        for op in (SET_WATCHES, SET_WATCHES2):
            lists = 3 if op == SET_WATCHES else 5
            p.ask("a", op, i64(0) + texts(None) + texts([]) * (lists - 1))
            p.ask("a", op, i64(0) + texts([]) * (lists - 1) + texts(None))
        p.ask("a", CREATE, text("/u") + text(b"") + i32(-5))
        p.ask("a", CREATE, text("/u") + text(b"") + i32(-5) + i32(0))
        p.ask("a", CREATE, text("/u") + text(b"") + i32(2 ** 31 - 1) + i32(0))
        p.ask("a", CREATE, text("/u") + i32(-2) + acl(OPEN) + i32(0))
        for op, body in ((AUTH, b""), (AUTH, i32(0) + text("digest") + i32(50)), (SASL, b"")):
            p.connect(f"closed {op} {len(body)}")
            p.ask(f"closed {op} {len(body)}", op, body)
        p.end()

    def test_unknown_operations(self):
        p = self.pair("unknown operations")
        differ = {CREATE_SESSION: "createSession, deleteContainer", DELETE_CONTAINER: "createSession, deleteContainer",
                  RECONFIG: "reconfig"}
        for op in (0, -1, 10, 23, 24, 99, 108, 1000, -12, 2 ** 31 - 1, *differ):
            p.connect(f"op {op}")
            p.ask(f"op {op}", op, text("/unknown") + bytes(100), differs=differ.get(op))
        p.connect("a")
        p.ask("a", SASL, text(b"token"))
        p.ask("a", SASL, text(None))
        p.connect("b")
        p.ask("b", SASL, text(b""))
        p.end()

    def test_paths(self):
        p = self.pair("paths")
        p.connect("a")
        for present in (False, True):
            if present:
                p.ask("a", CREATE, create("/x"))
            for path in self.ODD:
                if path != "":
                    for op in (EXISTS, GET, CHILDREN, CHILDREN2):
                        p.ask("a", op, read(path, True))
                    for op in (GET_ACL, COUNT):
                        p.ask("a", op, text(path))
                for op in (SYNC, EPHEMERALS):
                    p.ask("a", op, text(path))
                for op, flags in ((CREATE, 0), (CREATE2, 0), (CREATE, 2), (CONTAINER, 4)):
                    p.ask("a", op, create(path, flags=flags))
                    p.ask("a", MULTI, multi((CREATE if op == CREATE2 else op, create(path, flags=flags))))
                p.ask("a", TTL, create(path, flags=5, ttl=10 ** 9))
                for op, body in ((DELETE, versioned(path)), (SET, set_data(path, b"")), (CHECK, versioned(path))):
                    if op != CHECK:
                        p.ask("a", op, body)
                    p.ask("a", MULTI, multi((op, body)))
                p.ask("a", SET_ACL, text(path) + acl(OPEN) + i32(-1))
                if path is not None:
                    p.ask("a", ADD_WATCH, text(path) + i32(0))
                p.ask("a", SET_WATCHES, i64(2 ** 62) + texts([path]) + texts([path]) + texts([path]),
                      differs="watches where no znode can be" if path is None else None)
                for op in (CHECK_WATCHES, REMOVE_WATCHES):
                    p.ask("a", op, text(path) + i32(ANY_TYPE), differs=None if path in self.PLAIN or (path, op) == ("", CHECK_WATCHES) else "watches where no znode can be")
                for op in (GET, CHILDREN):
                    if path != "" or op == CHILDREN:
                        p.ask("a", MULTI_READ, multi((op, read(path))))
        p.end()

    def test_creates(self):
        p = self.pair("creates")
        p.connect("a")
        p.ask("a", CREATE, create("/c"))
        p.ask("a", CREATE, create("/s"))
        number = 0
        for flags in range(-1, 9):
            for op in (CREATE, CREATE2, CONTAINER):
                number += 1
                sequential = "sequential containers" if op == CONTAINER and flags in (2, 3) else None
                below = "/s" if sequential else "/c"
                p.ask("a", op, create(f"{below}/{number}-", b"1", OPEN, flags), differs=sequential)
                number += 1
                differs = sequential or ("what a multi says of creates (3.9)" if flags in self.MULTI_DIFFERS[op] else None)
                below = "/s" if differs else "/c"
                p.ask("a", MULTI, multi((op, create(f"{below}/{number}-", b"1", OPEN, flags))), differs=differs)
            # A server of 3.8 shuts down on a negative time without the flags of a time to live.
            for ttl in (10 ** 9, 0, -1, 1 << 40, (1 << 40) - 1) if flags in (5, 6) else (10 ** 9,):
                number += 1
                p.connect(f"ttl {number}")
                p.ask(f"ttl {number}", TTL, create(f"/c/{number}-", b"1", OPEN, flags, ttl))
            number += 1
            p.connect(f"ttl {number}")
            p.ask(f"ttl {number}", MULTI, multi((TTL, create(f"/c/{number}-", b"1", OPEN, flags, 10 ** 9))))
        p.ask("a", CHILDREN2, read("/c"))
        p.ask("a", EPHEMERALS, text("/c"))
        p.ask("a", CREATE, create("/c/e", flags=1))
        p.ask("a", CREATE, create("/c/e/f"))
        p.ask("a", CREATE, create("/c"))
        p.ask("a", CREATE, create("/c", flags=9))
        p.ask("a", CREATE, create("/no/e", access=[]))
        p.ask("a", CREATE, create("/c/null", None))
        p.ask("a", GET, read("/c/null"))
        p.ask("a", SET, set_data("/c/null", b"1"))
        p.ask("a", SET, set_data("/c/null", None))
        p.ask("a", GET, read("/c/null"))
        p.ask("a", DELETE, versioned("/c"))
        p.ask("a", DELETE, versioned("/c", 5))
        for version in (1, -2, 2 ** 31 - 1, 0):
            p.ask("a", SET, set_data("/c", b"", version))
        p.end()

    def test_access_lists(self):
        p = self.pair("access lists")
        digest = lambda name: i32(0) + text("digest") + text(f"{name}:secret")  # noqa: E731
        for name in ("ann", "bob", "none"):
            p.connect(name)
            if name != "none":
                p.ask(name, AUTH, digest(name), xid=-4)
            p.ask(name, WHO_AM_I)
        p.ask("ann", CREATE, create("/l"))
        p.ask("ann", CREATE, create("/open"))
        who = [("world", "anyone"), ("world", "no"), ("auth", ""), ("auth", "x"), ("auth", None), ("digest", "a:b"),
               ("digest", "a"), ("digest", ""), ("digest", "a:b:c"), ("digest", ":"), ("digest", "a:"), ("digest", ":b"),
               ("ip", "127.0.0.1"), ("ip", "127.0.0.0/8"), ("ip", "127.0.0.1/33"), ("ip", "127.0.0.1/-1"),
               ("ip", "127.0.0"), ("ip", "::1"), ("ip", "::/0"), ("ip", "x"), ("ip", ""), ("super", ""), ("super", "x"),
               ("sasl", "x"), ("x509", "x"), ("none", "x"), ("", "x"), (None, "x"), ("world", None), (None, None)]
        for number, (scheme, name) in enumerate(who):
            for by in ("ann", "none"):
                path = f"/l/{number}{by}"
                differs = "addresses of IPv6 (3.9)" if name in ("::1", "::/0") else None
                differs = "the scheme x509" if scheme == "x509" else differs
                p.ask(by, CREATE, create(path, b"", [(31, scheme, name)]), differs=differs)
                p.ask("ann", GET_ACL, text(path), differs=differs)
                p.ask("bob", GET_ACL, text(path), differs=differs)
                p.ask(by, SET_ACL, text("/l") + acl([(31, scheme, name)]) + i32(99), differs=differs)
        for number, perms in enumerate((0, 1, 30, 32, 63, -1, 2 ** 31 - 1)):
            p.ask("ann", CREATE, create(f"/l/p{number}", b"", [(perms, "world", "anyone")]))
            p.ask("ann", GET_ACL, text(f"/l/p{number}"), differs=None if perms in range(33) else "other permission bits")
        for number, entries in enumerate((None, [], OPEN * 2, [*OPEN, (1, "world", "anyone")], [(1, "ip", "10.0.0.1")] * 3)):
            p.ask("ann", CREATE, create(f"/l/n{number}", b"", entries))
            p.ask("ann", GET_ACL, text(f"/l/n{number}"))
        p.ask("ann", MULTI, multi((CREATE, create("/l/m", b"", []))))
        p.ask("ann", MULTI, multi((CREATE, create("/l/m", b"", None))), differs="what a multi says of creates (3.9)")
        for perms in (0, 1, 2, 4, 8, 16):
            path = f"/l/only{perms}"
            p.ask("ann", CREATE, create(path))
            p.ask("ann", CREATE, create(path + "/c"))
            p.ask("ann", SET_ACL, text(path) + acl([(perms, "world", "anyone"), (31, "auth", "")]) + i32(0))
            for name in ("bob", "none", "ann"):
                hidden = "exists needs READ (3.9)" if name != "ann" and perms != 1 else None
                p.ask(name, EXISTS, read(path), differs=hidden)
                for op in (GET, CHILDREN, CHILDREN2):
                    p.ask(name, op, read(path))
                for op in (GET_ACL, COUNT):
                    p.ask(name, op, text(path))
                p.ask(name, SET, set_data(path, b"1", 99))
                p.ask(name, SET, set_data(path, b"1"))
                p.ask(name, CREATE, create(path + "/d"))
                p.ask(name, CREATE, create(path + "/c"))
                p.ask(name, DELETE, versioned(path + "/no"))
                p.ask(name, DELETE, versioned(path + "/d"))
                p.ask(name, MULTI, multi((CHECK, versioned(path, 0))))
                p.ask(name, MULTI_READ, multi((GET, read(path)), (CHILDREN, read(path)), (GET, read("/open"))))
            p.ask("none", SET_ACL, text(path) + acl(OPEN) + i32(-1))
        p.ask("none", AUTH, i32(0) + text("digest") + text("super:admin"), xid=-4)
        p.ask("none", WHO_AM_I)
        p.ask("none", GET_ACL, text("/l/only0"))
        p.ask("none", SET, set_data("/l/only0", b""))
        p.end()

    def test_authentication(self):
        p = self.pair("authentication")
        for number, (scheme, credentials) in enumerate((
                ("digest", b"ann:secret"), ("digest", b"ann"), ("digest", b""), ("digest", None), ("digest", b":x"),
                ("digest", b"a:b:c"), ("digest", b"a:\xff"), ("digest", b"\xff\xfe:b"), ("ip", b""), ("ip", None), ("world", b"anyone"),
                ("auth", b""), ("super", b""), ("x509", b""), ("sasl", b""), ("none", b""), ("", b""), (None, b""))):
            name = f"{number} {scheme} {credentials}"
            p.connect(name)
            odd = scheme == "digest" and credentials in (b"ann", b"", b":x")
            p.ask(name, AUTH, i32(5) + text(scheme) + text(credentials), xid=number,
                  differs="digest credentials" if odd else None)
            if not p.servers[1].wires[name].closed and not p.servers[0].wires[name].closed:
                p.ask(name, WHO_AM_I)
                p.ask(name, AUTH, i32(0) + text("digest") + text("bob:secret"), xid=-4)
                p.ask(name, AUTH, i32(0) + text("digest") + text("bob:secret"), xid=-4)
                p.ask(name, WHO_AM_I)
        p.connect("ann")
        p.ask("ann", AUTH, i32(0) + text("digest") + text("ann:secret"), xid=-4)
        p.drop("ann")
        p.resume("ann", "ann")
        p.ask("ann", WHO_AM_I)
        p.end()

    def test_multis(self):
        p = self.pair("multis")
        p.connect("a")
        p.connect("watching")
        p.ask("a", CREATE, create("/m"))
        for path in ("/m", "/m/a"):
            p.ask("watching", EXISTS, read(path, True))
        p.ask("watching", CHILDREN, read("/m", True))
        p.ask("watching", ADD_WATCH, text("/m/b") + i32(0))
        p.ask("a", MULTI, multi())
        p.ask("a", MULTI_READ, multi())
        p.ask("a", MULTI, multi((CREATE, create("/m/a")), (SET, set_data("/m/a", b"1", 0)), (CREATE, create("/m/b")),
                                (SET, set_data("/m", b"1")), (DELETE, versioned("/m/a", 1)), (CHECK, versioned("/m/b", 0))))
        p.ask("a", MULTI, multi((CREATE, create("/m/s", flags=2)), (CREATE, create("/m/s", flags=3))))
        p.ask("a", MULTI, multi((CHECK, versioned("/m")), (CHECK, versioned("/m", 1))))
        p.ask("a", MULTI, multi((CHECK, versioned("/no"))))
        p.ask("a", MULTI, multi((CHECK, versioned("/m", 7)), (CREATE, create("/m/z"))))
        p.ask("a", MULTI, multi((SET, set_data("/m", b"")), (DELETE, versioned("/no")), (CREATE, create("/m/z"))))
        p.ask("a", MULTI, multi((CREATE, create("/m/t")), (CREATE, create("/m/t"))))
        p.ask("a", MULTI, multi((DELETE, versioned("/m")), (CREATE, create("/m/t"))))
        p.ask("a", MULTI, multi((CREATE, create("/m/c2")), (DELETE, versioned("/m/c2")), (CREATE, create("/m/c2"))))
        p.ask("a", MULTI, multi((CREATE2, create("/m/create2"))), differs="what a multi says of creates (3.9)")
        p.ask("a", MULTI, multi((CREATE, create("/m/null", access=None))), differs="what a multi says of creates (3.9)")
        p.ask("a", MULTI, multi((DELETE, versioned("/no")), (CREATE, create("no"))))
        p.ask("a", MULTI, multi((CREATE, create("/m/z", flags=-1))), differs="what a multi says of creates (3.9)")
        for op, body in ((EXISTS, read("/m")), (GET_ACL, text("/m")), (SYNC, text("/m")), (PING, b""), (0, b""), (-1, b""),
                         (SET_ACL, text("/m") + acl(OPEN) + i32(-1)), (MULTI, b""), (DELETE_CONTAINER, text("/m")),
                         (GET, read("/m")), (CHILDREN, read("/m")), (CHILDREN2, read("/m"))):
            p.ask("a", MULTI, multi((op, body)))
            p.ask("a", MULTI, multi((CHECK, versioned("/m")), (op, body)))
            p.ask("a", MULTI_READ, multi((op, body)))
            p.ask("a", MULTI_READ, multi((GET, read("/m")), (op, body)))
        p.ask("a", MULTI_READ, multi((GET, read("/no")), (GET, read("/m")), (CHILDREN, read("/m", True)), (CHILDREN, read("/no"))))
        for op, body in ((CREATE, create("/m/q")), (DELETE, versioned("/m/q")), (SET, set_data("/m", b"")), (CHECK, versioned("/m"))):
            p.ask("a", MULTI_READ, multi((op, body)))
        p.end()

    def test_watches(self):
        p = self.pair("watches")
        for name in ("a", "once", "lasting", "recursive"):
            p.connect(name)
        p.ask("a", CREATE, create("/w"))
        life = [(CREATE, create("/w/a")), (SET, set_data("/w/a", b"1")), (CREATE, create("/w/a/b")),
                (SET, set_data("/w/a/b", b"1")), (DELETE, versioned("/w/a/b")), (SET_ACL, text("/w/a") + acl(OPEN) + i32(-1)),
                (DELETE, versioned("/w/a"))]
        p.ask("lasting", ADD_WATCH, text("/w/a") + i32(0))
        p.ask("recursive", ADD_WATCH, text("/w") + i32(1))
        for mode in (-1, 2, 5):
            p.ask("lasting", ADD_WATCH, text("/w/a") + i32(mode))
        for op, body in life * 2:
            p.ask("once", EXISTS, read("/w/a", True))
            p.ask("once", GET, read("/w/a", True))
            p.ask("once", CHILDREN, read("/w/a", True))
            p.ask("once", CHILDREN2, read("/w", True))
            p.ask("a", op, body)
        for op, body in life:
            p.ask("a", op, body)
        for name, kinds in (("once", (0, 6, -1, 9, 1, 1, 2, 2, 3, 3)), ("lasting", (0, 3, 3)), ("recursive", (3, 3))):
            path = "/w" if name == "recursive" else "/w/a"
            p.ask("once", EXISTS, read("/w/a", True))
            p.ask("once", CHILDREN, read("/w", True))
            for kind in kinds:
                p.ask(name, REMOVE_WATCHES, text(path) + i32(kind))
        for op, body in life:
            p.ask("a", op, body)
        for kind in (4, 5):
            p.ask("lasting", ADD_WATCH, text("/w/a") + i32(kind - 4))
            for op in (CHECK_WATCHES, REMOVE_WATCHES):
                p.ask("lasting", op, text("/w/a") + i32(kind), differs="watches of type 4 and 5 (3.9)")
        p.end()

    def test_watches_are_set_again(self):
        p = self.pair("watches again")
        p.connect("a")
        p.connect("w")
        p.ask("a", CREATE, create("/r"))
        for name in "abc":
            p.ask("a", CREATE, create(f"/r/{name}"))
        paths = ["/r/a", "/r/b", "/r/c", "/r/d"]
        lists = texts(paths) * 3
        p.mark("seen")
        p.ask("a", SET, set_data("/r/a", b"1"))
        p.ask("a", DELETE, versioned("/r/b"))
        p.ask("a", CREATE, create("/r/c/x"))
        for since in (lambda of: of.marks["seen"], lambda of: of.last, lambda of: 0, lambda of: -1, lambda of: 2 ** 62):
            for op, more in ((SET_WATCHES, b""), (SET_WATCHES2, texts([]) * 2)):
                for xid in (-8, 7):
                    p.drop("w")
                    p.resume("w", "w")
                    p.ask("w", op, lambda of, since=since, more=more: i64(since(of)) + lists + more, xid=xid)
                    p.ask("a", MULTI, multi(*((SET, set_data(path, b"")) for path in ("/r/a", "/r/c"))))
                    p.ask("a", CREATE, create("/r/d"))
                    p.ask("a", DELETE, versioned("/r/d"))
                    p.ask("a", CREATE, create("/r/c/y"))
                    p.ask("a", DELETE, versioned("/r/c/y"))
        p.ask("w", SET_WATCHES2, lambda of: i64(of.last) + texts([]) * 3 + texts(["/r/a"]) + texts(["/r/c"]))
        for path in ("/r/a", "/r/c", "/r/a/1", "/r/c/1"):
            p.ask("a", CREATE, create(path))
            p.ask("a", SET, set_data(path, b""))
        p.mark("seen")
        p.ask("a", SET, set_data("/r/a", b"2"))
        p.drop("w")
        p.resume("w", "w")
        p.ask("w", SET_WATCHES2, lambda of: i64(of.marks["seen"]) + texts([]) * 3 + texts(["/r/a"]) + texts([]),
              differs="what a persistent watch has missed")
        p.end()

    def test_sessions(self):
        p = self.pair("sessions")
        p.connect("a")
        p.connect("b")
        p.ask("a", CREATE, create("/e"))
        for path in ("/e/e1", "/e/e2", "/e/e3"):
            p.ask("a", CREATE, create(path, flags=1))
        for prefix in (None, "", "/", "/e", "/e/", "/e/e", "/e/e1", "/no", "e"):
            p.ask("a", EPHEMERALS, text(prefix))
            p.ask("b", EPHEMERALS, text(prefix))
        for path in ("/e", "/e/e1", "/no"):
            p.ask("a", COUNT, text(path))
        p.ask("b", CHILDREN, read("/e", True))
        p.ask("b", EXISTS, read("/e/e1", True))
        p.ask("a", CLOSE, b"ignored", xid=77)
        p.ask("b", CHILDREN, read("/e"))
        p.drop("a")
        p.resume("a", "a")
        p.end()

    def test_generated_histories(self):
        for seed in SEEDS:
            Generator(seed, self.pair(f"seed {seed}")).run(STEPS)
