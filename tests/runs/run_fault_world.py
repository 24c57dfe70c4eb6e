"""One subject whose operation meets the faults, one bystander who sets up, looks at the result and goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import redis
from run_fault_plan import RunPlan
from run_model_audit import Record, View

from holdfast import LeaseLost
from holdfast.engine.payload import decode, encode
from holdfast.runs import owning
from holdfast.runs.feed import Reader
from holdfast.runs.owning import Given
from holdfast.runs.record import _RECORD, Event, pack_events
from support.conditions import until
from support.faults import install

LEASE = 5.0
BASE = "hf:{runs.agent}:"
TERMS: dict[str, Any] = {"lease": LEASE, "retention": 60, "max_attempts": 5, "max_waiting": 3}


class World:
    """What happened and what must therefore be so."""

    def __init__(self, server: redis.Redis, subject: Any, bystander: Any, plan: RunPlan) -> None:
        self.server, self.subject, self.bystander, self.plan = server, subject, bystander, plan
        self.lease = 5.0
        """Of what the subject owns before the faults begin."""
        self.given: Given | None = None
        """What the subject owns, if its operation gave it something and it was told."""
        self.reader: Any = None
        self.done: Callable[[View], bool] | None = None
        """Did what the operation is for happen? True after it returned, False after Unavailable."""
        self.sure: dict[str, list[str]] = {}
        """Events by run that are stored, in order."""
        self.maybe: dict[str, list[str]] = {}
        """Events that may follow them, all or none."""
        self.kept: list[Given] = []
        """What the bystander owns."""

    # -- doing -------------------------------------------------------------------------------------------------

    @staticmethod
    def runs(hf: Any) -> Any:
        return hf.runs("agent", **TERMS)

    def by(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.bystander.do(lambda hf: getattr(self.runs(hf), method)(*args, **kwargs))

    def does(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.subject.do(lambda hf: getattr(self.runs(hf), method)(*args, **kwargs))

    def flow(self, who: Any, make: Callable[..., Any], *args: Any) -> Any:
        """Somebody runs a flow, with client and collection as its first arguments."""
        return who.do(lambda hf: hf._open.run(make(hf._core, self.runs(hf)._spec, *args)))

    def arm(self) -> None:
        """From here on the subject's steps meet the faults."""
        install(self.subject.hf, self.plan)

    def view(self) -> View:
        return View(self.server, BASE)

    def take(self, who: Any, most: int = 4, attempts: int = 5, lease: float = LEASE) -> Any:
        def go(hf: Any) -> Any:
            home = hf._open.home()
            return hf._open.run(
                owning.take(hf._core, self.runs(hf)._spec, hf._core.new_token(), most, attempts, lease, home)
            )

        return who.do(go)

    def claim(self, who: Any, run: str, lease: float = LEASE, **options: Any) -> Any:
        def go(hf: Any) -> Any:
            home, spec = hf._open.home(), self.runs(hf)._spec
            key, data = options.get("key"), options.get("data")
            return hf._open.run(owning.claim(hf._core, spec, run, data, key, lease, 5, home))

        return who.do(go)

    def write(self, who: Any, given: Given, number: int, events: list[str], *more: Any) -> Any:
        return self.flow(who, owning.write, given, number, blob(events), *more)

    def settle(self, who: Any, given: Given, number: int, events: list[str], outcome: str, delay: float = 0.0) -> Any:
        return self.flow(
            who, owning.settle, given, number, blob(events), outcome, f"because {outcome}", encode("result", 100), delay
        )

    async def owned_by_subject(self, *events: str) -> Given:
        """A run `a` that the subject owns before the faults begin, with these events."""
        await self.by("start", "a", {"x": 1}, key="k")
        look = await self.take(self.subject, 1, 5, self.lease)
        (self.given,) = look.given
        if events:
            await self.write(self.subject, self.given, 1, list(events))
            self.sure["a"] = list(events)
        return self.given

    async def owned_by_bystander(self, run: str, **options: Any) -> Given:
        await self.by("start", run, **options)
        (given,) = (await self.take(self.bystander, 1, 5, 5.0)).given
        self.kept.append(given)
        return given

    async def expired(self, run: str, **options: Any) -> None:
        """A run whose owner is lost; nobody has looked yet."""
        await self.by("start", run, **options)
        (given,) = (await self.take(self.bystander, 1)).given
        await self.bystander.do(lambda hf: hf._core.end(given.hold))
        self.run_out([self.view().runs[run]])

    def run_out(self, records: list[Record]) -> None:
        """The leases of these are over, as if their time had passed: so they can be long, and nobody waits for it."""
        now = server_ms(self.server)
        pipe = self.server.pipeline(transaction=True)
        for record in records:
            left = record.number["deadline"] - now
            assert left <= LEASE * 1000, f"{record.id} is held for {left} ms"
            meta = _RECORD.pack(*{**record.number, "deadline": now - 1}.values()) + record.token.encode()
            pipe.hset(f"{BASE}r:{record.id}", "m", meta)
            pipe.zadd(f"{BASE}held", {record.id: now - 1}, xx=True)
        pipe.execute()

    # -- after it ----------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """What goes on in the background is done, and what was late has arrived."""
        hf = self.subject.hf
        while working := set(getattr(hf._open, "_background", ())):
            await asyncio.wait(working, timeout=5)
        if self.plan.late:
            await self.subject.do(lambda hf: hf._open.run(self.plan.deliver()))

    def no_leak(self) -> None:
        """No hold, feed or token that nobody has."""
        core = self.subject.hf._core
        mine = {self.given.hold.token} if self.given and not self.given.hold.over else set()
        assert set(core.holds) == mine, f"holds left: {set(core.holds) - mine}"
        assert not core.feeds, f"feeds left: {core.feeds}"
        assert not core.mailbox.feeds
        assert not core.mailbox._slots, f"tokens left: {core.mailbox._slots}"
        channels = [name for name in self.server.pubsub_shardchannels() if b"ev:" in name]
        assert not channels, f"subscriptions left: {channels}"

    async def finish(self) -> None:
        """Somebody ends all that is left: nothing is stuck, and everything ends once."""
        for given in self.kept:
            with contextlib.suppress(LeaseLost):
                await self.settle(self.bystander, given, 9, [], "completed")

        async def all_over() -> bool:
            for given in (await self.take(self.bystander, 8, 60_000, 5.0)).given:
                assert await self.settle(self.bystander, given, 1, [], "completed") in ("completed", "stopped")
            view = self.view()
            for run in [r.id for r in view.runs.values() if r.state == "queued" and r.has(2)]:
                given = await self.claim(self.bystander, run, 5.0)
                await self.settle(self.bystander, given, 1, [], "completed")
            view = self.view()
            view.check()
            return all(run.over for run in view.runs.values())

        await until(all_over, within=2.5, what="the end of every run")

    async def read(self, run: str) -> list[Event]:
        """What a reader from the start is told."""
        hf = self.bystander.hf
        reader = Reader(hf._core, self.runs(hf)._spec, run, None, 5.0, None)
        seen: list[Event] = []
        while not reader.over:
            seen += await self.bystander.do(lambda hf: hf._open.run(reader.more()))
        await self.bystander.do(lambda hf: reader.leave(hf._open))
        return seen

    async def ended_once(self, view: View) -> None:
        for run in view.runs.values():
            events = await self.read(run.id)
            ends = [event for event in events if event.kind == "end"]
            assert ends == [events[-1]], f"{run.id} has the end events {ends}"
            assert ends[0].data["state"] == run.state
            assert [event.data for event in events if event.kind == "data"] == view.data(run.id)
            resumed = [event.data["attempt"] for event in events if event.kind == "resumed"]
            assert resumed == list(range(2, run.number["attempt"] + 1))

    def stored(self, view: View) -> None:
        """Every event once and in order; those that were not told to be stored all or none."""
        for run, sure in self.sure.items():
            maybe = self.maybe.get(run, [])
            assert view.data(run) in (sure, [*sure, *maybe]), f"{run} has {view.data(run)}, not {sure} (+ {maybe})"
        for run in view.runs:
            if run not in self.sure:
                assert view.data(run) in ([], self.maybe.get(run, []))


def blob(events: list[str]) -> bytes:
    return pack_events([encode(event, 1000) for event in events]) if events else b""


def server_ms(server: redis.Redis) -> int:
    seconds, micro = server.time()
    return int(seconds * 1000 + micro // 1000)


def saved(given: Given) -> Any:
    return decode(given.saved) if given.saved else None
