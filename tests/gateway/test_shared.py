"""One path, four languages: Rust in the application's process, Curator, kazoo, and Go's lock.

Whoever comes first holds, in each order, and the next one follows when it has released.
"""

import itertools
import json
import subprocess
import tempfile
import unittest

from cluster import PROGRAM, wait_until
from contenders import Application, Kazoo, Lines, curator, go


class Shared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.application = cls.enterClassContext(Application())
        classes = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="quorate-shared-"))
        program = curator(classes, cls.application.hosts, "java")
        cls.addClassCleanup(program.end)
        cls.rust = Lines(cls.application.members[0], "rust", "rust")
        cls.java = Lines(program, "java", "curator")
        program = go(classes, cls.application.hosts)
        cls.addClassCleanup(program.end)
        cls.go = Lines(program, "go", "go")
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

    def test_a_lock_of_go_excludes(self):
        """It has no attempt that gives up."""
        others = [(self.rust, "lock"), (self.java, "lock"), (self.python, "lock-shared"), (self.rust, "reentrant")]
        for number, (other, kind) in enumerate(others):
            path = f"/go-{number}"
            with self.subTest(holds=other.language, waits="go"):
                other.begin(kind, path)
                other.wait_held()
                self.go.begin("lock", path)
                wait_until("both are there", lambda: len(self.children(path)) == 2)
                # Behind an answer to a later request, so that it would hold by now.
                self.python.client.sync(path)
                self.assertNotIn("* go holds", self.go.program.printed)
                other.release()
                self.go.wait_held()
            with self.subTest(holds="go", waits=other.language):
                self.assertEqual(other.attempt(kind, path), False)
                other.begin(kind, path)
                wait_until("both are there", lambda: len(self.children(path)) == 2)
                self.go.release()
                other.wait_held()
                other.release()
                wait_until("nothing is left", lambda: not self.children(path))

    def test_locks_that_are_acquired_again_and_several_as_one(self):
        self.exclude("/again", [(self.rust, "reentrant"), (self.java, "lock")])
        self.exclude("/again-kazoo", [(self.rust, "reentrant"), (self.python, "lock")])
        for one, kind, other in (self.rust, "lock", self.java), (self.java, "lock", self.rust), (
                self.python, "lock", self.rust), (self.python, "lock-shared", self.java):
            with self.subTest(holds=one.language, wants_both=other.language):
                one.begin(kind, "/both")
                one.wait_held()
                self.assertEqual(other.attempt("multi", "/both"), False)
                one.release()
                wait_until("nothing is left", lambda: not self.children("/both"))
                self.assertEqual(other.attempt("multi", "/both"), True)

    def test_holders_are_asked_to_release(self):
        rust = self.application.members[0]
        for holder, name, other, command in (self.java.program, "java", rust, "rust revoke"), (
                rust, "rust", self.java.program, "java revoke"):
            self.assertEqual(holder.run(f"{name} until-asked /asked"), "done")
            holder.wait_for(f"* {name} holds")
            self.assertIn(other.run(f"{command} /asked"), ("done", "1"))
            holder.wait_for(f"* {name} was asked", f"* {name} has released")

    def test_ephemerals_that_are_kept_are_seen_by_all(self):
        self.python.client.ensure_path("/kept")
        self.assertEqual(self.application.members[0].run("rust keep /kept/rust up"), "done")
        self.assertEqual(self.java.program.run("java keep /kept/java up"), "done")
        for name in "rust", "java":
            path = f"/kept/{name}"
            wait_until(f"{path} is there", lambda: self.python.client.exists(path))
            data, stat = self.python.client.get(path)
            self.assertEqual(data, b"up")
            self.assertNotEqual(stat.ephemeralOwner, 0)
            # Whoever deletes it, it comes back.
            self.python.client.delete(path)
            wait_until(f"{path} is back", lambda: self.python.client.exists(path))

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

    def test_permits_are_given_to_so_many_as_there_are(self):
        for path, kinds in ("/permits", [(self.rust, "semaphore"), (self.java, "semaphore")]), (
                "/permits-kazoo", [(self.rust, "semaphore-kazoo"), (self.python, "semaphore-default")]):
            for (one, wants), (other, also) in itertools.permutations(kinds, 2):
                with self.subTest(path=path, holds=one.language, joins=other.language):
                    one.begin(wants, path)
                    one.wait_held()
                    self.assertEqual(other.attempt(also, path), True)
                    other.begin(also, path)
                    other.wait_held()
                    self.assertEqual(one.attempt(wants, path), False)
                    self.assertEqual(other.attempt(also, path), False)
                    one.release()
                    self.assertEqual(other.attempt(also, path), True)
                    other.release()
                    leases = path + "/leases" if path == "/permits" else path
                    wait_until("nothing is left", lambda: not self.children(leases))

    def test_counters_count_together(self):
        for form, python in (("text", {}), ("int", {"support_curator": True})):
            counter = self.python.client.Counter(f"/count/{form}", **python)
            counter += 5
            self.assertEqual(self.application.members[0].run(f"rust add-{form} /count/{form} 2"), "7")
            counter -= 10
            self.assertEqual(counter.value, -3)
        self.assertEqual(self.java.program.run("java add-int /count/int 4"), "1")
        self.assertEqual(self.java.program.run("java add-long /count/long 4"), "4")
        self.assertEqual(self.application.members[0].run("rust add-long /count/long -5"), "-1")
        self.assertEqual(self.java.program.run("java add-long /count/long 4"), "3")

    def test_a_barrier_is_one(self):
        barrier = self.python.client.Barrier("/barrier")
        for program in self.java.program, self.application.members[0]:
            name = "java" if program is self.java.program else "rust"
            self.assertEqual(program.run(f"{name} set-barrier /barrier"), "done")
            self.assertFalse(barrier.wait(0))
            self.assertEqual(self.java.program.run("java is-barrier /barrier"), "true")
            self.assertEqual(self.application.members[0].run("rust is-barrier /barrier"), "true")
            self.assertTrue(barrier.remove())
            self.assertEqual(self.java.program.run("java is-barrier /barrier"), "false")
            self.assertEqual(self.application.members[0].run("rust is-barrier /barrier"), "false")

    def test_members_see_each_other(self):
        party = self.python.client.Party("/group", "python")
        party.join()
        rust = self.application.members[0]
        self.assertEqual(rust.run("rust join-group /group rust__party__"), "done")
        self.assertEqual(self.java.program.run("java join-group /group java__party__"), "done")
        # A member's data is what kazoo lists.
        all_of_them = ["java__party__", "python", "rust__party__"]
        wait_until("all are there", lambda: sorted(party) == all_of_them)
        names = sorted([party.node, "java__party__", "rust__party__"])
        wait_until("Curator has them", lambda: self.java.program.run("java group /group") == ",".join(names))
        self.assertEqual(rust.run("rust group /group"), ",".join(names))
        party.leave()
        names.remove(party.node)
        wait_until("Curator has them", lambda: self.java.program.run("java group /group") == ",".join(names))
        self.assertEqual(rust.run("rust group /group"), ",".join(names))

    def test_a_shallow_party_is_a_group(self):
        rust = self.application.members[0]
        self.assertEqual(rust.run("rust join-group /shallow rust"), "done")
        party = self.python.client.ShallowParty("/shallow", "python")
        party.join()
        self.assertEqual(self.java.program.run("java join-group /shallow java"), "done")
        names = f"{party.node},java,rust"
        wait_until("Curator has all", lambda: self.java.program.run("java group /shallow") == names)
        self.assertEqual(rust.run("rust group /shallow"), names)
        self.assertEqual(len(party), 3)
        party.leave()
        self.assertEqual(rust.run("rust group /shallow"), "java,rust")

    def test_values_and_lists_are_plain_znodes(self):
        rust, client = self.application.members[0], self.python.client
        client.create("/plain/value", b"of-kazoo", makepath=True)
        self.assertEqual(rust.run("rust config /plain/value"), "of-kazoo")
        self.assertEqual(rust.run("rust set-config /plain/value of-rust"), "done")
        self.assertEqual(client.get("/plain/value")[0], b"of-rust")
        self.assertEqual(rust.run("rust push /plain/list one"), "done")
        client.create("/plain/list/item-", b"two", sequence=True)
        self.assertEqual(rust.run("rust push /plain/list three"), "done")
        self.assertEqual(rust.run("rust list /plain/list"), "one,two,three")
        names = sorted(client.get_children("/plain/list"))
        self.assertEqual([client.get(f"/plain/list/{name}")[0] for name in names], [b"one", b"two", b"three"])

    def test_services_are_found_in_both_languages(self):
        self.assertEqual(self.application.members[0].run("rust register /services a"), "done")
        self.assertEqual(self.java.program.run("java register /services b"), "done")
        both = "a 10.0.0.7:80 a,b 10.0.0.8:81 b"
        self.assertEqual(self.java.program.run("java services /services"), both)
        self.assertEqual(self.application.members[1].run("rust services /services"), both)

    def test_operators_see_holders_and_waiters_of_all(self):
        self.python.begin("lock", "/seen")
        self.python.wait_held()
        self.java.begin("lock", "/seen")
        self.rust.begin("lock", "/seen")
        wait_until("all are there", lambda: len(self.children("/seen")) == 3)
        command = [PROGRAM, "--peers", ",".join(self.application.peers), "locks", "/seen", "--json"]
        [found] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self.assertEqual((found["path"], found["recipe"]), ("/seen", "lock"))
        [holder], waiters = found["holders"], found["waiters"]
        self.assertEqual(holder["label"], "python")
        # By the port of its connection to a member's gateway.
        port = self.python.client._connection._socket.getsockname()[1]
        self.assertRegex(holder["held_by"], rf"^127\.0\.0\.1:{port} through ")
        self.assertEqual(len(waiters), 2)
        gateways = [waiter for waiter in waiters if " through " in waiter["held_by"]]
        self.assertEqual(len(gateways), 1, waiters)
        self.python.release()
        for each in (self.java, self.rust) if waiters[0] in gateways else (self.rust, self.java):
            each.wait_held()
            each.release()


if __name__ == "__main__":
    unittest.main()
