"""Monitors and real processes: killed or frozen anywhere, they lose nothing; `holdfast work` runs a monitor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_endpoint import Endpoint, answers

from buffers.test_work_processes import Running, alive
from holdfast import Subscriber
from holdfast.memory import MonitorStore
from holdfast.sync import Holdfast
from support.backends import Backend
from support.conditions import until_blocking

BASE = "hf:{monitor.venues}:"
READ_LEASE, TIMEOUT, MARGIN = 0.7, 0.5, 1.3

# Each line that it prints is one fact: what it was told, where it ends.
APP = """
import json, os, signal
from holdfast import Holdfast
from holdfast.engine.scripts import Scripts
from holdfast.memory import MonitorStore
from holdfast.monitor import flows, worker

worker.READ_LEASE, worker.CHECK, flows.MARGIN = {read_lease}, 0.2, {margin}

class Edited(Scripts):
    def read(self, room, name):
        text = super().read(room, name)
        for place, old, new in {edits!r}:
            if place == f"{{room}}/{{name}}":
                assert old in text, f"{{place}} has no {{old!r}} any more: write this bug anew"
                text = text.replace(old, new)
        return text

hf = Holdfast({url!r}, drain=1.0, retry_for=5.0, call_timeout=1.0)
hf._core.scripts = Edited()
venues = hf.monitor("venues", store=MonitorStore({database!r}).open(), allow=["127.0.0.1"])

def say(what, **facts):
    os.write(1, json.dumps(dict(what=what, pid=os.getpid(), **facts)).encode() + b"\\n")

def end(where):
    say(where)
    os.kill(os.getpid(), {signal})
"""
FUNCTION = """
@venues.subscriber("function", first=True, timeout={timeout})
async def function(delivery):
    changes = [[change.id, change.before, change.after] for change in delivery.changes]
    say("told", id=delivery.id, attempt=delivery.attempt, changes=changes)
"""
AFTER_OBSERVING = """
async def instead():
    await venues.observe("site", "a", 1)
    await venues.observe("site", "a", 2)
    end("observed")
"""
# A step of the worker, and the end of the process before it or after it.
AT_A_STEP = """
step = flows.{step}
def ends(core, spec, *args):
    mine = {reader!r} in (None, args[0])
    if mine and {before}:
        end("there")
    result = yield from step(core, spec, *args)
    if mine and not {before}:
        end("there")
    if mine:
        say("done", result=result)
    return result
flows.{step} = ends
"""
MAIN = """
import asyncio
async def main():
    async with hf:
        await (instead() if "instead" in globals() else hf.work())
