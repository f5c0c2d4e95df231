#!/usr/bin/env python3
"""quorate's gateway and ZooKeeper itself, with the same client: see README.md."""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time

import systems
from systems import HERE, MEMBERS, ZooKeeper

ROOT = os.path.dirname(os.path.dirname(HERE))


class Gateway(systems.System):
    """Three processes of `quorate serve`."""
    name, first_port, ports_each, needs = "gateway", 30, 2, ["cargo"]

    def server(self, i):
        members = [f"127.0.0.1:{port}" for port in self.ports[MEMBERS:]]
        return [os.path.join(systems.RELEASE, "quorate"), "serve", "--peers", ",".join(members),
                "--listen", members[i], "--data-dir", os.path.join(self.dirs[i], "data"),
                "--zookeeper", self.address(i), "--max-client-cnxns", "0", "--max-cnxns", "20000"]

    mode = ZooKeeper.mode


def build():
    command = ["cargo", "build", "--release", "--locked", "-p", "quorate-cli"]
    subprocess.run(command, check=True, cwd=ROOT)
    command = ["cargo", "bench", "--no-run", "--locked", "--features", "gateway", "--bench", "gateway",
               "--message-format", "json"]
    output = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
    built = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return next(each["executable"] for each in built
                if each.get("executable") and each["target"]["name"] == "gateway")


def usage(system):
    """Memory in MiB and processor seconds of the three processes."""
    memory, busy = 0, 0
    for process in system.processes:
        with open(f"/proc/{process.pid}/status") as status:
            memory += int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024
        with open(f"/proc/{process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
            busy += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return memory, busy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--idle", type=int, default=10000, help="idle sessions; 0: none")
    parser.add_argument("--client", help="the built client")
    parser.add_argument("--port-base", type=int, default=27400)
    arguments = parser.parse_args()
    client = arguments.client or build()
    for run in range(arguments.runs):
        for kind in (Gateway, ZooKeeper):
            with tempfile.TemporaryDirectory(dir=os.path.join(ROOT, "target")) as data:
                with kind(data, arguments.port_base) as system:
                    # A follower first: its clients are two thirds of all.
                    servers = ",".join(system.address(i) for i in system.order[1:] + system.order[:1])
                    print(f"run {run + 1}: {kind.name}", flush=True)
                    subprocess.run([client, "--bench", "--connect", servers], check=True)
                    if run or not arguments.idle:
                        continue
                    before, _ = usage(system)
                    holder = subprocess.Popen([client, "--bench", "--connect", servers, "--idle",
                                               str(arguments.idle)], stdout=subprocess.PIPE, text=True)
                    holder.stdout.readline()
                    memory, busy = usage(system)
                    began = time.monotonic()
                    time.sleep(20)
                    later, busier = usage(system)
                    share = (busier - busy) / (time.monotonic() - began) * 100
                    print(f"{arguments.idle} idle sessions: {later - before:.0f} MiB more, {share:.1f} % of a core",
                          flush=True)
                    holder.kill()
                    holder.wait()


if __name__ == "__main__":
    main()
