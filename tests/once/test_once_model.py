"""Random histories of gates against the plainest Python, and a subscriber who must never be left with the wrong state;
random histories of ids and claims against a dict. On a real server whose clock the test moves."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from once_desk import all_done

from holdfast import LeaseLost
from holdfast.sync import Holdfast
from support.backends import Backends
from support.depth import tries
from support.faults import Plan, install
from support.model import CLOCK_KEY, MovedClock

WINDOW = 300.0
LEASE = 30.0
UNSURE, UNTOLD = "unsure", "untold"


class GateMachine(RuleBasedStateMachine):
    """One thing, two processes that look at it, workers that tell what was held back, and one subscriber."""

    server: redis.Redis
    clients: list[Holdfast]
    plan: Plan
    number = 0

    def __init__(self) -> None:
        super().__init__()
        GateMachine.number += 1
        self.gates = [client.gate(f"g{GateMachine.number}", WINDOW) for client in self.clients]
        self.ms = 1_900_000_000_000
        self._pass(0)
        # The reference
        self.now: str | None = None
        self.last: str | None = None
        self.told: dict[str, int] = {}
        # The subscriber, and the notices that are out
        self.heard: str | None = None
        self.out: list[Any] = []
        self.wrong = False
        self.plan.faults = {}

    def _pass(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        self.server.set(CLOCK_KEY, self.ms, ex=600)

    def _agree(self, found: Any, expected: Any) -> None:
        self.wrong = self.wrong or found != expected
        assert found == expected

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

    @rule(state=st.sampled_from("ABC"), who=st.integers(0, 1), lost=st.booleans())
    def check(self, state: str, who: int, lost: bool) -> None:
        """Whoever looks is told by the rule, also when its reply was lost."""
        self.plan.step, self.plan.faults = 0, {1: "reply dropped"} if lost else {}
        decision = self.gates[who].check("k", state)
        self.plan.faults = {}
        expected = self._expect(state)
        self._agree(decision.reason, expected)
        self._agree(decision.notify, expected in ("first", "changed"))
        if decision.notify:
            self.heard = state

    @rule(state=st.sampled_from("ABC"))
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

    @rule(seconds=st.sampled_from([1.0, 29.0, 30.0, 100.0, 150.0, 299.0, 300.0, 301.0]))
    def time_passes(self, seconds: float) -> None:
        self._pass(seconds)

    def _due(self, who: int) -> list[Any]:
        found = list(self.gates[who].due(lease=LEASE))
        for notice in found:
            self._agree(notice.state, self.now)
            self._agree(notice.state == self.last, False)
            self.last = UNSURE
        return found

    @rule(who=st.integers(0, 1))
    def take(self, who: int) -> None:
        self.out += self._due(who)

    @rule(who=st.integers(0, 1), told=st.booleans())
    def take_and_die(self, who: int, told: bool) -> None:
        """Its worker dies before or after it has told it, and never says so."""
        for notice in self._due(who):
            if told:
                self.heard = notice.state

    @precondition(lambda self: self.out)
    @rule(at=st.integers(0, 5), who=st.integers(0, 1))
    def tell(self, at: int, who: int) -> None:
        notice = self.out.pop(at % len(self.out))
        self.heard = notice.state
        settled = self.gates[who].told(notice)
        self._agree(settled, notice.state == self.now)
        if not settled and self.now is not None:
            self.last = UNSURE
        elif settled and self.last != notice.state:
            self.told[notice.state], self.last = self.ms, notice.state

    @rule()
    def forget(self) -> None:
        self._agree(self.gates[0].forget("k"), self.now is not None)
        self.now, self.last, self.told = None, None, {}

    # -- what must always be so -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """When nothing moves any more, the subscriber knows how it is."""
        if self.wrong:
            return
        for _ in range(4):
            while self.out:
                self.tell(0, 0)
            self._pass(WINDOW)
            self.take(0)
        assert not self.out, "told again and again"
        if self.now is not None:
            assert self.heard == self.now


class IdMachine(RuleBasedStateMachine):
    """Three processes, three ids. Time passes by shortening the life of every key."""

    server: redis.Redis
    clients: list[Holdfast]
    number = 0

    def __init__(self) -> None:
        super().__init__()
        IdMachine.number += 1
        self.space = f"s{IdMachine.number}"
        self.known: dict[str, tuple[str, float]] = {}
        """What is known of an id: `marked`, `done` or which claim has it; and for how long."""
        self.claims: dict[str, Any] = {}

    def _mark(self, name: str, kind: str, seconds: float) -> None:
        self.known[name] = (kind, seconds)

    @rule(
        who=st.integers(0, 2), names=st.lists(st.sampled_from("abc"), max_size=4), within=st.sampled_from([5.0, 20.0])
    )
    def filter_new(self, who: int, names: list[str], within: float) -> None:
        expected = [name for name in dict.fromkeys(names) if name not in self.known]
        assert self.clients[who].filter_new(self.space, names, within) == expected
        for name in expected:
            self._mark(name, "marked", within)

    @rule(who=st.integers(0, 2), name=st.sampled_from("abc"))
    def begin(self, who: int, name: str) -> None:
        claim = self.clients[who].claim(self.space, name, 20.0, lease=10.0).begin()
        there = self.known.get(name)
        expected = "mine" if there is None else "done" if there[0] in ("marked", "done") else "busy"
        assert claim.state == expected
        if claim:
            token = claim._hold.token
            self.claims[token] = (name, claim)
            self._mark(name, token, 10.0)

    @precondition(lambda self: self.claims)
    @rule(at=st.integers(0, 9), confirm=st.booleans())
    def end(self, at: int, confirm: bool) -> None:
        """Whether it is still its own or not: only its owner can do anything to it."""
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

    @rule(names=st.lists(st.sampled_from("abc"), max_size=2))
    def forget(self, names: list[str]) -> None:
        assert self.clients[0].forget(self.space, *names) == len(set(names) & self.known.keys())
        for name in names:
            self.known.pop(name, None)

    @rule(seconds=st.sampled_from([3, 6, 12]))
    def time_passes(self, seconds: int) -> None:
        for key in list(self.server.scan_iter(match=f"hf:*:{self.space}:*")):
            left = self.server.pttl(key) - seconds * 1000
            self.server.pexpire(key, left) if left > 0 else self.server.delete(key)
        self.known = {name: (kind, left - seconds) for name, (kind, left) in self.known.items() if left > seconds}

    @invariant()
    def nothing_lives_for_ever(self) -> None:
        for key in self.server.scan_iter(match="hf:*"):
            assert self.server.pttl(key) > 0, key

    def teardown(self) -> None:
        for _, claim in self.claims.values():
            claim.release()


def run(machine: type[RuleBasedStateMachine], steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(**tries(30, 2000), stateful_step_count=steps, suppress_health_check=list(HealthCheck)),
    )


def warm_up(client: Holdfast, server: redis.Redis) -> None:
    """The server has every script, so that steps are counted alike in each run."""
    server.set(CLOCK_KEY, 1_800_000_000_000, ex=600)
    for name in ("once/gate", "once/untell", "once/due", "once/told", "once/forget"):
        server.script_load(client._core.scripts.get(name).source)


def test_a_gate_follows_its_rule_and_leaves_nobody_with_the_wrong_state(backends: Backends) -> None:
    backend = backends.get("valkey")
    backend.flush()
    server = backend.owner.client()
    with Holdfast(backend.url) as one, Holdfast(backend.url) as two:
        GateMachine.server, GateMachine.clients, GateMachine.plan = server, [one, two], Plan({}, KeyboardInterrupt)
        for client in (one, two):
            client._core.scripts = MovedClock()
            warm_up(client, server)
        install(one, GateMachine.plan)
        try:
            run(GateMachine, 30)
        finally:
            server.flushall()
            server.close()


def test_ids_and_claims_agree_with_a_dict(backends: Backends) -> None:
    backend = backends.get("valkey")
    backend.flush()
    server = backend.owner.client()
    with Holdfast(backend.url) as one, Holdfast(backend.url) as two, Holdfast(backend.url) as three:
        IdMachine.server, IdMachine.clients = server, [one, two, three]
        try:
            run(IdMachine, 30)
        finally:
            server.flushall()
            server.close()
