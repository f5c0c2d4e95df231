#!/usr/bin/env python3
"""Compares quorate with ZooKeeper and etcd on this machine: see README.md.

Prints Markdown tables; progress goes to the standard error output.
"""
import argparse, json, os, platform, shutil, signal, subprocess, sys, time

sys.dont_write_bytecode = True
from report import Results
from systems import PROGRAM, ROOT, SYSTEMS, Quorate, lines

TARGET = os.path.join(ROOT, "target", "peers")


def workloads(system, options):
    """What the clients are to run, in their order, each with the row of the results that it fills."""
    window = f":warm={options.warm}:secs={options.seconds}"
    work = ["init"] + [each + window for each in (
        # Not a row: the JVMs compile what they run often.
        f"set:row=warmup:clients=3:out=100:warm={options.warmup}",
        "set:row=set_leader:on=leader",
        "set:row=set_follower:on=follower",
        "set:row=set_64:clients=64",
        "set:row=pipelined:on=leader:out=1000",
        "set:row=pipelined_1k:on=leader:out=1000:size=1024",
        f"watch:row=watch:rounds={options.rounds}",
        "lock:row=lock_leader:on=leader",
        "lock:row=lock_follower:on=follower",
        "lock:row=lock_16:clients=16",
        f"{system.session}:row=session_16:clients=16",
        "client:row=get_client:on=follower",
        "get:row=get_linear:on=follower:linear=1",
        "mix:row=mix_64:clients=64",
        "queue:row=queue_32:clients=32:path=/bench/queue",
    )]
    work.append("fanout:row=fanout_1000:rounds=60:sessions=1000")
    if system.name == "quorate":
        # Long enough for five checkpoints of each member: what they cost the writes beside them.
        work.append(f"set:row=set_checkpoints:on=leader:warm={options.warm}:secs={options.checkpoints}")
    large = f"path=/bench/large:keys={options.large}"
    work.append(f"fill:row=fill:{large}")
    work += [each + window for each in (
        f"list:row=list:on=follower:{large}",
        f"set:row=pipelined_large:on=leader:out=1000:{large}",
        # Last, since its values stay.
        "set:row=set_beside:clients=2:beside=1000000",
    )]
    return work


def measure(system, options, save):
    """One run of a system: all workloads on one cluster, and then its leader is taken away again and again."""
    with system:
        work = workloads(system, options)
        # A third of this is the windows themselves.
        patience = 90 + 3 * len(work) * (options.warm + options.seconds) + options.checkpoints
        for line in system.run(work, patience):
            save(system.name, line)
        led = system.order[0]
        for how in system.signals:
            for _ in range(options.failovers):
                time.sleep(2)  # a leader that has just been elected may hand over at once
                system.wait()
                leader = system.order[0]
                if led not in (None, leader):
                    save(system.name, {"row": "all", "failed": "the lead moved during the workloads"})
                led = None
                pid = system.processes[leader].pid
                work = f"failover:row=failover_{how}:signal={how}:pid={pid}:before={options.before}"
                for line in system.run([work], 120):
                    save(system.name, line)
                system.kill(leader)
                system.start(leader)


def measure_floor(options, save):
    path = os.path.join(options.data, "floor")
    try:
        for line in lines([PROGRAM, "floor", path, str(options.seconds)], 120 + 20 * options.seconds):
            save("floor", line)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def build(options):
    """Builds the clients of what is installed, and returns those systems."""
    chosen = []
    for name in options.systems:
        missing = SYSTEMS[name].missing()
        if missing:
            note(f"{name} is left out: no {', '.join(missing)}")
        else:
            note(f"building the client of {name}")
            SYSTEMS[name].build()
            chosen.append(SYSTEMS[name])
    return chosen


def machine(options):
    """What the figures depend on, for the first line of the results."""
    about = {"system": "machine", "row": "about", "cpus": os.cpu_count(), "kernel": platform.release(),
             "load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d %H:%M"), "seconds": options.seconds}
    for name, command in (("etcd", ["etcd", "--version"]), ("packages", ["dpkg-query", "-W", "zookeeper", "etcd-server"]),
                          ("commit", ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])):
        if shutil.which(command[0]):
            about[name] = " ".join(subprocess.run(command, capture_output=True, text=True).stdout.split())
    return about


