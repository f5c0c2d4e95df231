"""Members whose disks are all stuck: no write can be stored, but sessions are kept alive."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from cluster import Cluster, wait_until, word
from zookeeper import CREATE, PING, Wire, create, hello, i32, text

# Every sync waits while the file exists.
STUCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static void wait_for_disk(void) { while (access(FILE_NAME, F_OK) == 0) usleep(20000); }
int fdatasync(int file) { wait_for_disk(); return ((int (*)(int)) dlsym(RTLD_NEXT, "fdatasync"))(file); }
int fsync(int file) { wait_for_disk(); return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(file); }
"""
SESSION = 5
TICK = 0.5


@unittest.skipUnless(sys.platform == "linux", "it needs LD_PRELOAD")
class StuckDisks(unittest.TestCase):
    def test_clients_stay(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="quorate-gateway-")))
        stuck = folder / "stuck"
        (folder / "stuck.c").write_text(STUCK)
        command = ["cc", "-shared", "-fPIC", f'-DFILE_NAME="{stuck}"', "-o", folder / "stuck.so", folder / "stuck.c", "-ldl"]
        subprocess.run(command, check=True)
        with mock.patch.dict(os.environ, LD_PRELOAD=str(folder / "stuck.so")):
            cluster = self.enterContext(Cluster(options=["--tick-time", str(int(TICK * 1000))]))
        port = cluster.ports[(cluster.leader() + 1) % 3]
        idle, writer = Wire(port), Wire(port)
        for wire in (idle, writer):
            self.addCleanup(wire.close)
            wire.send(text(hello(SESSION * 1000)))
            self.assertIsNotNone(wire.frame())
        stuck.touch()
        writer.send(text(i32(1, CREATE) + create("/a")))
        # Longer than a session lives without its client, and than many ticks.
        until = time.monotonic() + 2 * SESSION
        while time.monotonic() < until:
            for wire in (idle, writer):
                wire.send(text(i32(-2, PING)))
            self.assertIsNotNone(idle.frame(), cluster.log(0))
            time.sleep(TICK / 2)
        self.assertEqual(word(port, "isro"), "rw")
        stuck.unlink()
        # The write comes to its end, and then the pings behind it.
        self.assertEqual(writer.frame()[:4], i32(1))
        wait_until("the last ping is answered", lambda: writer.frame()[:4] == i32(-2))


if __name__ == "__main__":
    unittest.main()
