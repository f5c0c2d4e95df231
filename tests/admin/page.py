#!/usr/bin/env python3
"""The page of an admin endpoint in a real browser, while a leader is lost.

    cargo build --example admin --features admin
    tests/admin/page.py [--program target/debug/examples/admin] [--pictures DIR]

It starts the example (three members, traffic, a lock), opens the page in headless Chromium, and checks over the
DevTools protocol: no error in the console, values equal to the endpoint's own, a leader that is lost and comes
back, the tree by keyboard and 30 levels deep, an edit, a parent's children, whole tables on a phone. With --pictures it also draws all views in
both themes and on a phone. Without Chromium it prints that and exits with 0.
"""

import argparse
import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

PATIENCE = 60
DEPTH = 30
CHILDREN = 120


class Socket:
    """A WebSocket to Chromium, as far as the DevTools protocol needs one."""

    def __init__(self, url):
        rest = url.removeprefix("ws://")
        address, _, path = rest.partition("/")
        host, _, port = address.partition(":")
        self.stream = socket.create_connection((host, int(port)), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.stream.recv(65536)
        head, self.data = self.data.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text):
        data = text.encode()
        mask = os.urandom(4)
        length = len(data)
        if length < 126:
            head = struct.pack("!BB", 0x81, 0x80 | length)
        elif length < 65536:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, length)
        self.stream.sendall(head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))

    def take(self, count):
        while len(self.data) < count:
            more = self.stream.recv(1 << 20)
            if not more:
                raise EOFError("Chromium has closed the connection")
            self.data += more
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def receive(self):
        text = b""
        while True:
            first, length = self.take(2)
            length &= 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self.take(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self.take(8))
            text += self.take(length)
            if first & 0x80:
                return text.decode()


class Browser:
    """Headless Chromium with one page."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="quorate-page-")
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars",
             f"--user-data-dir={self.profile}", "about:blank"],
            stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        port = os.path.join(self.profile, "DevToolsActivePort")
        wait(lambda: os.path.exists(port) and open(port).read().count("\n") >= 1, "Chromium listens")
        number = open(port).read().split()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list"))
        page = next(page for page in pages if page["type"] == "page")
        self.socket = Socket(page["webSocketDebuggerUrl"])
        self.number = 0
        self.problems = []
        for domain in ["Page", "Runtime", "Log"]:
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"])[:400])
        if message.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ["error", "warning", "assert"]:
            self.problems.append(str(parameters["args"])[:400])
        if message.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ["error", "warning"]:
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, script, what):
        return wait(lambda: self.run(script), what)

    def open(self, url):
        self.run("window.isOld = true")
        self.call("Page.navigate", url=url)
        self.wait("!window.isOld && document.readyState === 'complete'", f"{url} is loaded")

    def screen(self, width, height, dark=False, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=theme)

    def press(self, key):
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


class Example:
    """The cluster: each member's address, and that of its page."""

    def __init__(self, program, token=None):
        environment = os.environ | ({"QUORATE_ADMIN_TOKEN": token} if token else {})
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pages = {}
        while (line := self.line()) != "ready":
            self.learn(line)

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the example has ended")
        return line.strip()

    def learn(self, line):
        address, page = line.split()
        self.pages[address] = page

    def send(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def wait(condition, what):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.1)
    raise TimeoutError(f"not within {PATIENCE} s: {what}")


def read(url):
    return json.load(urllib.request.urlopen(url))


def text(id):
    return f"document.getElementById('{id}').textContent"


def post(here, path, data=""):
    request = urllib.request.Request(here + "tree/" + urllib.parse.quote(path[1:]), data.encode(), method="POST")
    assert urllib.request.urlopen(request).status == 201


