"""What the dashboard costs the server with 1 000 and 1 000 000 users: nobody looks, one does, ten do; and each page."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable

from .. import fleet
from ..harness import Bar, Contestant, Figures, Metric, Results, Scenario, Turn
from ..report import number
from ..stats import median
from ..wiretap import WireTap
from .fill_worker import BUFFER, RUNS
from .processes import cpu_seconds, node, versions
from .viewers import Reader, viewers

SIZES = {"1 000 users": 1_000, "1 000 000 users": 1_000_000}
SMALL, LARGE = SIZES
QUICK = 50  # a fiftieth
LOOKING = (0, 1, 10)
SECONDS, PERIOD, ALONE = 10.0, 5.0, 3.0
"""How long is counted: while nobody looks (the node then measures every ten seconds), while somebody does, and before
there is a node."""
LOADS = 15
FLAT = 1.2
LIMIT = 300.0
PAGES = {
    "overview": ("/", "Overview"),
    "buffers": ("/buffers", BUFFER),
    "oldest": (f"/buffers/{BUFFER}", "user-"),
    "largest": (f"/buffers/{BUFFER}?order=largest", "user-"),
    "runs": ("/runs", RUNS),
    "agent": (f"/runs/{RUNS}", "user-"),
    "locks": ("/locks", "lock-"),
    "audit": ("/audit", "run-"),
}
"""Where it is, and what it must show."""
NAMES = {"oldest": "a buffer, oldest users", "largest": "a buffer, largest users", "agent": "runs of a collection"}


def contestants() -> Iterable[Contestant]:
    return [Contestant(name, str(size), versions(), ours=True) for name, size in SIZES.items()]


def turn(who: Contestant, now: Turn) -> Figures:
    users = max(1_000, int(who.lib) // (QUICK if now.quick else 1))
    command = [sys.executable, "-m", "bench.node.fill_worker", now.server.addr, str(users)]
    figures: Figures = fleet.run([command], LIMIT).reports[0]
    cpu = now.server.cpu_seconds()
    time.sleep(ALONE)
    figures["cpu_alone"] = (now.server.cpu_seconds() - cpu) / ALONE * 100
    with WireTap(now.server.port) as tap, node("--url", f"redis://{tap.addr}") as running:
        for looking in LOOKING:
            figures |= _watch(now, tap, running.pid, running.port, looking)
        figures |= _sent(tap, running.port)
    with node("--url", f"redis://{now.server.addr}") as running:
        figures |= _loaded(now, running.port)
    return figures


def _watch(now: Turn, tap: WireTap, pid: int, port: int, looking: int) -> Figures:
    """Commands per second on the wire, processor time of the server and of the node, while so many look."""
    with viewers(port, looking) as watching:
        time.sleep(1.0)  # what a first look costs is counted with the pages
        seen, sent, calls = sum(watching.patches), tap.commands, _calls(now)
        cpu, spent, begun = now.server.cpu_seconds(), cpu_seconds(pid), time.monotonic()
        time.sleep(PERIOD if now.quick or looking else SECONDS)
        elapsed = time.monotonic() - begun
        figures = {
            f"sent_{looking}": (tap.commands - sent) / elapsed,
            f"calls_{looking}": (_calls(now) - calls) / elapsed,
            f"cpu_{looking}": (now.server.cpu_seconds() - cpu) / elapsed * 100,
            f"node_cpu_{looking}": (cpu_seconds(pid) - spent) / elapsed * 100,
            f"patches_{looking}": (sum(watching.patches) - seen) / elapsed,
        }
        if looking and sum(watching.patches) == seen:
            raise fleet.WorkerFailed("nothing was sent to those who look")
    return figures


def _calls(now: Turn) -> int:
    """Commands that the server executed, those inside scripts too; without the bench's own questions."""
    stats = now.server.client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if not name.startswith("cmdstat_info"))


def _sent(tap: WireTap, port: int) -> Figures:
    """Commands for one load of each page. The sample that all share is fresh, or the middle leaves it out."""
    figures = {}
    with contextlib.closing(Reader(port)) as reader:
        for name, (path, expected) in PAGES.items():
            counts = []
            for _ in range(5):
                before = tap.commands
                reader.load(path, expected)
                counts.append(float(tap.commands - before))
            figures[f"{name}_sent"] = median(counts)
    return figures


