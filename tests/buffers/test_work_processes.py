"""`holdfast work` as real processes: stopped, killed, paused, looked after."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.sync import Holdfast
from holdfast.testing import FaultProxy, LocalServer
from holdfast.testing.ports import free_port
from support.backends import Backend
from support.conditions import until_blocking
from support.nursery import Forked

COMMAND = str(Path(sys.executable).with_name("holdfast"))
LEASE = 1.0

# Each line that a handler prints is one fact: what it got, how it ended.
APP = """
import asyncio, json, os, time
import {twin} as api
from holdfast import LeaseLost

hf = api.Holdfast({url!r}, sweep=0.2, drain={drain}, retry_for={retry_for})
inbox = hf.buffer("inbox")

def say(what, batch, **more):
    data = [message.data for message in batch.messages]
    facts = dict(what=what, pid=os.getpid(), user=batch.key, id=batch.id, attempt=batch.attempt, fence=batch.fence)
    line = json.dumps({{**facts, "data": data, "at": time.monotonic(), **more}}) + "\\n"
    os.write(1, line.encode())  # in one piece, whichever thread says it

def slow(batch):
    return batch.attempt == 1 and batch.messages[0].data == "a"

@hf.absorber(inbox, threshold=1, lease={lease}, backoff=0.05, concurrency={concurrency})
{handler}
"""

QUICK = """
async def handle(batch):
    say("got", batch)
"""
SLOW = """
async def handle(batch):
    say("got", batch)
    try:
        await asyncio.sleep({seconds} if slow(batch) else 0)
    except asyncio.CancelledError:
        say("cancelled", batch, lost=batch.lost)
        raise
    say("done", batch)
"""
SLOW_PLAIN = """
def handle(batch):
    say("got", batch)
    end = time.monotonic() + ({seconds} if slow(batch) else 0)
    while time.monotonic() < end and not batch.lost:
        time.sleep(0.01)
    say("done", batch, lost=batch.lost)
    try:
        batch.ack()
    except LeaseLost as error:
        say("LeaseLost", batch, reason=error.reason)
        raise
"""
STUCK_PLAIN = """
def handle(batch):
    say("got", batch)
    time.sleep({seconds})
"""


class Running:
    """One `holdfast work`, ended by its id; with what it and its children print."""

    def __init__(
        self, directory: Path, *options: str, target: str = "app:hf", stdin: Any = subprocess.PIPE,
        command: tuple[str, ...] = (COMMAND, "work"),
    ) -> None:  # fmt: skip
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self.process = Forked(
            [*command, target, *options], cwd=directory, env=clean, text=True, stdin=stdin,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.facts: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, into: list[str]) -> None:
        for line in pipe:
            if line.startswith("{"):
                self.facts.append(json.loads(line))
            else:
                into.append(line.rstrip("\n"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def pids(self, word: str = "working") -> list[int]:
        """Of workers that said so: this process or its children."""
        found = (re.match(rf"{word} \(pid (\d+)\)", line) for line in list(self.lines))
        return [int(match[1]) for match in found if match]

    def working(self, count: int = 1, within: float = 15.0) -> list[int]:
        def enough() -> bool:
            assert self.process.poll() is None, f"it ended: {self.errors}"
            return len(self.pids()) >= count

        until_blocking(enough, within=within, what=f"{count} at work")
        return self.pids()

    def told(self, what: str, count: int = 1, within: float = 10.0) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [fact for fact in list(self.facts) if fact["what"] == what]

        until_blocking(lambda: len(found()) >= count, within=within, what=f"{count} times {what!r}")
        return found()

    def wait(self, within: float = 10.0) -> int:
        """Its exit code, and what it printed is read; unless a child of it still could print something."""
        code = self.process.wait(within)
        for reader in self._readers:
            reader.join(1)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in {*self.pids(), self.process.pid} - {0}:
            if pid == self.process.pid and self.process.poll() is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        for reader in self._readers:
            reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def alive(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def hf(valkey: Backend) -> Iterator[Holdfast]:
    with Holdfast(valkey.url) as client:
        yield client


class Site:
    """A directory with an application in it."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url

    def write(self, handler: str = QUICK, *, twin: str = "holdfast", seconds: float = 0.0, **options: Any) -> Site:
        values = {"drain": 5.0, "lease": LEASE, "concurrency": 4, "retry_for": 5.0, "url": self.url, **options}
        text = APP.format(twin=twin, handler=handler.strip().replace("{seconds}", str(seconds)), **values)
        (self.directory / "app.py").write_text(text)
        return self

    def run(self, *options: str, **more: Any) -> Running:
        return Running(self.directory, *options, **more)


@pytest.fixture
def site(tmp_path: Path, valkey: Backend) -> Site:
    return Site(tmp_path, valkey.url)