asyncio.run(main())
"""
# All imports are done once, and each process is a copy: ready within milliseconds.
NURSERY = """
import json, os, signal, sys
import holdfast.memory, holdfast.monitor.worker, holdfast.monitor.flows, holdfast.engine.scripts, h11, httpx
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    app, facts = json.loads(line)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out = os.open(facts, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        exec(compile(open(app).read(), app, "exec"), {"__name__": "app"})
        os._exit(0)
    print(pid, flush=True)
"""


class Process:
    """One process, and what it says."""

    def __init__(self, pid: int, facts: Path) -> None:
        self._pid = pid
        self._facts = facts

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def told(self, what: str, count: int = 1, within: float = 10.0) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            lines = self._facts.read_text().splitlines() if self._facts.exists() else []
            assert not any(line.startswith("Traceback") for line in lines), lines
            return [fact for line in lines if line.startswith("{") and (fact := json.loads(line))["what"] == what]

        until_blocking(lambda: len(found()) >= count, within=within, what=f"{count} times {what!r}")
        return found()

    def ended(self) -> None:
        until_blocking(lambda: not alive(self._pid), what="the end of the process")


class Site:
    """A directory with applications in it, each of which can be started as a process."""

    def __init__(self, directory: Path, url: str, nursery: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.url = url
        self.database = f"sqlite:///{directory / 'monitor.db'}"
        self._nursery = nursery
        self._started: list[Process] = []

    def write(self, name: str, *parts: str, end: int = signal.SIGKILL, edits: list[Any] | None = None) -> Path:
        text = APP.format(
            url=self.url, database=self.database, read_lease=READ_LEASE, margin=MARGIN, signal=int(end),
            edits=edits or [],
        )  # fmt: skip
        path = self.directory / f"{name}.py"
        path.write_text("\n".join([text, *parts]))
        return path

    def start(self, name: str, *parts: str, **options: Any) -> Process:
        path, facts = self.write(name, *parts, MAIN, **options), self.directory / f"{name}.facts"
        self._nursery.stdin.write(json.dumps([str(path), str(facts)]) + "\n")
        self._nursery.stdin.flush()
        self._started.append(Process(int(self._nursery.stdout.readline()), facts))
        return self._started[-1]

    def close(self) -> None:
        for process in self._started:
            process.signal(signal.SIGKILL)
            process.ended()


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def site(tmp_path: Path, valkey: Backend, nursery: subprocess.Popen[str]) -> Iterator[Site]:
    made = Site(tmp_path, valkey.url, nursery)
    yield made
    made.close()


@pytest.fixture
def store(site: Site) -> Iterator[MonitorStore]:
    with MonitorStore(site.database) as opened:
        yield opened


@pytest.fixture
def venues(site: Site, store: MonitorStore) -> Iterator[Any]:
    with Holdfast(site.url) as hf:
        yield hf.monitor("venues", store=store, allow=["127.0.0.1"])


@pytest.fixture
def endpoint(venues: Any) -> Iterator[Endpoint]:
    """Subscribed as `hook`, to one change at a time."""
    with Endpoint() as made:
        venues.subscribe(
            Subscriber(
                "hook",
                "webhook",
                made.url(),
                first=True,
                max_changes=1,
                retries=1000,
                retry_delay=0.05,
                timeout=TIMEOUT,
            )
        )
        yield made


def at(step: str, *, before: bool, reader: str | None = None) -> str:
    return AT_A_STEP.format(step=step, before=before, reader=reader)


def afters(endpoint: Endpoint) -> list[Any]:
    return [change["after"] for body in endpoint.bodies for change in body["changes"]]


# -- killed -----------------------------------------------------------------------------------------------------------


def test_what_was_observed_before_a_kill_is_told_by_others(site: Site, venues: Any, endpoint: Endpoint) -> None:
    # Given a process that ends right after it observed, and that runs no worker
    first = site.start("first", AFTER_OBSERVING)
    first.told("observed")
    first.ended()
    assert endpoint.requests == []
    # when another one works, expect both changes to be told and kept, in order
    site.start("second")
    until_blocking(lambda: len(endpoint.requests) == 2, what="both are told")
    assert afters(endpoint) == [1, 2]
    until_blocking(lambda: [one.state for one in venues.history("site", "a")] == [2, 1], what="both are kept")


@pytest.mark.parametrize(
    ("reader", "before"),
    [("deliver", True), ("deliver", False), ("history", True), ("history", False)],
    ids=["read", "let subscribers have it", "kept", "kept, and said so"],
)
def test_a_reader_killed_at_any_point_is_followed(
    site: Site, venues: Any, endpoint: Endpoint, reader: str, before: bool
) -> None:
    # Given one that ends between reading the log and saying how far it came, or right after that
    venues.observe_many([("site", "a", 1), ("site", "a", 2)])
    first = site.start("first", at("pump", before=before, reader=reader))
    first.told("there")
    first.ended()
    # when another one works, expect each change to be told and kept once
    site.start("second")
    until_blocking(lambda: set(afters(endpoint)) == {1, 2}, what="both are told")
    until_blocking(lambda: len(venues.history("site", "a")) == 2, what="both are kept")
    until_blocking(lambda: venues.status().waiting == {"hook": 0}, what="nothing waits")
    keys = {request.headers["idempotency-key"] for request in endpoint.requests}
    assert len(keys) == 2
    assert list(dict.fromkeys(afters(endpoint))) == [1, 2]  # who was killed may have sent one, which came again


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_what_was_sent_comes_again_the_same_unless_that_was_said(
    site: Site, venues: Any, endpoint: Endpoint, before: bool
) -> None:
    # Given one that ends after it sent a message, before it can say so, or right after it did
    venues.observe("site", "a", {"price": 1})
    first = site.start("first", at("done", before=before))
    first.told("there")
    first.ended()
    (sent,) = endpoint.requests
    # when another one works, expect the same again where it was not said; and what came meanwhile in another message
    venues.observe("site", "a", {"price": 2})
    site.start("second")
    expected = 3 if before else 2
    until_blocking(lambda: len(endpoint.requests) == expected, what="all is told")
    until_blocking(lambda: venues.status().waiting == {"hook": 0}, what="nothing waits")
    again, *_ = endpoint.requests[1:]
    assert (again.body == sent.body) == before
    assert (again.headers["idempotency-key"] == sent.headers["idempotency-key"]) == before
    assert again.headers["holdfast-attempt"] == ("2" if before else "1")
    assert afters(endpoint)[-1] == {"price": 2}
    assert len(endpoint.requests) == expected


def test_a_function_that_was_called_is_called_again_the_same(site: Site, venues: Any) -> None:
    function = FUNCTION.format(timeout=TIMEOUT)
    venues.observe("site", "a", 1)
    first = site.start("first", function, at("done", before=True))
    first.told("there")
    first.ended()
    venues.observe("site", "a", 2)
    again, following = site.start("second", function).told("told", 2)[:2]
    (called,) = first.told("told")
    assert (again["id"], again["changes"], again["attempt"]) == (called["id"], called["changes"], 2)
    assert [change[1:] for change in following["changes"]] == [[1, 2]]


def test_a_turn_to_read_ends_with_its_process(site: Site, venues: Any, endpoint: Endpoint, valkey: Backend) -> None:
    # Given one that stands still with the turn to read
    venues.observe("site", "a", 1)
    first = site.start("first", at("pump", before=True, reader="deliver"), end=signal.SIGSTOP)
    first.told("there")
    (server,) = valkey.primaries()
    assert 0 < server.pttl(f"{BASE}p:deliver") <= READ_LEASE * 1000
    # when it is killed, expect another one to read on when that turn is over, and to give the turn back
    first.signal(signal.SIGKILL)
    site.start("second")
    until_blocking(lambda: afters(endpoint) == [1], what="it is told")
    until_blocking(lambda: server.exists(f"{BASE}p:deliver") == 0, what="the turn is given back")


# -- frozen -----------------------------------------------------------------------------------------------------------

CURSOR = [["monitor/pump", "if now_at ~= ARGV[4] or ", "if "]]
TOKEN = [["monitor/done", "if token ~= ARGV[3] then return {'not_held'} end", ""]]


@pytest.mark.parametrize("edits", [[], CURSOR], ids=["as it is", "without the compare"])
def test_a_reader_that_comes_late_is_refused(site: Site, venues: Any, endpoint: Endpoint, edits: list[Any]) -> None:
    # Given one that was frozen between reading the log and letting subscribers have it, and another that did meanwhile
    venues.observe("site", "a", 1)
    frozen = site.start("first", at("pump", before=True, reader="deliver"), end=signal.SIGSTOP, edits=edits)
    frozen.told("there")
    site.start("second")
    until_blocking(lambda: len(endpoint.requests) == 1, what="it is told")
    venues.observe("site", "a", 2)
    until_blocking(lambda: len(endpoint.requests) == 2, what="the next is told")
    # when it goes on, expect that to have no effect
    frozen.signal(signal.SIGCONT)
    assert frozen.told("done")[0]["result"] is bool(edits)
    if edits:
        until_blocking(lambda: len(endpoint.requests) > 2, what="told twice, as nothing was compared")
        return
    venues.observe("site", "a", 3)
    until_blocking(lambda: 3 in afters(endpoint), what="the last is told")
    until_blocking(lambda: venues.status().waiting == {"hook": 0}, what="nothing waits")
    assert afters(endpoint) == [1, 2, 3]


@pytest.mark.parametrize("edits", [[], TOKEN], ids=["as it is", "without the token"])
def test_a_teller_that_comes_late_is_refused(site: Site, venues: Any, endpoint: Endpoint, edits: list[Any]) -> None:
    # Given one that was frozen after it sent a message, and another that sent it again and fails with the next
    venues.observe("site", "a", 1)
    frozen = site.start("first", at("done", before=True), end=signal.SIGSTOP, edits=edits)
    frozen.told("there")
    site.start("second")
    until_blocking(lambda: len(endpoint.requests) == 2, what="it is told again")
    until_blocking(lambda: venues.status().waiting == {"hook": 0}, what="that was said")
    endpoint.always(answers(500))
    venues.observe("site", "a", 2)
    until_blocking(lambda: afters(endpoint)[-1] == 2, what="the next is tried")
    # when it goes on, expect what it says of its own message not to count for the next
    frozen.signal(signal.SIGCONT)
    assert frozen.told("done")[0]["result"] is bool(edits)
    assert venues.status().waiting == {"hook": 0 if edits else 1}, "nobody has accepted it"
    if edits:
        return
    endpoint.always(answers(200))
    until_blocking(lambda: venues.status().waiting == {"hook": 0}, what="it is told")
    assert list(dict.fromkeys(afters(endpoint))) == [1, 2]
    assert len({request.headers["idempotency-key"] for request in endpoint.requests}) == 2


# -- holdfast work ----------------------------------------------------------------------------------------------------


def test_holdfast_work_runs_a_monitor(site: Site, venues: Any, endpoint: Endpoint) -> None:
    # Given an application with a monitor and nothing else
    site.write("app", FUNCTION.format(timeout=TIMEOUT))
    with Running(site.directory) as app:
        app.working()
        # when something changes, expect its function, the webhook and the history to hear of it
        assert venues.observe("site", "a", {"price": 1}).outcome == "first"
        (told,) = app.told("told")
        assert [change[1:] for change in told["changes"]] == [[None, {"price": 1}]]
        until_blocking(lambda: afters(endpoint) == [{"price": 1}], what="the webhook is told")
        until_blocking(lambda: len(venues.history("site", "a")) == 1, what="it is kept")
        # when it is told to stop, expect an orderly end with the push log written
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
        assert app.pids("stopped") == app.pids()
        assert app.errors == []
    assert {(push.subscriber, push.outcome) for push in venues.pushes() if push.outcome != "retried"} == {
        ("hook", "delivered"), ("function", "delivered"),
    }  # fmt: skip