def _loaded(now: Turn, port: int) -> Figures:
    """Time of one load of each page, its bytes, and the server's processor time for it. The pages take turns."""
    times: dict[str, list[float]] = {name: [] for name in PAGES}
    spent, sizes = dict.fromkeys(PAGES, 0.0), dict.fromkeys(PAGES, 0)
    with contextlib.closing(Reader(port)) as reader:
        for path, expected in PAGES.values():
            reader.load(path, expected)  # templates are compiled by the first
        for _ in range(LOADS):
            for name, (path, expected) in PAGES.items():
                cpu = now.server.cpu_seconds()
                ms, sizes[name] = reader.load(path, expected)
                spent[name] += now.server.cpu_seconds() - cpu
                times[name].append(ms)
    figures: Figures = {}
    for name in PAGES:
        figures |= {f"{name}_ms": median(times[name]), f"{name}_bytes": float(sizes[name])}
        figures[f"{name}_cpu"] = spent[name] / LOADS * 1e3
    return figures


def bars(results: Results) -> list[Bar]:
    """Each is the ratio of 1 000 000 users to 1 000, with the figure for 1 000 000."""
    made = []
    for looking in LOOKING:
        what = f"{looking} looking" if looking else "nobody looking"
        for key, of, unit, digits in (
            (f"sent_{looking}", "commands sent", "per s", 1),
            (f"cpu_{looking}", "server CPU", "% of a core", 2),
        ):
            known, ratio = results.ratios(LARGE, key, SMALL), results.ratio(LARGE, key, SMALL)
            reached = f"{ratio:.2f} ({number(results.median(LARGE, key), digits)} {unit})" if known else ""
            bounded = key.startswith("sent")
            met = ratio <= FLAT if known and bounded else None
            target = f"≤ {FLAT}" if bounded else "reported"
            made.append(Bar(f"{what}: {of}", target, reached, met))
    for name in PAGES:
        title = NAMES.get(name, name)
        for key, of, digits in (("sent", "commands", 0), ("ms", "ms", 1), ("cpu", "ms of server CPU", 2)):
            known, ratio = results.ratios(LARGE, f"{name}_{key}", SMALL), results.ratio(LARGE, f"{name}_{key}", SMALL)
            reached = f"{ratio:.2f} ({number(results.median(LARGE, f'{name}_{key}'), digits)})" if known else ""
            met = ratio <= FLAT if known and key == "sent" else None
            made.append(Bar(f"page {title}: {of}", f"≤ {FLAT}" if key == "sent" else "reported", reached, met))
    return made


def _metrics() -> Iterable[Metric]:
    for looking in LOOKING:
        yield Metric(f"sent_{looking}", f"commands,\n{looking} looking", "per s", 1, higher_is_better=False)
    yield Metric("cpu_alone", "server CPU,\nno node", "% of a core", 2, higher_is_better=False)
    for looking in LOOKING:
        yield Metric(f"cpu_{looking}", f"server CPU,\n{looking} looking", "% of a core", 2, higher_is_better=False)
    yield Metric("node_cpu_10", "node CPU,\n10 looking", "% of a core", 2, higher_is_better=False)
    yield Metric("oldest_ms", "page of the\noldest users", "ms", 1, higher_is_better=False)
    yield Metric("filled_per_s", "users\nfilled", "per s", 0)


SCENARIO = Scenario(
    name="dashboard",
    title="what the dashboard costs a server with 1 000 and 1 000 000 users in a buffer",
    how=(
        "A node beside the server, with its defaults, and nobody else; besides the users there are 50 locks, 200 runs "
        "and 100 actions. Those who look have the overview open, live, each over a stream of its own. Commands are "
        "counted on the wire (a script is one); server CPU is INFO cpu, all of it, also what the server does by "
        f"itself (`no node`); both over {SECONDS:.0f} s, or {PERIOD:.0f} s where somebody looks, 1 s after all have "
        f"been shown the page. A page is loaded {LOADS} times, in turn with the others, from another node, without "
        "the counting in between; the middle, until the last byte, uncompressed. Where there are 1 000 users, a shard "
        "has fewer than a page of them, so that a list of users is made from fewer candidates. The gauges are a sample "
        "that all share, every 5 s: it is among the commands per second. A bar is the ratio of 1 000 000 users to "
        "1 000, and the figure for 1 000 000. (--quick: a fiftieth of the users, and always 5 s.)"
    ),
    metrics=tuple(_metrics()),
    contestants=contestants,
    turn=turn,
    bars=bars,
    plots=("sent_0", "sent_1", "sent_10", "cpu_10"),
    rounds=1,
)
