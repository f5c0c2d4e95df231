"""Random histories from a seed. To run one: `python generated.py SEED STEPS`."""

import random
import sys

from cluster import Cluster
from differential import Pair
from zookeeper import *  # noqa: F403  the names of the protocol


class Generator:
    """Requests of a few sessions on a few znodes."""

    DIGEST = b"ann:secret"
    WHO = [("world", "anyone"), ("ip", "127.0.0.1"), ("ip", "127.0.0.0/8"), ("ip", "10.0.0.1"), ("auth", ""),
           ("digest", "bob:xyz="), ("digest", "nonsense"), ("world", "someone"), ("none", "x"), ("ip", "x")]

    def __init__(self, seed, pair):
        self.random = random.Random(seed)
        self.pair = pair
        self.root = f"/g{seed}"
        below = ["/a", "/a/x", "/a/y", "/a/x/deep", "/b", "/b/x", "/a/s0000000000", "/b/0000000001", "/open"]
        self.paths = [self.root, *(self.root + path for path in below)]
        self.container, self.open_to_all = self.root + "/c", self.root + "/open"
        # Znodes that an access list may hide. Unlike 3.8, our `exists` and setWatches hide them, as in 3.9.
        self.hidden = [path for path in self.paths if path.startswith(self.root + "/b")]
        self.shown = [path for path in self.paths if path not in self.hidden]
        # Only `lasting` has persistent watches: in 3.8 the last mode set at a path replaces the others.
        self.names = ["plain", "ann", "lasting"]

    def path(self):
        path = self.random.choice(self.paths)
        if self.random.random() < 0.03:
            # Below a znode with an open access list, so that a create there has only one reason to fail.
            return self.random.choice(["", self.open_to_all, self.open_to_all[1:], path + "\0"]
                                      + [self.open_to_all + end for end in ("/", "//a", "/./a", "/.", "/\u0001", "/\ue000")])
        return path

    def data(self):
        return self.random.choice([b"", b"1", b"22", b"x" * 300])

    def version(self):
        return self.random.choice([-1, -1, -1, 0, 0, 1, 2, 3, -2])

    def access(self, path):
        chance = self.random.random()
        if chance < 0.75 or self.open_to_all[1:] in path:
            return OPEN
        if chance < 0.78:
            return []
        perms = lambda: self.random.choice([31, 31, 1, 3, 5, 9, 17, 15, 0])  # noqa: E731
        shown = [] if path in self.hidden else [(1, "world", "anyone")]
        return shown + [(perms(), *self.random.choice(self.WHO)) for _ in range(self.random.randrange(1, 4))]

    def creates(self, create2):
        """A random create request: its op and its body."""
        chance = self.random.random()
        path, flags = self.path(), self.random.choice([0, 0, 0, 1, 2, 3])
        if chance < 0.1:
            return TTL, create(path, self.data(), self.access(path), self.random.choice([5, 6]), 10 ** 9)
        if chance < 0.15:
            return CONTAINER, create(self.container, self.data(), self.access(self.container), 4)
        if flags in (2, 3) and self.random.random() < 0.5:
            path += "/"
        return self.random.choice([CREATE, create2]), create(path, self.data(), self.access(path), flags)

    def write(self, create2=CREATE2):
        chance = self.random.random()
        if chance < 0.45:
            return self.creates(create2)
        if chance < 0.7:
            return SET, set_data(self.path(), self.data(), self.version())
        return DELETE, versioned(self.path(), self.version())

    def step(self):
        random, pair = self.random, self.pair
        name = random.choice(self.names)
        watch = name != "lasting" and random.random() < 0.4
        chance = random.random()
        if chance < 0.38:
            pair.ask(name, *self.write())
        elif chance < 0.6:
            op = random.choice([EXISTS, GET, CHILDREN, CHILDREN2])
            path = self.quiet()
            pair.ask(name, GET if path in self.hidden and op == EXISTS else op, read(path, watch))
        elif chance < 0.65:
            pair.ask(name, random.choice([GET_ACL, COUNT]), text(self.quiet()))
        elif chance < 0.7:
            path = self.path()
            pair.ask(name, SET_ACL, text(path) + acl(self.access(path)) + i32(self.version()))
        elif chance < 0.8:
            # In 3.8 the type in the result of a create2 is another one.
            ops = [self.write(CREATE) for _ in range(random.randrange(0, 5))]
            if random.random() < 0.5:
                ops.insert(0, (CHECK, versioned(self.path(), self.version())))
            pair.ask(name, MULTI, multi(*ops))
        elif chance < 0.83:
            ops = [(random.choice([GET, CHILDREN]), read(self.quiet())) for _ in range(random.randrange(0, 4))]
            pair.ask(name, MULTI_READ, multi(*ops))
        elif chance < 0.88:
            path = random.choice(self.paths)
            # One mode at each path.
            pair.ask("lasting", ADD_WATCH, text(path) + i32(len(path) % 2))
        elif chance < 0.91:
            kind = random.choice([CHILDREN_TYPE, DATA_TYPE, ANY_TYPE])
            if name == "lasting":
                kind = ANY_TYPE
            pair.ask(name, REMOVE_WATCHES, text(random.choice(self.paths)) + i32(kind))
        elif chance < 0.93:
            pair.mark("seen")
        elif chance < 0.95:
            self.watches_again(name)
        elif chance < 0.97:
            pair.ask(name, EPHEMERALS, text(random.choice([None, "", "/", self.root, self.root + "/a"])))
        elif chance < 0.98:
            pair.ask(name, random.choice([SYNC, WHO_AM_I]), text(self.path()))
        else:
            self.again(name)

    def quiet(self):
        """A path to read. The root's counters differ, so it is left out."""
        while (path := self.path()) in ("", "/"):
            pass
        return path

    def watches_again(self, name):
        some = lambda: self.random.sample(self.shown, self.random.randrange(3))  # noqa: E731
        since = self.random.choice([lambda of: 0, lambda of: 2 ** 62, lambda of: of.marks.get("seen", 0)])
        if name == "lasting":
            lasting = [[path for path in some() if len(path) % 2 == mode] for mode in (0, 1)]
            lists = b"".join(map(texts, [[], [], [], *lasting]))
            # With no changes in between: only the gateway reports those.
            self.pair.ask(name, SET_WATCHES2, lambda of: i64(of.last) + lists, xid=-8)
        else:
            lists = b"".join(map(texts, [some(), some(), some()]))
            self.pair.ask(name, SET_WATCHES, lambda of: i64(since(of)) + lists, xid=-8)

    def open(self, name):
        self.pair.connect(name)
        self.known(name)

    def known(self, name):
        if name == "ann":
            self.pair.ask(name, AUTH, i32(0) + text("digest") + text(self.DIGEST), xid=-4)

    def again(self, name):
        if self.random.random() < 0.5:
            self.pair.ask(name, CLOSE)
            self.pair.drop(name)
            self.open(name)
        else:
            self.pair.drop(name)
            self.pair.resume(name, name)
            self.known(name)

    def run(self, steps):
        for name in self.names:
            self.open(name)
        for _ in range(steps):
            self.step()
        self.pair.end()


if __name__ == "__main__":
    with standalone() as port, Cluster(members=1, options=["--super-digest", SUPER]) as cluster:
        seed, steps = map(int, sys.argv[1:])
        Generator(seed, Pair(port, cluster.ports[0], f"seed {seed}")).run(steps)
