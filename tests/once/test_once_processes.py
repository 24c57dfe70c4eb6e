"""Real processes: sixteen that want the same ids, some that are killed, some that are paused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast.sync import Holdfast
from support.backends import Backend
from support.nursery import Forked

APPS = Path(__file__).with_name("once_process_apps.py")
LEASE = 0.6


class App:
    """One process, ended by its id."""

    def __init__(self, *arguments: Any) -> None:
        command = [sys.executable, str(APPS), *map(str, arguments)]
        self.process = Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return dict(json.loads(line))

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def test_sixteen_processes_want_the_same_ids_and_each_is_one_ones(valkey: Backend):
    # Given 16 processes, 10 000 ids which each of them asks about, and 200 others which each wants to work on
    processes, ids, claims = 16, 10_000, 200
    with App("herd", valkey.url, processes, ids, claims) as app:
        heard = [app.hear() for _ in range(processes)]
        assert app.process.wait(30) == 0
    # expect every id to be told to one of them, and every claim to be worked on once
    assert sorted(one for each in heard for one in each["told"]) == list(range(ids))
    assert sorted(one for each in heard for one in each["worked"]) == list(range(claims))
    assert sum(bool(each["told"]) for each in heard) > 1, "they were not at it together"


@pytest.mark.parametrize("twin", ["async", "sync"])
def test_one_that_is_killed_is_followed_after_its_lease(valkey: Backend, twin: str):
    with App("claim", valkey.url, LEASE, *([twin] if twin == "sync" else [])) as app, Holdfast(valkey.url) as hf:
        first = app.hear()
        assert first["state"] == "mine"
        app.process.kill()
        killed = time.monotonic()
        with hf.claim("orders", "a", wait=None) as claim:
            assert claim.state == "mine"
            assert claim.fence > first["fence"]
            assert time.monotonic() - killed <= LEASE + 1
        assert hf.claim("orders", "a").begin().state == "done"


def test_a_call_whose_process_is_killed_is_made_again(valkey: Backend):
    with App("call", valkey.url, LEASE) as app, Holdfast(valkey.url) as hf:
        assert app.hear()["state"] == "called"
        app.process.kill()
        killed = time.monotonic()

        @hf.idempotent("{order}", space="charge")
        def charge(order: str) -> str:
            return "charged"

        assert charge("a") == "charged"
        assert time.monotonic() - killed <= LEASE + 1


@pytest.mark.parametrize("twin", ["async", "sync"])
def test_one_that_was_paused_cannot_confirm_what_another_has(valkey: Backend, twin: str):
    """PITFALL 44: it stood still past its lease, and does not know it."""
    with App("claim", valkey.url, LEASE, *([twin] if twin == "sync" else [])) as app, Holdfast(valkey.url) as hf:
        first = app.hear()
        app.process.send_signal(signal.SIGSTOP)
        with hf.claim("orders", "a", wait=LEASE + 5, lease=30) as claim:
            assert claim.state == "mine"
            assert claim.fence > first["fence"]
            # when it comes back and wants to go on
            if twin == "sync":
                app.go_on()
            app.process.send_signal(signal.SIGCONT)
            # expect it to be told, and the other to go on
            assert app.hear()["error"] == "LeaseLost"
            assert hf.claim("orders", "a").begin().state == "busy"
            claim.check()
        assert hf.claim("orders", "a").begin().state == "done"