def check_deep(browser, here):
    """The selected znode of a deep tree is in sight, also after a change near the root; a parent lists its children."""
    path = ""
    for level in range(DEPTH):
        path += f"/level-{level:02}-of-a-deep-tree"
        post(here, path)
    at = "document.querySelector('#nodes [aria-selected=true] .name').getBoundingClientRect()"
    panel = "document.getElementById('nodes').getBoundingClientRect()"
    is_within = "at.top >= panel.top && at.bottom <= Math.min(panel.bottom, innerHeight) && at.left >= panel.left && at.left < panel.left + 150 && at.right <= panel.right"
    in_sight = f"((at, panel) => {is_within})({at}, {panel})"
    for width, phone in [(1280, False), (390, True)]:
        browser.screen(width, 844, phone=phone)
        browser.run("location.hash = '#/tree'")
        browser.run(f"location.hash = '#/tree{path}'")
        browser.wait(f"document.querySelector('#znode h3')?.textContent === '{path}'", "the deepest znode is shown")
        browser.wait(in_sight, f"its name is in sight at a width of {width}")
        assert browser.run("document.querySelector('#znode h3').offsetHeight") < 100, "its path leaves room"
        post(here, f"/beside-{width}")
        browser.wait(f"nodes.items.has('/beside-{width}')", "a change near the root is shown")
        assert browser.run(in_sight), f"its name has left the sight at a width of {width}"
    browser.screen(1280, 900)
    for child in range(CHILDREN):
        post(here, f"/beside-390/child-{child:03}")
    browser.run("document.querySelector('#znode h3 a').click()")
    browser.wait("document.querySelector('#znode h3')?.textContent === '/level-00-of-a-deep-tree'", "its path has links")
    browser.run("location.hash = '#/tree/beside-390'")
    browser.wait(f"document.getElementById('children-count').textContent === '{CHILDREN}'", "children are counted")
    rows = "[...document.querySelectorAll('#children-list tbody th')].map((one) => one.textContent)"
    assert browser.run(rows) == [f"child-{child:03}" for child in range(100)]
    browser.run("[...document.querySelectorAll('#children button')].pop().click()")
    assert len(browser.run(rows)) == CHILDREN
    post(here, "/beside-390/another")
    browser.wait(f"{rows}[0] === 'another'", "a new child is listed")
    browser.run("document.querySelector('#children-list a').click()")
    browser.wait("document.querySelector('#znode h3')?.textContent === '/beside-390/another'", "a child is opened")
    assert browser.run("document.getElementById('children').hidden"), "it has no children"
    print("ok: the selected znode of a deep tree is in sight; a parent lists its children")