@pytest.fixture(params=["holdfast", "holdfast.sync"])
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- one process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [SLOW, SLOW_PLAIN], ids=["coroutine", "plain"])
def test_sigterm_drains_and_ends_with_0(site: Site, hf: Holdfast, twin: str, handler: str):
    inbox = hf.buffer("inbox")
    with site.write(handler, twin=twin, seconds=0.6).run() as app:
        app.working()
        inbox.append("ann", "a")
        app.told("got")
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
        assert len(app.told("done")) == 1
        assert app.pids("stopped") == app.pids()
        assert app.errors == []
    assert inbox.totals().counts["absorbed"] == 1
    assert inbox.totals().idle_workers == 0


def test_what_cannot_finish_is_handed_back_on_sigterm(site: Site, hf: Holdfast):
    inbox = hf.buffer("inbox")
    with site.write(SLOW, seconds=60, drain=0.2, lease=30).run() as app:
        app.working()
        inbox.append("ann", "a")
        app.told("got")
        app.signal(signal.SIGINT)
        assert app.wait() == 0
        app.told("cancelled")
    stats = inbox.stats("ann")
    assert (stats.in_flight, stats.held, stats.attempt, stats.free_in) == (1, False, 0, 0.0)


def test_a_plain_handler_that_never_ends_does_not_keep_the_process(site: Site, hf: Holdfast, twin: str):
    """It cannot be cancelled; its batch is handed back, and the process must end soon after `drain`."""
    inbox = hf.buffer("inbox")
    with site.write(STUCK_PLAIN, twin=twin, seconds=120, drain=0.2, lease=30).run() as app:
        app.working()
        inbox.append("ann", "a")
        app.told("got")
        app.signal(signal.SIGTERM)
        until_blocking(lambda: not inbox.stats("ann").held, within=5, what="the batch handed back")
        until_blocking(lambda: app.process.poll() is not None, within=5, what="the end of the process")
        assert app.wait() == 0


def test_sigterm_while_it_connects_is_not_forgotten(site: Site, valkey: Backend, twin: str):
    with FaultProxy(valkey.owner.host, valkey.owner.port) as proxy:
        proxy.black_hole()
        site.url = proxy.url
        with site.write(twin=twin, retry_for=20.0).run() as app:
            until_blocking(lambda: proxy.connections > 0, what="a connection")
            app.signal(signal.SIGTERM)
            proxy.heal()
            until_blocking(lambda: app.process.poll() is not None, within=6, what="the end of the process")
            assert app.process.returncode in (0, -signal.SIGTERM)


# Jobs that a shell has put into the background ignore SIGINT, and so do their children, unless they say otherwise.
BLOCKING_MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import app
try:
    with app.hf:
        print("working (pid 0)", flush=True)
        app.hf.work()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_in_a_blocking_program_hands_back(site: Site, hf: Holdfast):
    """Without the command line: KeyboardInterrupt comes out of `work`, after the batch was handed back."""
    inbox = hf.buffer("inbox")
    site.write(SLOW, twin="holdfast.sync", seconds=60, lease=30)
    (site.directory / "main.py").write_text(BLOCKING_MAIN)
    with site.run(command=(sys.executable,), target="main.py") as app:
        app.working()
        inbox.append("ann", "a")
        app.told("got")
        app.signal(signal.SIGINT)
        assert app.wait() == 0
        app.told("cancelled")
        assert app.lines[-1] == "interrupted"
        assert app.errors == []
    stats = inbox.stats("ann")
    assert (stats.in_flight, stats.held, stats.attempt) == (1, False, 0)


# -- killed and paused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [SLOW, SLOW_PLAIN], ids=["coroutine", "plain"])
def test_a_killed_workers_batch_comes_to_another_within_its_lease(site: Site, hf: Holdfast, handler: str):
    inbox = hf.buffer("inbox")
    site.write(handler, seconds=60)
    with site.run() as first:
        first.working()
        inbox.extend("ann", ["a", "b"])
        (got,) = first.told("got")
        with site.run() as second:
            second.working()
            time.sleep(LEASE)  # longer than the lease: it was renewed
            assert not second.facts
            killed = time.monotonic()
            first.signal(signal.SIGKILL)
            (again,) = second.told("got", within=LEASE + 5)
            assert again["at"] - killed < LEASE + 2
            second.told("done")
            assert (again["id"], again["data"], again["attempt"]) == (got["id"], ["a", "b"], 2)
            assert again["fence"] > got["fence"]
            until_blocking(lambda: inbox.totals().counts.get("absorbed") == 2)


