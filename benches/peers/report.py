"""The tables and the charts of what was measured."""
import json, os, statistics
from collections import namedtuple
from html import escape

# What is measured, in which workload's line and field, the floor's line for it with the number of durable writes in
# one operation, and the name in the charts (None: in the tables only).
Row = namedtuple("Row", "title workload field floor writes chart")

TIMES = [
    Row("append of 200 B to a file of zeros, one fdatasync, p50", None, "p50_us", "append", 1, None),
    Row("the same, p99", None, "p99_us", "append", 1, None),
    Row("150 B over TCP to another thread and back, p50", None, "p50_us", "round_trip", 1, None),
    Row("a thread wakes another, p50", None, "p50_us", "hand_over", 1, None),
    Row("replication of 200 B to two of three, one fdatasync each, p50", None, "p50_us", "floor_1", 1, None),
    Row("set of 100 B at the leader, p50", "set_leader", "p50_us", "floor_1", 1, "set at the leader"),
    Row("the same, p99", "set_leader", "p99_us", "floor_1", 1, None),
    Row("the same, p99.9", "set_leader", "p999_us", "floor_1", 1, None),
    Row("the same, maximum", "set_leader", "max_us", "floor_1", 1, None),
    Row("set of 100 B at the leader, 40 seconds with checkpoints, p50", "set_checkpoints", "p50_us", "floor_1", 1, None),
    Row("the same, p99.9", "set_checkpoints", "p999_us", "floor_1", 1, None),
    Row("set of 100 B at a follower, p50", "set_follower", "p50_us", "floor_1", 1, "set at a follower"),
    Row("the same, p99", "set_follower", "p99_us", "floor_1", 1, None),
    Row("the same, p99.9", "set_follower", "p999_us", "floor_1", 1, None),
    Row("the same, maximum", "set_follower", "max_us", "floor_1", 1, None),
    Row("watch: set to event at another member, p50", "watch", "p50_us", "floor_1", 1, "watch: set to event"),
    Row("lock acquired and released at the leader", "lock_leader", "cycle_us", "floor_1", 2, "lock at the leader"),
    Row("lock acquired and released at a follower", "lock_follower", "cycle_us", "floor_1", 2, "lock at a follower"),
    Row("lock handed over, 16 contenders, p50", "lock_16", "handoff_p50_us", "floor_1", 1, "lock handed over"),
    Row("pipelined, 1,000 outstanding, 100 B, p50", "pipelined", "p50_us", "floor_1000", 1, None),
    Row("the same, p99", "pipelined", "p99_us", "floor_1000", 1, None),
    Row("pipelined, 1,000 outstanding, 1 KiB, p50", "pipelined_1k", "p50_us", "floor_1000_1k", 1, None),
    Row("the same, p99", "pipelined_1k", "p99_us", "floor_1000_1k", 1, None),
    Row("set of 100 B beside a caller that sets 1 MB again and again, p50", "set_beside", "p50_us", "floor_1m", 1, None),
    Row("the same, p99", "set_beside", "p99_us", "floor_1m", 1, None),
    Row("get by a client of another process, p50", "get_client", "p50_us", "round_trip", 1, "get by a client"),
    Row("linearizable get at a follower, p50", "get_linear", "p50_us", "round_trip", 1, "linearizable get"),
    Row("children of a znode that has 100,000, p50", "list", "p50_us", None, 1, None),
    Row("set to the last of the events of 1,000 sessions, p50", "fanout_1000", "p50_us", None, 1, None),
]
RATES = [
    Row("set of 100 B by 64 clients at three members", "set_64", "ops_per_s", "floor_64", 1, "set, 64 clients"),
    Row("pipelined, 1,000 outstanding, 100 B", "pipelined", "ops_per_s", "floor_1000", 1, "pipelined, 100 B"),
    Row("pipelined, 1,000 outstanding, 1 KiB", "pipelined_1k", "ops_per_s", "floor_1000_1k", 1, "pipelined, 1 KiB"),
    Row("pipelined, random ones of 100,000, 100 B", "pipelined_large", "ops_per_s", "floor_1000", 1, "pipelined, of 100,000"),
    Row("70 % gets, 30 % sets, by 64 clients", "mix_64", "ops_per_s", None, 1, "mix, 64 clients"),
    Row("items taken by 16 of a queue into which 16 put", "queue_32", "ops_per_s", "floor_16", 1, "queue, 16 and 16"),
    Row("session opened, ephemeral, closed; 16 clients", "session_16", "ops_per_s", "floor_16", 3, "sessions, 16 clients"),
]
FAILOVER = [
    Row("no leader goes: pipelined, 1,000 outstanding, 100 B", "pipelined", "gap_ms", None, 1, None),
    Row("leader killed (SIGKILL)", "failover_KILL", "gap_ms", None, 1, "killed (SIGKILL)"),
    Row("leader frozen (SIGSTOP)", "failover_STOP", "gap_ms", None, 1, "frozen (SIGSTOP)"),
    Row("leader closed as planned", "failover_CLOSE", "gap_ms", None, 1, "closed as planned"),
]
TABLES = [
    ("Times in microseconds: less is better", TIMES),
    ("Operations a second: more is better", RATES),
    ("Longest gap between two writes in milliseconds: less is better", FAILOVER),
]