def check(browser, example, pictures):
    leader = read(next(iter(example.pages.values())) + "status")["leader"]
    here = next(page for address, page in example.pages.items() if address != leader)
    browser.screen(1280, 900)
    browser.open(here)
    browser.wait("document.querySelectorAll('.member').length === 3", "three members are shown")

    # The page shows the values that the endpoint returns.
    status, members = read(here + "status"), read(here + "members")
    assert browser.run(text("where")) == f"seen from {status['address']}"
    shown = browser.run("[...document.querySelectorAll('.member .address')].map((one) => one.textContent)")
    assert sorted(shown) == [member["address"] for member in members["members"]], shown
    leads = "document.querySelector('.member.leads .address')?.textContent ?? ''"
    assert browser.run(leads) == members["leader"] == leader
    browser.wait("document.querySelector('#tiles .value').textContent === 'Healthy'", "the cluster is healthy")
    browser.wait("document.querySelectorAll('#changes li').length > 3", "changes are shown")
    # A colour is a member's, whatever the order of the rows.
    marks = "Object.fromEntries([...document.querySelectorAll('.member')].map((one) => [one.querySelector('.address').textContent, one.querySelector('.mark').className]))"
    colours = browser.run(marks)
    assert len(set(colours.values())) == len(colours) == 3, colours
    for _ in range(2):
        browser.run("document.querySelector('#members .sort').click()")
        assert browser.run(marks) == colours
    print("ok: members and status are those of the endpoint; changes are shown")

    # Znodes, by keyboard.
    browser.run("location.hash = '#/tree/app/settings'")
    browser.wait("document.querySelector('#znode h3')?.textContent === '/app/settings'", "a znode is shown")
    assert '"id": 90071992547409931' in browser.run("document.querySelector('#znode pre').textContent")
    browser.run("document.querySelector('#nodes [aria-selected=true]').focus()")
    for key in ["Home", "ArrowRight", "ArrowDown"]:
        browser.press(key)
    assert browser.run("document.activeElement.getAttribute('role')") == "treeitem"
    browser.run("location.hash = '#/tree/app/banner'")
    browser.wait("document.querySelector('#znode h3')?.textContent === '/app/banner'", "another one is shown")
    browser.run("location.hash = '#/tree/app/key'")
    browser.wait("document.querySelector('#znode pre')?.textContent.includes('ff 00 17 2a')", "data as hexadecimal digits")
    button = "[...document.querySelectorAll('#znode button')].find((one) => one.textContent === '%s')"
    browser.run("location.hash = '#/tree/app'")
    browser.wait("document.querySelector('#znode h3')?.textContent === '/app'", "the parent is shown")
    browser.run(button % "Edit" + ".click()")
    browser.run("document.querySelector('#znode textarea').value = 'edited <b>here</b>'")
    browser.run(button % "Save" + ".click()")
    browser.wait("document.querySelector('#znode pre')?.textContent === 'edited <b>here</b>'", "the edit is shown")
    assert read(here + "tree/app")["data"] == {"text": "edited <b>here</b>"}
    # Whatever its name, by its link, from another view, and by the box.
    for name in ["".join(map(chr, range(33, 127))).replace("/", ""), "10.0.0.1:7400", "a b", "\u00e4 100%"]:
        path = f"/app/{name}"
        post(here, path, name)
        shown = f"document.querySelector('#znode h3')?.textContent === {json.dumps(path)}"
        data = f"document.querySelector('#znode pre')?.textContent === {json.dumps(name)}"
        for way in [f"nodes.choose({json.dumps(path)})", "document.getElementById('tab-tree').click()",
                    f"document.getElementById('path').value = {json.dumps(path)}; document.querySelector('#go button').click()"]:
            browser.run("location.hash = '#/cluster'")
            browser.wait("view === 'cluster'", "another view is shown")
            browser.run(way)
            browser.wait(f"view === 'tree' && {shown} && {data}", f"{path} is shown by {way}")
        assert browser.run(f"linkedPath(location.hash) === {json.dumps(path)}")
    print("ok: the tree by keyboard, JSON with long numbers, hexadecimal digits, an edit, any name")

    check_deep(browser, here)

    browser.run("location.hash = '#/locks'")
    browser.wait("document.querySelectorAll('.lock .holds').length >= 2", "locks are shown")
    # What is late is in red; a timer is paused.
    row = "[...document.querySelectorAll('.lock')].find((one) => one.textContent.includes('/app/timers'))"
    browser.wait(f"!!{row} && {row}.textContent.includes('1 need attention')", "a late timer is counted")
    browser.run(f"{row}.querySelector('.open').click()")
    browser.wait("document.querySelector('table.work .bad')?.textContent.startsWith('late by ')", "it is shown")
    pauses = "[...document.querySelectorAll('table.work tr')].find((one) => one.textContent.startsWith('report'))?.querySelector('button')"
    browser.run(pauses + ".click()")
    browser.wait("document.getElementById('question').open", "the page asks")
    browser.run("document.querySelector('#question .danger').click()")
    browser.wait(f"{pauses}?.textContent === 'Resume'", "it is paused")
    assert read(here + "locks?path=/app/timers")[0]["table"]["rows"][1]["state"] == "paused"
    browser.wait(f"{row}.textContent.includes(', 0 need attention')", "and not late")
    print("ok: a late timer is seen, and paused")

    browser.run("location.hash = '#/sessions'")
    browser.wait("document.querySelectorAll('#session-list tbody tr').length >= 3", "sessions are shown")
    rates = "[...document.querySelectorAll('#session-list [data-label=\"Requests/s\"]')].map((one) => Number(one.textContent))"
    browser.wait(f"Math.max(...{rates}) > 3", "the session that writes has its requests a second")
    opens = "[...document.querySelectorAll('#session-list td.number button.open')][0]"
    browser.wait(f"!!{opens}", "a session has ephemerals")
    browser.run(opens + ".click()")
    browser.wait("document.querySelectorAll('#session-list .below li a').length >= 1", "its ephemerals are shown")
    browser.run("location.hash = '#/tree/app'")
    browser.run("document.getElementById('search-text').value = 'SETTINGS'")
    browser.run("document.querySelector('#search button').click()")
    browser.wait("document.querySelector('#found-list a')?.textContent === '/app/settings'", "a path is found")
    browser.run("location.hash = '#/cluster'")
    browser.wait("document.querySelector('#plots .lines').getAttribute('d')", "the history is plotted")
    print("ok: locks, sessions with their ephemerals, a search, the history")

    # An action is named, asked for, and done.
    moves = "[...document.querySelectorAll('#members .act')][0]"
    other = next(address for address, page in example.pages.items() if address != leader and page != here)
    address = "[...document.querySelectorAll('.member .address')].find((one) => one.textContent === %s)"
    browser.run(address % json.dumps(other) + ".click()")
    browser.wait(f"!!{moves}", "the lead can be moved")
    browser.run(moves + ".click()")
    browser.wait("document.getElementById('question').open", "the page asks")
    assert "lead?" in browser.run(text("question"))
    browser.run("document.querySelector('#question .danger').click()")
    browser.wait(f"{leads} === {json.dumps(other)}", "it leads")
    leader = other
    print("ok: the lead is moved")

    if pictures:
        draw(browser, here, pictures)

    # The leader is lost, and comes back.
    browser.screen(1280, 900)
    browser.run("location.hash = '#/cluster'")
    example.send(leader)
    assert example.line() == f"closed {leader}"
    browser.wait(f"![{json.dumps(leader)}, ''].includes({leads})", "another one leads")
    def shows(now):
        return now not in [None, leader] and browser.run(leads) == now and now

    now = wait(lambda: shows(read(here + "members")["leader"]), "the page and the endpoint name the same leader")
    story = text("story")
    # "leads now"; or "leads", if the page has connected again meanwhile and so begins its story again.
    browser.wait(f"{story}.includes('{now} leads')", "the story has the new leader")
    browser.wait(f"{story}.includes('{leader} is silent')", "and the lost one")
    browser.wait("!document.getElementById('banner').hidden", "the banner is up")
    # It is one cause, and the others that cannot reach it need nothing.
    browser.wait(f"{text('member-count')} === '3; 1 silent'", "it is counted once")
    browser.open(here)
    browser.wait("document.querySelectorAll('.member').length === 3", "the page is loaded again")
    assert browser.run(marks) == colours, "a member has another colour after the page was loaded again"
    if pictures:
        browser.picture(os.path.join(pictures, "lost.png"))
    example.send("again")
    example.learn(example.line())
    browser.wait(f"{story}.includes('{leader} reports again')", "it reports again")
    browser.wait("document.getElementById('banner').hidden", "the banner is gone")
    print("ok: a leader that is lost and comes back")

    # A phone.
    browser.screen(390, 844, phone=True)
    for view in ["cluster", "tree/app/settings", "locks", "sessions"]:
        browser.run(f"location.hash = '#/{view}'")
        time.sleep(0.5)
        wide = browser.run("document.documentElement.scrollWidth")
        assert wide <= 390, f"{view} is {wide} pixels wide on a phone"
        # Each cell of a table is in sight, or below it.
        cut = browser.run("[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length")
        hidden = browser.run("[...document.querySelectorAll(`#${view} tbody td`)].filter((one) => !one.offsetWidth).length")
        assert (cut, hidden) == (0, 0), f"{view}: {cut} tables are cut and {hidden} cells hidden"
    assert browser.problems == [], browser.problems
    print("ok: it fits a phone; no errors in the console")

    # The page's own member is closed, and comes back elsewhere: the page reports that. (Chromium logs each
    # refusal.)
    browser.screen(1280, 900)
    own = next(address for address, page in example.pages.items() if page == here)
    example.send(own)
    assert example.line() == f"closed {own}"
    browser.wait("document.getElementById('link').dataset.state === 'lost'", "the loss of its own member is shown")
    assert "does not answer" in browser.run(text("banner"))
    assert browser.run("getComputedStyle(document.getElementById('app')).opacity") == "0.45", "it is dimmed"
    others = sorted(page for page in example.pages.values() if page != here)
    links = browser.run("JSON.stringify([...document.querySelectorAll('#elsewhere a')].map((a) => a.href))")
    assert sorted(json.loads(links)) == others, f"{links} are not the pages of the others, {others}"
    example.send("again")
    example.learn(example.line())
    assert example.pages[own] == here
    browser.wait("document.getElementById('link').dataset.state === 'live'", "the page has connected again")
    browser.wait("document.getElementById('banner').hidden", "the cluster is healthy again")
    print("ok: the page reports the loss of its own member, and connects again")