@pytest.mark.parametrize("handler", [SLOW, SLOW_PLAIN], ids=["coroutine", "plain"])
def test_a_worker_paused_past_its_lease_is_told_and_refused(site: Site, hf: Holdfast, handler: str):
    inbox = hf.buffer("inbox")
    site.write(handler, seconds=20)
    with site.run() as paused:
        paused.working()
        inbox.append("ann", "a")
        (old,) = paused.told("got")
        with site.run() as other:
            other.working()
            paused.signal(signal.SIGSTOP)
            (new,) = other.told("got", within=LEASE + 5)
            other.told("done")
            assert (new["id"], new["attempt"]) == (old["id"], 2)
            assert new["fence"] > old["fence"]
            inbox.append("ann", "b")
            other.told("got", 2)
            paused.signal(signal.SIGCONT)
            if handler is SLOW:
                assert paused.told("cancelled")[0]["lost"] is True
            else:
                assert paused.told("LeaseLost")[0]["id"] == old["id"]
            until_blocking(lambda: inbox.totals().counts.get("absorbed") == 2)
            # and it works on, with the next ones
            other.signal(signal.SIGSTOP)
            for number in range(5):
                inbox.append(f"u{number}", number)
            paused.told("got", 6, within=10)
            until_blocking(lambda: inbox.totals().counts.get("absorbed") == 7)


# -- several processes ----------------------------------------------------------------------------------------------


def test_a_supervisor_starts_again_what_ends_and_stops_all(site: Site, hf: Holdfast):
    inbox = hf.buffer("inbox")
    with site.write(SLOW, seconds=0.1).run("--processes", "3") as app:
        pids = app.working(3)
        assert len(set(pids)) == 3
        assert app.process.pid not in pids
        # when one is killed, expect it to be replaced
        os.kill(pids[0], signal.SIGKILL)
        app.working(4)
        assert [line for line in app.lines if f"(pid {pids[0]}) ended with -9; starting it again" in line]
        for number in range(10):
            inbox.append(f"u{number}", number)
        until_blocking(lambda: inbox.totals().counts.get("absorbed") == 10)
        # when it is told to stop, expect all of them to finish
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
        # Its last lines may still be on their way to us.
        until_blocking(lambda: sorted(app.pids("stopped")) == sorted(app.pids()[1:]), what="an orderly end of each")
        assert not [pid for pid in app.pids() if alive(pid)]


def test_children_of_a_killed_supervisor_end_by_themselves(site: Site):
    with site.write().run("--processes", "2") as app:
        pids = app.working(2)
        app.signal(signal.SIGKILL)
        until_blocking(lambda: not any(map(alive, pids)), within=10, what="the end of the orphans")
        until_blocking(lambda: len(app.pids("stopped")) == 2, what="an orderly end")


def test_a_child_whose_supervisor_ended_before_it_worked_ends_too(site: Site, twin: str):
    with site.write(twin=twin).run("--supervised", stdin=subprocess.DEVNULL) as app:
        until_blocking(lambda: app.process.poll() is not None, within=8, what="the end of the orphan")
        assert app.process.returncode == 0


def test_a_supervisor_outlives_a_server_that_cannot_be_reached(site: Site):
    """That is no mistake in the configuration: the processes are started again until the server is back."""
    port = free_port()
    site.url = f"redis://127.0.0.1:{port}"
    with site.write(retry_for=0.2).run("--processes", "2") as app:
        until_blocking(lambda: app.errors or app.process.poll() is not None, within=10, what="a first failure")
        with LocalServer(port=port):
            app.working(2, within=10)
            app.signal(signal.SIGTERM)
            assert app.wait() == 0


# -- mistakes -------------------------------------------------------------------------------------------------------

NOTHING_REGISTERED = "import holdfast\nhf = holdfast.Holdfast('redis://127.0.0.1:1')\nother = 5\n"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("app", "name the client as module:variable"),
        ("app:", "name the client as module:variable"),
        ("nowhere:hf", "check the module's name and the current directory"),
        ("app:missing", "check the variable's name"),
        ("app:other", "name a Holdfast client: app:other is a int"),
    ],
)
def test_a_wrong_target_is_one_line_and_exit_code_2(site: Site, target: str, text: str):
    (site.directory / "app.py").write_text(NOTHING_REGISTERED)
    with site.run(target=target) as app:
        assert app.wait() == 2
    assert len(app.errors) == 1, app.errors
    assert app.errors[0].startswith(f"holdfast: {text}")
    assert app.lines == []


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one", "several"])
def test_a_client_without_absorbers_ends_with_2(site: Site, options: tuple[str, ...]):
    (site.directory / "app.py").write_text(f"import holdfast\nhf = holdfast.Holdfast({site.url!r})\n")
    with site.run(*options) as app:
        assert app.wait(15) == 2
    assert app.errors
    assert {line.partition(":")[2].strip() for line in app.errors} == {
        "register something first: decorate a handler with `@hf.absorber(buffer)` or `@hf.runner(runs)`"
    }