class Results:
    """Lines of figures, each with its `system` ("floor" is one too), `row` and `run`."""

    def __init__(self, lines):
        self.lines = lines
        measured = {line["system"] for line in lines}
        self.systems = [name for name in ("quorate", "zookeeper", "etcd") if name in measured]

    def values(self, row, system):
        """Its values in the order of size, a value for each run."""
        if system == "floor":
            like = row.field in ("p99_us", "p999_us", "max_us", "ops_per_s")
            workload, field = row.floor, row.field if like else "p50_us"
            scale = 1 / row.writes if field == "ops_per_s" else row.writes
        else:
            workload, field, scale = row.workload, row.field, 1
        found = [line for line in self.lines if line["system"] == system and line["row"] == workload]
        if field == "cycle_us":  # one client: its whole cycle is what its rate says
            return sorted(1e6 / line["ops_per_s"] for line in found if line.get("ops_per_s"))
        return sorted(scale * line[field] for line in found if field in line)

    def median(self, row, system):
        values = self.values(row, system)
        return statistics.median(values) if values else None

    def markdown(self):
        return "\n\n".join([self.table(title, rows) for title, rows in TABLES] + self.failures())

    def table(self, title, rows):
        columns = ["floor"] + self.systems
        out = [f"| {title} | " + " | ".join(columns + ["quorate / best peer", "quorate / floor"]) + " |"]
        out.append("| --- |" + " ---: |" * (len(columns) + 2))
        best = max if rows is RATES else min
        for row in rows:
            own = self.median(row, "quorate")
            peers = [m for s in self.systems if s != "quorate" and (m := self.median(row, s))]
            cells = [cell(self.values(row, system)) for system in columns]
            cells += [ratio(own, best(peers, default=None)), ratio(own, self.median(row, "floor"))]
            out.append(f"| {row.title} | " + " | ".join(cells) + " |")
        return "\n".join(out)

    def write_page(self, root, command, date):
        """Replaces the tables of docs/performance.md, and their figures in benches/figures.json."""
        page, figures = os.path.join(root, "docs/performance.md"), os.path.join(root, "benches/figures.json")
        with open(page) as f:
            text = f.read()
        for title, rows in TABLES:
            begin = text.index(f"| {title} |")
            text = text[:begin] + self.table(title, rows) + text[text.index("\n\n", begin):]
        with open(page, "w") as f:
            f.write(text)
        with open(figures) as f:
            former = json.load(f)
        compared = [figure for figure in former if "value" not in figure]
        quoted = {figure["name"]: figure["quoted"] for figure in compared if "quoted" in figure}
        new = [figure | {"command": command, "date": date} for figure in self.figures()]
        for figure in new:
            if figure["name"] in quoted:
                figure["quoted"] = quoted[figure["name"]]
        with open(figures, "w") as f:
            json.dump(new + [figure for figure in former if "value" in figure], f, indent=1, ensure_ascii=False)
            f.write("\n")

    def figures(self):
        """Each row of the tables with a name of its own and its medians, as the tables show them."""
        for title, rows in TABLES:
            for row in rows:
                if row.title.startswith("the same, "):
                    name = f"{base}, {row.title.removeprefix('the same, ')}"
                else:
                    name, base = row.title, row.title.removesuffix(", p50")
                figure = {"name": name, "unit": "us" if rows is TIMES else "ms" if rows is FAILOVER else "a second"}
                for system in ["floor"] + self.systems:
                    if (median := self.median(row, system)) is not None:
                        figure[system] = float(number(median).replace(",", ""))
                yield figure

    def failures(self):
        bad = [line for line in self.lines if line.get("failed") or line.get("errors")]
        told = [f"- {b['system']}, {b['row']}, run {b['run']}: {b.get('failed') or '%d errors' % b['errors']}" for b in bad]
        return ["Failed:\n\n" + "\n".join(told)] if told else []

    def charts(self, folder):
        os.makedirs(folder, exist_ok=True)
        for name, title, axis, rows, shared in [
            ("times", "Time of one operation, median", "microseconds, less is better", TIMES, True),
            ("rates", "Operations a second, each kind on a scale of its own", "operations a second, more is better",
             RATES, False),
            ("failover", "Longest gap between two writes while the leader goes", "milliseconds, less is better",
             FAILOVER, True),
        ]:
            with open(os.path.join(folder, name + ".svg"), "w") as f:
                f.write(self.chart(title, axis, [row for row in rows if row.chart], shared))

    def chart(self, title, axis, rows, shared):
        """Bars for each row and system, with a thin line from the least to the greatest run."""
        # The floor's rates would make all others invisible: they are in the table.
        systems = self.systems + (["floor"] if shared else [])
        groups = [(row.chart, [(s, v) for s in systems if (v := self.values(row, s))]) for row in rows]
        groups = [(name, bars) for name, bars in groups if bars]
        largest = max((v[-1] for _, bars in groups for _, v in bars), default=1)
        left, width, bar, y = 150, 480, 18, 64
        out = []

        def line(path):
            out.append(f'<path d="{path}" class="line"/>')

        def text(x, y, content, anchor="start"):
            out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>')

        def rectangle(x, y, width, height, kind):
            out.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" class="{kind}"/>')

        out.append(f'<text x="{left}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>')
        x = left
        for system in [s for s in systems if any(s == bar for _, bars in groups for bar, _ in bars)]:
            rectangle(x, 36, 12, 12, system)
            text(x + 17, 46, system)
            x += 95
        for at, (name, bars) in enumerate(groups):
            scale = width / nice(largest if shared else max(v[-1] for _, v in bars))
            text(left - 10, y + len(bars) * bar / 2 + 3, name, "end")
            top = y
            for system, values in bars:
                median = statistics.median(values)
                rectangle(left, y, max(1.5, median * scale), bar - 3, system)
                middle = y + (bar - 3) / 2
                if len(values) > 1:
                    line(f"M{left + values[0] * scale:.1f} {middle}H{left + values[-1] * scale:.1f}")
                text(left + values[-1] * scale + 5, middle + 4, number(median))
                y += bar
            line(f"M{left} {top - 3}V{y}")
            if not shared or at == len(groups) - 1:
                line(f"M{left} {y}H{left + width}")
                for tick in range(5):
                    x = left + width * tick / 4
                    line(f"M{x:.0f} {y}v4")
                    text(x, y + 16, number(width / scale * tick / 4), "middle")
                y += 20
            y += 14
        text(left + width / 2, y + 8, axis, "middle")
        size = f'viewBox="0 0 720 {y + 22}" font-family="sans-serif" font-size="12"'
        page = f'<rect width="720" height="{y + 22}" class="page"/>'
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, page, *out, "</svg>", ""])


STYLE = """<style>
.page { fill: #ffffff } text { fill: #24292f } .line { stroke: #57606a; fill: none }
.quorate { fill: #d1622b } .zookeeper { fill: #4c82c3 } .etcd { fill: #3f9e78 } .floor { fill: #a8b0b8 }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } text { fill: #e6edf3 } .line { stroke: #9aa4ae } .floor { fill: #6a737d }
}
</style>"""


def nice(largest):
    """The end of an axis: the next round number."""
    step = 10 ** (len(str(int(largest))) - 1)
    return next(step * n for n in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10) if step * n >= largest)


def number(x):
    return f"{x:,.0f}" if x >= 100 or x == int(x) else f"{x:.1f}"


def cell(values):
    if not values:
        return "-"
    spread = f" [{number(values[0])}..{number(values[-1])}]" if len(values) > 1 else ""
    return number(statistics.median(values)) + spread


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else "-"