def check_token(browser, page, token):
    browser.screen(390, 844, phone=True)
    browser.open(page)
    browser.wait("!document.getElementById('login').hidden", "the page asks for the token")
    assert browser.problems == [], browser.problems
    enter = "document.getElementById('token').value = '%s'; document.querySelector('#login button').click()"
    browser.run(enter % "another-token-of-its-length")
    browser.wait(f"{text('login-error')} !== ''", "a wrong token is refused")
    browser.run(enter % token)
    browser.wait("document.querySelectorAll('.member').length === 3", "three members are shown")
    browser.open(page)
    browser.wait("document.querySelectorAll('.member').length === 3", "the token is kept in the tab")
    print("ok: the token is asked for and kept")


def draw(browser, here, pictures):
    os.makedirs(pictures, exist_ok=True)
    time.sleep(20)
    for view in ["cluster", "tree/app/settings", "locks", "sessions"]:
        browser.run(f"location.hash = '#/{view}'")
        time.sleep(2.5)
        name = view.split("/")[0]
        for suffix, width, height, dark, phone in [
            ("light", 1280, 900, False, False), ("dark", 1280, 900, True, False), ("phone", 390, 844, False, True),
            ("phone-dark", 390, 844, True, True),
        ]:
            browser.screen(width, height, dark, phone)
            time.sleep(0.5)
            browser.picture(os.path.join(pictures, f"{name}-{suffix}.png"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="target/debug/examples/admin")
    parser.add_argument("--pictures")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("skipped: there is no chromium (Debian: apt-get install chromium)")
        return
    for token in ["a-token-of-some-length", None]:
        example = Example(arguments.program, token)
        try:
            browser = Browser(chromium)
            try:
                if token:
                    check_token(browser, next(iter(example.pages.values())), token)
                else:
                    check(browser, example, arguments.pictures)
            except BaseException:
                print("console:", *browser.problems[:10], sep="\n  ", file=sys.stderr)
                raise
            finally:
                browser.close()
        finally:
            example.close()


if __name__ == "__main__":
    main()
