"""Histories of a gate and of ids, step by step, each against the plainest Python that follows the same rule."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import redis
from once_desk import all_done

from holdfast import LeaseLost
from holdfast.sync import Holdfast
from support.faults import Plan
from support.model import CLOCK_KEY

WINDOW = 300.0
LEASE = 30.0
UNSURE, UNTOLD = "unsure", "untold"


class GateHistory:
    """One thing, two processes that look at it, workers that tell what was held back, and one subscriber."""

    def __init__(self, server: redis.Redis, clients: list[Holdfast], plan: Plan, name: str) -> None:
        self.server, self.clients, self.plan = server, clients, plan
        self.gates = [client.gate(name, WINDOW) for client in clients]
        self.ms = 1_900_000_000_000
        self._pass(0)
        # The reference
        self.now: str | None = None
        self.last: str | None = None
        self.told: dict[str, int] = {}
        # The subscriber, and the notices that are out
        self.heard: str | None = None
        self.out: list[Any] = []

    def _pass(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self.server.set(CLOCK_KEY, self.ms, ex=600)

    def _within(self, state: str) -> bool:
        return self.told.get(state, 0) > self.ms - WINDOW * 1000

    def _expect(self, state: str) -> str:
        """What the rule says, which is all there is to a gate."""
        if self.now is None:
            self.now = self.last = state
            return "first"
        if state == self.now and not (self.last == UNTOLD and not self._within(state)):
            return "unchanged"
        reason = "repeated" if self._within(state) else "changed"
        if reason == "changed":
            self.told[state], self.last = self.ms, state
        self.now = state
        return reason

    # -- what may happen --------------------------------------------------------------------------------------------

    def check(self, state: str, who: int, lost: bool) -> None:
        """Whoever looks is told by the rule, also when its reply was lost."""
        self.plan.step, self.plan.faults = 0, {1: "reply dropped"} if lost else {}
        decision = self.gates[who].check("k", state)
        self.plan.faults = {}
        expected = self._expect(state)
        assert decision.reason == expected
        assert decision.notify == (expected in ("first", "changed"))
        if decision.notify:
            self.heard = state

    def interrupted_check(self, state: str) -> None:
        """Nobody heard the answer, so nothing was told."""
        self.plan.step, self.plan.faults = 0, {0: "cancel after"}
        with contextlib.suppress(KeyboardInterrupt):
            self.gates[0].check("k", state)
            raise AssertionError("it was to be interrupted")
        self.plan.faults = {}
        self.clients[0]._core.keeper.submit(all_done).result(5)
        reason = self._expect(state)
        if reason == "first":
            self.now = self.last = None
            self.told = {}
        elif reason == "changed":
            del self.told[state]
            self.last = UNTOLD

    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _due(self, who: int) -> list[Any]:
        found = list(self.gates[who].due(lease=LEASE))
        for notice in found:
            assert notice.state == self.now
            assert notice.state != self.last, "told, although it was told last"
            self.last = UNSURE
        return found

    def take(self, who: int) -> None:
        self.out += self._due(who)

    def take_and_die(self, who: int, told: bool) -> None:
        """Its worker dies before or after it has told it, and never says so."""
        for notice in self._due(who):
            if told:
                self.heard = notice.state

    def tell(self, at: int, who: int) -> None:
        if not self.out:
            return
        notice = self.out.pop(at % len(self.out))
        self.heard = notice.state
        settled = self.gates[who].told(notice)
        assert settled == (notice.state == self.now)
        if not settled and self.now is not None:
            self.last = UNSURE
        elif settled and self.last != notice.state:
            self.told[notice.state], self.last = self.ms, notice.state

    def forget(self) -> None:
        assert self.gates[0].forget("k") == (self.now is not None)
        self.now, self.last, self.told = None, None, {}

    # -- what must always be so -------------------------------------------------------------------------------------

    def end(self) -> None:
        """When nothing moves any more, the subscriber knows how it is."""
        for _ in range(4):
            while self.out:
                self.tell(0, 0)
            self._pass(WINDOW)
            self.take(0)
        assert not self.out, "told again and again"
        if self.now is not None:
            assert self.heard == self.now


class IdHistory:
    """Three processes, three ids. Time passes by shortening the life of every key."""

    def __init__(self, server: redis.Redis, clients: list[Holdfast], name: str) -> None:
        self.server, self.clients, self.space = server, clients, name
        self.known: dict[str, tuple[str, float]] = {}
        """What is known of an id: `marked`, `done` or which claim has it; and for how long."""
        self.claims: dict[str, Any] = {}

    def _mark(self, name: str, kind: str, seconds: float) -> None:
        self.known[name] = (kind, seconds)

    def filter_new(self, who: int, names: list[str], within: float) -> None:
        expected = [name for name in dict.fromkeys(names) if name not in self.known]
        assert self.clients[who].filter_new(self.space, names, within) == expected
        for name in expected:
            self._mark(name, "marked", within)

    def begin(self, who: int, name: str) -> None:
        claim = self.clients[who].claim(self.space, name, 20.0, lease=10.0).begin()
        there = self.known.get(name)
        expected = "mine" if there is None else "done" if there[0] in ("marked", "done") else "busy"
        assert claim.state == expected
        if claim:
            token = claim._hold.token
            self.claims[token] = (name, claim)
            self._mark(name, token, 10.0)

    def leave(self, at: int, confirm: bool) -> None:
        """Whether it is still its own or not: only its owner can do anything to it."""
        if not self.claims:
            return
        token = sorted(self.claims)[at % len(self.claims)]
        name, claim = self.claims.pop(token)
        mine = self.known.get(name, ("", 0.0))[0] == token
        if not confirm:
            claim.release()
            if mine:
                del self.known[name]
            return
        if mine:
            claim.confirm()
            self._mark(name, "done", 20.0)
        else:
            with pytest.raises(LeaseLost):
                claim.confirm()

    def forget(self, names: list[str]) -> None:
        assert self.clients[0].forget(self.space, *names) == len(set(names) & self.known.keys())
        for name in names:
            self.known.pop(name, None)

    def time_passes(self, seconds: int) -> None:
        for key in list(self.server.scan_iter(match=f"hf:*:{self.space}:*")):
            left = self.server.pttl(key) - seconds * 1000
            self.server.pexpire(key, left) if left > 0 else self.server.delete(key)
        self.known = {name: (kind, left - seconds) for name, (kind, left) in self.known.items() if left > seconds}

    def end(self) -> None:
        """What is known there is what is known here, and nothing lives for ever."""
        found = list(self.server.scan_iter(match=f"hf:*:{self.space}:*"))
        assert len(found) == len(self.known)
        assert all(self.server.pttl(key) > 0 for key in found)
        for _, claim in self.claims.values():
            claim.release()
