"""`holdfast demo`, as it is typed: short runs with real processes, and the mistakes that they must find."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.demo_plan import draw
from support.backends import Backend
from support.conditions import until_blocking

SHORT = ("--processes", "2", "--seconds", "2")
BREAKS = ("sink", "claim", "fence", "resume")
SEEDS = (5, 6, 7)
"""Whether a strike meets what it is for is chance, the less likely the busier the machine: where not, the next one."""


@pytest.fixture
def place() -> Iterator[Path]:
    """Where temporary files go. Short: a socket has no room for a long path."""
    made = Path(tempfile.mkdtemp(prefix="hfd-"))
    yield made
    shutil.rmtree(made)


def start(place: Path, *words: str, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "demo", *words], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(place)}, **streams,
    )  # fmt: skip


def run(place: Path, *words: str) -> tuple[int, str, str]:
    process = start(place, *words, stderr=subprocess.PIPE)
    out, error = process.communicate(timeout=100)
    return process.returncode, out, error


def test_a_fleet_that_is_killed_and_frozen_loses_and_doubles_nothing(place: Path) -> None:
    code, out, error = run(place, *SHORT, "--seed", "5", "--json")

    assert (code, error) == (0, ""), out
    account = json.loads(out)
    plan = draw(5, 2, 2, True)
    assert account["plan"] == plan.digest, "it is the plan of this number, in another process too"
    assert account["command"] == plan.command
    # All of the plan happened, and all of it is accounted for
    assert account["in"] == plan.messages
    assert account["in"] == account["absorbed"] + sum(account["dropped"].values())
    assert account["dropped"]["capacity"] > 0
    assert account["runs_started"] == len(plan.runs)
    assert account["runs_ended"] == {"completed": len(plan.runs)}
    assert account["events"] == sum(one.steps for one in plan.runs)
    assert (account["kills"], account["pauses"]) == (2, 1)
    # and it was not for nothing
    assert sum(account["takeovers"].values()) > 0
    assert account["counts"] > 0
    assert 0 < account["p50"] <= account["p99"] < account["duration"] < 60
    for name in ("lost", "duplicates", "unexpected", "miscounted", "waiting", "dead", "counts_wrong", "events_wrong"):
        assert account[name] == 0, name
    assert account["clean"]
    assert list(place.iterdir()) == [], "nothing is left behind"


def test_each_mistake_that_is_put_in_is_found(place: Path, valkey: Backend) -> None:
    # Given a sink that does not know a batch again, a producer that claims what it did not append, holders that neither
    # look at their lease nor send their fence, and runs with which nobody goes on
    words = [word for name in BREAKS for word in ("--break", name)]
    found = dict.fromkeys(("duplicates", "lost", "counts_wrong", "runs_failed"), 0)
    for seed in SEEDS:
        code, out, error = run(place, *SHORT, "--seed", str(seed), "--json", "--url", valkey.url, *words)

        assert code == 1, out
        assert error.startswith("holdfast: keep this line and report it: messages lost: "), error
        assert error.count("\n") == 1
        assert f"--seed {seed} " in error
        account = json.loads(out)
        assert not account["clean"]
        for name in found:
            found[name] += account[name]
        if all(found.values()):
            break
    assert all(found.values()), found


# -- the end of it ----------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at /proc")


def descendants(pid: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, new = set[int](), {pid}
    while new:
        new = {one for one, parent in parents.items() if parent in new}
        found |= new
    return found


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


def servers(place: Path) -> list[str]:
    """Processes that work in a directory below."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = os.readlink(link)
        except OSError:
            continue
        if where.startswith(str(place)):
            found.append(where)
    return found


@linux
def test_whichever_way_it_ends_no_process_is_left(place: Path) -> None:
    # Given two demonstrations, at once because that is quicker, of each of which one process is frozen
    seed = next(seed for seed in count() if draw(seed, 2, 20, True).strikes[0].kind == "pause")

    def end(number: signal.Signals) -> None:
        where = place / number.name
        where.mkdir()
        process = start(where, "--processes", "2", "--seconds", "20", "--seed", str(seed), stderr=subprocess.PIPE)
        assert any("paused worker" in line for line in process.stdout)
        children = descendants(process.pid)
        assert len(children) >= 5, "a nursery, two workers, two producers"

        # when one is interrupted, and the other killed
        process.send_signal(number)

        # expect that all of its processes are gone, also the frozen one, and the server
        out, error = process.communicate(timeout=30)
        until_blocking(lambda: not alive(children) and not servers(where), 20, "the end of all processes")
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert error == "holdfast: interrupted: all processes of the demonstration are gone\n"
            assert "messages in" not in out, "no account of half a demonstration"
            assert list(where.iterdir()) == []

    with ThreadPoolExecutor() as both:
        list(both.map(end, (signal.SIGINT, signal.SIGKILL)))
