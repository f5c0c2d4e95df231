#!/usr/bin/env python3
"""Restarts three instances of the service, one after the other, while jobs come in.

    rolling_restart.py PROGRAM

An instance is restarted as soon as the others are ready. A rolling restart needs no other condition. In the
end every job that was accepted has its result.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

PATIENCE = 60


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def ask(port, method, path, body=None):
    """The status and the body; `None` without an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


def until(what, is_it):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if is_it():
            return
        time.sleep(0.02)
    raise SystemExit(f"{what}: not within {PATIENCE} s")


class Instances:
    def __init__(self, program, directory):
        self.program, self.directory = program, directory
        ports = free_ports(6)
        self.peers, self.http = [f"127.0.0.1:{port}" for port in ports[:3]], ports[3:]
        self.processes = [self.start(at) for at in range(3)]

    def start(self, at):
        peers = [self.peers[at]] + [peer for peer in self.peers if peer != self.peers[at]]
        name, http = f"instance-{at}", f"127.0.0.1:{self.http[at]}"
        log = open(f"{self.directory}/{name}.log", "a")
        command = [self.program, name, http, f"{self.directory}/{name}", *peers]
        return subprocess.Popen(command, stdout=log, stderr=log)

    def is_ready(self, at):
        return (ask(self.http[at], "GET", "/ready") or [0])[0] == 200

    def restart(self, at):
        others = [other for other in range(3) if other != at]
        until("the others are ready", lambda: all(map(self.is_ready, others)))
        begun = time.monotonic()
        self.processes[at].send_signal(signal.SIGTERM)
        code = self.processes[at].wait(timeout=PATIENCE)
        if code != 0:
            raise SystemExit(f"instance {at} ended with {code}")
        stopped = time.monotonic()
        self.processes[at] = self.start(at)
        until("it is ready", lambda: self.is_ready(at))
        ready = time.monotonic()
        print(f"instance {at}: stopped in {stopped - begun:.2f} s, ready again after {ready - stopped:.2f} s")

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=PATIENCE)


def main(program):
    with tempfile.TemporaryDirectory() as directory:
        instances = Instances(program, directory)
        try:
            until("all are ready", lambda: all(map(instances.is_ready, range(3))))
            accepted, stop = [], threading.Event()

            def send():
                number = 0
                while not stop.is_set():
                    # Like a user, this tries the next instance, with the same id, if one does not answer.
                    for at in range(3):
                        port = instances.http[(number + at) % 3]
                        answer = ask(port, "POST", f"/jobs/{number}", b"greet the world")
                        if answer and answer[0] == 202:
                            accepted.append(number)
                            break
                    number += 1

            sender = threading.Thread(target=send)
            sender.start()
            for at in range(3):
                instances.restart(at)
            stop.set()
            sender.join()
            port = instances.http[0]
            for number in accepted:
                path = f"/results/{number}"
                until(f"the result of job {number}", lambda: (ask(port, "GET", path) or [0])[0] == 200)
            until("all are registered", lambda: len(json.loads(ask(port, "GET", "/instances")[1])) == 3)
            if not accepted:
                raise SystemExit("no job was accepted")
            print(f"{len(accepted)} jobs were accepted while all instances were restarted, and each has its result")
        finally:
            instances.stop()


if __name__ == "__main__":
    main(sys.argv[1])