def note(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def run(options):
    """Measures, and returns the file with the results."""
    if os.getloadavg()[0] > 0.5:
        note(f"others use this machine (load average {os.getloadavg()[0]:.1f}): do not trust the figures")
    about = machine(options)
    systems = build(options)
    os.sync()  # what the builds have written, before the disk is measured
    os.makedirs(options.out, exist_ok=True)
    os.makedirs(options.data, exist_ok=True)
    kind = subprocess.run(["stat", "-f", "-c", "%T", options.data], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        sys.exit(f"{options.data} is in memory ({kind}): choose a disk with --data")
    path = os.path.join(options.out, time.strftime("results-%Y%m%d-%H%M%S.jsonl"))
    with open(path, "w") as results:
        results.write(json.dumps(about) + "\n")
        for number in range(options.runs):
            def save(system, line):
                results.write(json.dumps(dict(line, system=system, run=number)) + "\n")
                results.flush()

            # In turn, and each time another one first: what changes on the machine meanwhile
            # meets all of them.
            turn = number % max(1, len(systems))
            steps = [(system.name, lambda system=system: measure(system(options.data, options.port_base), options, save))
                     for system in systems[turn:] + systems[:turn]]
            if Quorate in systems:
                steps.insert(0, ("floor", lambda: measure_floor(options, save)))
            for name, step in steps:
                note(f"run {number + 1} of {options.runs}: {name}")
                try:
                    step()
                except (OSError, RuntimeError, ValueError) as error:
                    note(f"{name}: {error}")
                    save(name, {"row": "all", "failed": str(error)})
    try:
        os.rmdir(options.data)
    except OSError:
        pass  # somebody else's files
    return path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, help="how often each system is measured (3)")
    p.add_argument("--systems", default=",".join(SYSTEMS), help="which, if they are installed (quorate,zookeeper,etcd)")
    p.add_argument("--seconds", type=float, default=6, help="how long each window is (6)")
    p.add_argument("--failovers", type=int, default=3, help="leaders taken away in each run, for each way (3)")
    p.add_argument("--quick", action="store_true", help="windows of one second and one run: whether all works")
    p.add_argument("--out", default=TARGET, metavar="DIR", help="for the results, as JSON lines (target/peers)")
    p.add_argument("--data", default=os.path.join(TARGET, "data"), metavar="DIR",
                   help="for the systems' data: on a real disk (target/peers/data)")
    p.add_argument("--plots", metavar="DIR", help="writes charts there, as SVG")
    p.add_argument("--page", action="store_true", help="writes the tables of docs/performance.md and benches/figures.json")
    p.add_argument("--port-base", type=int, default=27400, help="the first of 21 ports on loopback (27400)")
    p.add_argument("--from", dest="source", metavar="FILE", help="only prints the results of an earlier run")
    options = p.parse_args()
    options.systems = options.systems.split(",")
    options.data = os.path.abspath(options.data)
    # Seconds before a window, and of the first load; rounds of the watch; seconds before a leader is taken away.
    options.warm, options.warmup, options.rounds, options.before = 2, 12, 3000, 3
    options.checkpoints = 40
    options.large = 100_000
    if options.quick:
        options.seconds, options.warm, options.warmup = 1, 0.5, 1
        options.rounds, options.failovers, options.before, options.checkpoints = 300, 1, 1, 1
    options.runs = options.runs or (1 if options.quick else 3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and cleans up, as by Ctrl-C
    path = options.source or run(options)
    with open(path) as f:
        results = Results([json.loads(line) for line in f])
    print(results.markdown())
    if options.plots:
        results.charts(options.plots)
    if options.page:
        with open(path) as f:
            about = json.loads(f.readline())
        command = "benches/peers/run.py --page --plots docs/performance"
        for name in ("runs", "seconds", "failovers"):
            command += f" --{name} {getattr(options, name):g}"
        results.write_page(ROOT, command, about["date"].split()[0])
    note(f"results: {path}")


if __name__ == "__main__":
    main()
