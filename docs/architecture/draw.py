#!/usr/bin/env python3
"""Draws the pictures of docs/architecture.md.

    docs/architecture/draw.py            writes layers.svg and write.svg beside this file
    docs/architecture/draw.py --check    fails if one of them is not up to date, or if the page, src/README.md
                                         or simulation/README.md names a file or a function that does not exist

The folders and arrows of layers.svg come from the sources, by the rules of tests/repository/layers.rs: a folder
uses another one when one of its files names something in it by a path from `crate` or `super`. Arrows
that follow from others are left out. Only the place of each folder is given here.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SRC = ROOT / "src"

STYLE = """
  svg { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; }
  .page { fill: #ffffff; }
  .box { fill: #f3f4f6; stroke: #6b7280; }
  .core { fill: #e3f0e3; stroke: #3f7d46; }
  .part { fill: #ffffff; stroke: #3f7d46; }
  .lane { stroke: #9ca3af; stroke-dasharray: 3 4; }
  .line { stroke: #374151; fill: none; stroke-width: 1.5; }
  .tip { fill: #374151; }
  .name { fill: #111827; font-weight: 600; font-size: 15px; }
  .text { fill: #374151; font-size: 12px; }
  .small { fill: #4b5563; font-size: 11px; }
  .step { fill: #f3f4f6; stroke: #6b7280; }
  .wait { fill: #fbeecb; stroke: #a16207; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; }
    .box, .step { fill: #1c2430; stroke: #8b949e; }
    .core { fill: #16291a; stroke: #6fbf78; }
    .part { fill: #0d1117; stroke: #6fbf78; }
    .lane { stroke: #6e7681; }
    .line { stroke: #c9d1d9; }
    .tip { fill: #c9d1d9; }
    .name { fill: #f0f6fc; }
    .text { fill: #d6dde5; }
    .small { fill: #b3bcc6; }
    .wait { fill: #3a2c0c; stroke: #d4a72c; }
  }
"""


class Picture:
    """An SVG of a size, made of boxes, lines and words."""

    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
        ]

    def box(self, x, y, width, height, kind="box", radius=6):
        self.parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>'
        )

    def words(self, x, y, text, kind="text", anchor="start"):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>')

    def line(self, x1, y1, x2, y2, kind="line"):
        self.parts.append(f'<path class="{kind}" d="M{x1} {y1}L{x2} {y2}"/>')

    def arrow(self, x1, y1, x2, y2):
        """A vertical or a horizontal arrow."""
        sign = 1 if (x2 > x1 or y2 > y1) else -1
        if x1 == x2:
            tip = f"M{x2} {y2}l-5 {-9 * sign}h10z"
            self.line(x1, y1, x2, y2 - 8 * sign)
        else:
            tip = f"M{x2} {y2}l{-9 * sign} -5v10z"
            self.line(x1, y1, x2 - 8 * sign, y2)
        self.parts.append(f'<path class="tip" d="{tip}"/>')

    def text(self):
        return "\n".join(self.parts + ["</svg>", ""])


# ---- The layers ----


def listed(name):
    """A list of words in tests/repository/layers.rs."""
    text = (ROOT / "tests/repository/layers.rs").read_text()
    body = re.search(rf"const {name}: &\[&str\] =\s*&\[(.*?)\];", text, re.S).group(1)
    return re.findall(r'"([^"]+)"', body)


def is_test(file):
    return any(
        part.endswith(("tests", "_test")) or part in ("model", "conformance")
        for part in file.with_suffix("").parts
    )


def module(file):
    parts = list(file.with_suffix("").parts)
    return parts[:-1] if parts[-1] == "mod" else parts


def code(file):
    text = (SRC / file).read_text().split("#[cfg(test)]\nmod tests {")[0]
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("//"))


def uses():
    """Which folder of src uses which."""
    files = sorted(path.relative_to(SRC) for path in SRC.rglob("*.rs"))
    modules = {tuple(module(file)): file.parent for file in files}
    beside = listed("BESIDE")
    found = set()
    for file in files:
        if file.parts[0] in beside or is_test(file):
            continue
        for path in re.findall(r"[\w:]*::[\w:]*", code(file)):
            parts = [part for part in path.split("::") if part]
            if not parts or parts[0] not in ("crate", "super"):
                continue
            base = [] if parts[0] == "crate" else module(file)[:-1]
            parts = parts[1:]
            while parts and parts[0] == "super":
                base, parts = base[:-1], parts[1:]
            name = base + parts
            folders = (modules.get(tuple(name[:n])) for n in range(len(name), 0, -1))
            used = next((folder for folder in folders if folder is not None), None)
            if used is not None and used.parts and used.parts[0] != file.parts[0]:
                found.add((file.parts[0], used.parts[0]))
    return found


def reduced(edges):
    """The arrows that do not follow from others."""
    below = {}
    for one, other in edges:
        below.setdefault(one, set()).add(other)

    def reaches(one, other):
        return other in below.get(one, ()) or any(reaches(at, other) for at in below.get(one, ()))

    return sorted(
        (one, other)
        for one, other in edges
        if not any(reaches(at, other) for at in below[one] if at != other)
    )


def modules_of(folder):
    """What a folder holds, by name, without tests."""
    names = set()
    for path in (SRC / folder).iterdir():
        file = path.relative_to(SRC)
        name = path.stem
        if (path.is_dir() or path.suffix == ".rs") and name != "mod" and not is_test(file):
            names.add(name)
    return sorted(names)


# x, y, width, height of each folder.
PLACES = {
    "admin": (30, 26, 500, 66),
    "recipes": (30, 122, 310, 98),
    "recovery": (360, 122, 170, 98),
    "testing": (550, 122, 140, 98),
    "gateway": (710, 122, 120, 98),
    "api": (30, 252, 800, 66),
    "runtime": (30, 352, 800, 66),
    "transport": (30, 452, 320, 98),
    "storage": (370, 452, 300, 98),
    "sync": (690, 452, 140, 98),
    "addressing": (30, 584, 190, 66),
    "security": (240, 584, 110, 66),
    "encryption": (590, 684, 150, 66),
    "node": (30, 684, 540, 110),
    "machine": (30, 828, 540, 66),
    "types": (30, 928, 800, 66),
}
CORE = ("types", "machine", "node")


def wrapped(names, width, lines):
    """Names in so many lines of a width; what finds no place is counted."""
    per_line = int(width / 6.1)
    result, line, left = [], "", list(names)
    while left:
        more = (line + ", " if line else "") + left[0]
        reserve = 11 if len(result) == lines - 1 and len(left) > 1 else 0
        if len(more) + reserve <= per_line:
            line = more
            left.pop(0)
            continue
        if len(result) == lines - 1:
            result.append(f"{line}, and {len(left)} more")
            return result
        result.append(line + ",")
        line = ""
    return result + [line]


def layers():
    picture = Picture(860, 1078, "The layers of quorate: which folder of src uses which")
    edges = reduced(uses())
    folders = {path.name for path in SRC.iterdir() if any(path.rglob("*.rs"))} - set(listed("BESIDE"))
    if folders != set(PLACES):
        sys.exit(f"folders without a place, or places without a folder: {folders ^ set(PLACES)}")
    for one, other in edges:
        x1, y1, width1, height1 = PLACES[one]
        x2, y2, width2, _ = PLACES[other]
        left, right = max(x1, x2), min(x1 + width1, x2 + width2)
        if left >= right or y1 >= y2:
            sys.exit(f"{other} must lie below {one} in the picture")
        at = (left + right) // 2
        picture.arrow(at, y1 + height1, at, y2)
    for folder, (x, y, width, height) in PLACES.items():
        picture.box(x, y, width, height, "core" if folder in CORE else "box")
        picture.words(x + 12, y + 22, folder, "name")
        if folder == "node":
            parts(picture, x + 12, y + 34, width - 24)
            continue
        for n, line in enumerate(wrapped(modules_of(folder), width - 24, 4 if height > 90 else 2)):
            picture.words(x + 12, y + 40 + 15 * n, line, "small")
    picture.words(30, 1020, "An arrow goes from a folder to one that it uses; arrows that follow from others are left out.")
    beside = ", ".join(name for name in listed("BESIDE") if name != "lib.rs")
    picture.words(30, 1040, "Green: deterministic, without threads, clocks, sockets and files.")
    picture.words(30, 1060, f"Beside the layers: {beside}.")
    return picture.text()


def parts(picture, x, y, width):
    """The folders inside node, and its files below them."""
    folders = [path.name for path in sorted((SRC / "node").iterdir()) if path.is_dir()]
    folders = [name for name in folders if name != "tests"]
    each = (width - 8 * (len(folders) - 1)) / len(folders)
    for n, name in enumerate(folders):
        left = round(x + n * (each + 8), 1)
        picture.box(left, y, round(each, 1), 34, "part", 4)
        picture.words(round(left + each / 2, 1), y + 21, name, "text", "middle")
    files = [name for name in modules_of("node") if name not in folders]
    for n, line in enumerate(wrapped(files, width, 2)):
        picture.words(x, y + 58 + 15 * n, line, "small")


# ---- The way of a write ----

LANES = [
    (90, "caller", "a thread or a task"),
    (290, "follower", "quorate-node"),
    (460, "follower", "quorate-disk"),
    (650, "leader", "quorate-node"),
    (820, "leader", "quorate-disk"),
]
CALLER, NODE, DISK, LEADER, LEADER_DISK = range(5)

# (lane, y, lines, kind) or (from, to, y, words). The numbers are the page's steps.
WRITE = [
    (CALLER, 80, ["1, 2  check, queue,", "wake; then wait"], "step"),
    (CALLER, NODE, 102, "request"),
    (NODE, 120, ["3, 4  number it,", "send it"], "step"),
    (NODE, LEADER, 142, "forward"),
    (LEADER, 160, ["5, 6, 7  admit,", "batch, propose"], "step"),
    (LEADER, NODE, 176, "append"),
    (LEADER, LEADER_DISK, 190, "log write"),
    (NODE, 208, ["8, 9, 10  guard,", "log in memory"], "step"),
    (NODE, DISK, 230, "log write"),
    (LEADER_DISK, 214, ["11, 12  write,", "fdatasync"], "wait"),
    (DISK, 256, ["11, 12  write,", "fdatasync"], "wait"),
    (LEADER_DISK, LEADER, 272, "13 written"),
    (DISK, NODE, 312, "13 written"),
    (NODE, 326, ["14  release the", "acknowledgement"], "step"),
    (NODE, LEADER, 348, "acknowledgement"),
    (LEADER, 366, ["15  a majority has it:", "commit, apply"], "step"),
    (LEADER, NODE, 388, "commit index"),
    (NODE, 406, ["16, 17, 18  apply,", "outcome, new tree"], "step"),
    (NODE, CALLER, 428, "19  reply"),
]


def write():
    picture = Picture(900, 500, "The way of a write from the caller to the disks and back")
    for x, who, what in LANES:
        picture.words(x, 34, who, "name", "middle")
        picture.words(x, 52, what, "small", "middle")
        picture.line(x, 62, x, 462, "lane")
    for row in WRITE:
        if isinstance(row[2], list):
            lane, y, lines, kind = row
            x = LANES[lane][0]
            picture.box(x - 66, y, 132, 40, kind)
            for n, line in enumerate(lines):
                picture.words(x, y + 17 + 15 * n, line, "small", "middle")
    for row in WRITE:
        if not isinstance(row[2], list):
            one, other, y, words = row
            x1, x2 = LANES[one][0], LANES[other][0]
            sign = 1 if x2 > x1 else -1
            start, end = x1, x2
            for lane, top, _, _ in (row for row in WRITE if isinstance(row[2], list)):
                if top <= y <= top + 40:
                    start = x1 + 66 * sign if lane == one else start
                    end = x2 - 66 * sign if lane == other else end
            picture.arrow(start, y, end, y)
            picture.words((start + end) // 2, y - 5, words, "small", "middle")
    picture.words(
        24, 486,
        "The numbers are the steps below. Yellow: the only waits for a device, at the same time on each member. "
        "Further members do as the follower does.",
        "small",
    )
    return picture.text()


# ---- The page ----


def unknown_names():
    """Files and functions that the page, or one of those beside the code, names and the sources do not have."""
    pages = [HERE.parent / "architecture.md", SRC / "README.md", ROOT / "simulation/README.md"]
    text = "\n".join(page.read_text() for page in pages)
    wrong = []
    for match in re.finditer(r"`((?:[\w-]+/)+\w+\.rs)`(?:[:,]?((?:\s+`[a-z_]+`,?)+))?", text):
        file, functions = match.group(1), re.findall(r"`(\w+)`", match.group(2) or "")
        path = next((at / file for at in (SRC, SRC / "node", ROOT) if (at / file).exists()), None)
        if path is None:
            wrong.append(f"no file {file}")
            continue
        source = path.read_text()
        wrong += [f"no function {name} in {file}" for name in functions if not re.search(rf"\bfn {name}\b", source)]
    return wrong


def main():
    pictures = {"layers.svg": layers(), "write.svg": write()}
    if sys.argv[1:] == ["--check"]:
        wrong = unknown_names()
        wrong += [
            f"{name} is not up to date: run docs/architecture/draw.py"
            for name, text in pictures.items()
            if not (HERE / name).exists() or (HERE / name).read_text() != text
        ]
        if wrong:
            sys.exit("\n".join(wrong))
        return
    for name, text in pictures.items():
        (HERE / name).write_text(text)


if __name__ == "__main__":
    main()
