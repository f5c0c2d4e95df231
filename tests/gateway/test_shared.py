"""One path, three languages: Rust in the application's process, Curator, and kazoo.

Whoever comes first holds, in each order, and the next one follows when it has released.
"""

import itertools
import tempfile
import unittest

from cluster import wait_until
from contenders import Application, Kazoo, Lines, curator


class Shared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.application = cls.enterClassContext(Application())
        classes = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="quorate-shared-"))
        program = curator(classes, cls.application.hosts)
        cls.addClassCleanup(program.end)
        cls.rust = Lines(cls.application.members[0], "rust", "rust")
        cls.java = Lines(program, "java", "curator")
        cls.python = Kazoo(cls.application.hosts)
        cls.addClassCleanup(cls.python.end)

    def children(self, path):
        return self.python.client.get_children(path)

    def exclude(self, path, kinds):
        """Checks every order of two of the contenders: a contender and the kind of what it wants."""
        for (one, wants), (other, also) in itertools.permutations(kinds, 2):
            with self.subTest(path=path, holds=f"{one.language} {wants}", waits=f"{other.language} {also}"):
                one.begin(wants, path)
                one.wait_held()
                self.assertEqual(other.attempt(also, path), False)
                other.begin(also, path)
                wait_until("both are there", lambda: len(self.children(path)) == 2)
                one.release()
                other.wait_held()
                self.assertEqual(one.attempt(wants, path), False)
                other.release()
                wait_until("nothing is left", lambda: not self.children(path))

    def share(self, path, kinds):
        for (one, wants), (other, also) in itertools.permutations(kinds, 2):
            with self.subTest(path=path, holds=f"{one.language} {wants}", joins=f"{other.language} {also}"):
                one.begin(wants, path)
                one.wait_held()
                self.assertEqual(other.attempt(also, path), True)
                one.release()
                wait_until("nothing is left", lambda: not self.children(path))

    def test_a_lock_excludes(self):
        self.exclude("/rust-and-curator", [(self.rust, "lock"), (self.java, "lock")])
        self.exclude("/rust-and-kazoo", [(self.rust, "lock"), (self.python, "lock")])
        self.exclude("/all", [(self.rust, "lock"), (self.java, "lock"), (self.python, "lock-shared")])

    def test_a_lock_of_kazoos_names_needs_no_setting_there(self):
        self.exclude("/kazoo", [(self.rust, "lock-kazoo"), (self.python, "lock-default")])

    def test_readers_share_and_writers_exclude(self):
        for readers, writers in (
            ([(self.rust, "read"), (self.java, "read")], [(self.rust, "write"), (self.java, "write")]),
            ([(self.rust, "read"), (self.python, "read")], [(self.rust, "write"), (self.python, "write")]),
            ([(self.rust, "read-kazoo"), (self.python, "read-default")],
             [(self.rust, "write-kazoo"), (self.python, "write-default")]),
        ):
            path = f"/rw/{readers[0][1]}-{readers[1][0].language}"
            self.share(path, readers)
            self.exclude(path, writers)
            for (reader, reads), (writer, writes) in itertools.product(readers, writers):
                if reader is not writer:
                    self.exclude(path, [(reader, reads), (writer, writes)])

    def test_one_leads(self):
        self.exclude("/latch", [(self.rust, "latch"), (self.java, "latch")])
        self.exclude("/latch-kazoo", [(self.rust, "latch"), (self.python, "latch")])
        self.exclude("/selector", [(self.rust, "selector"), (self.java, "selector")])
        self.exclude("/selector-all", [(self.rust, "selector"), (self.java, "selector"), (self.python, "lock-shared")])
        self.exclude("/election", [(self.rust, "latch-kazoo"), (self.python, "election-default")])


if __name__ == "__main__":
    unittest.main()
