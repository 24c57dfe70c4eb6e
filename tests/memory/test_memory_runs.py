"""The archive of runs: ended runs and their events in SQL, once, however often they are handed in."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import ConfigurationError, Event, Holdfast, Run
from holdfast.events import Dropped
from holdfast.memory import Memory, RunArchive, Store
from holdfast.runs import archiver
from support.conditions import until


def ended(run_id: str = "run-1", **changes: Any) -> Run:
    made = Run(
        id=run_id, state="completed", key="project-9", kind="agent", owner="", attempt=2, fence=7, created=10.0,
        started=11.0, ended=12.0, progress=12.0, heartbeat=None, remaining=0.0, reason="", stop_reason="", waits=False,
        events=2, dropped=0, last_event="12000-1", input={"prompt": "tea?"}, result=b"\x00yes",
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


EVENTS = [Event("11000-0", {"token": "hi"}, 11.0), Event("12000-0", {"state": "completed"}, 12.0, "end")]


def test_a_run_is_kept_once_with_its_events(url: str) -> None:
    with Store(url) as store:
        archive = RunArchive(store)

        # when the same run is handed in twice
        assert archive.keep("agent", ended(), EVENTS) is True
        assert archive.keep("agent", ended(), EVENTS) is False

        # expect one, with all that was known
        (listed,) = archive.list("agent")
        assert (listed.id, listed.state, listed.events) == ("run-1", "completed", ())
        found = archive.get("agent", "run-1")
        assert found is not None
        assert (found.key, found.kind, found.attempt) == ("project-9", "agent", 2)
        assert (found.input, found.result) == ({"prompt": "tea?"}, {"$bytes": "AHllcw=="})
        assert [event["kind"] for event in found.events] == ["data", "end"]
        assert found.events[0]["data"] == {"token": "hi"}
        assert archive.get("agent", "other") is None
        assert archive.get("workflow", "run-1") is None


def test_runs_are_found_by_key_and_state_and_forgotten(url: str) -> None:
    with Store(url) as store:
        archive = RunArchive(store)
        archive.keep("agent", ended("a", ended=20.0), ())
        archive.keep("agent", ended("b", ended=30.0, state="failed", reason="worker lost \x00"), ())
        archive.keep("agent", ended("c", ended=40.0, key=None), ())

        assert [run.id for run in archive.list("agent")] == ["c", "b", "a"]
        assert [run.id for run in archive.list("agent", key="project-9")] == ["b", "a"]
        assert [run.reason for run in archive.list("agent", state="failed")] == ["worker lost \ufffd"]
        assert archive.forget("agent", before=25.0) == 1
        assert archive.forget("agent", key="project-9") == 1
        assert [run.id for run in archive.list("agent")] == ["c"]


async def test_ended_runs_are_archived_while_the_workers_work(valkey: Any, url: str) -> None:
    async with Holdfast(valkey.url) as hf, Memory(url) as memory:
        agent, archive = hf.runs("agent", archive=True), RunArchive(memory)
        hf.archive(agent, archive)

        @hf.runner(agent)
        async def think(run: Any) -> str:
            for number in range(3):
                await run.emit({"n": number})
            if run.id == "bad":
                raise ValueError("no")
            return "done"

        working = asyncio.create_task(hf.work())
        await agent.start("good", {"prompt": "hi"}, key="k")
        await agent.start("bad", {"prompt": "hi"})

        # expect both, with their events, and nothing left to do
        await until(lambda: len(archive.list("agent")) == 2, within=30)
        good, bad = archive.get("agent", "good"), archive.get("agent", "bad")
        assert good is not None
        assert bad is not None
        assert (good.state, good.result, good.key) == ("completed", "done", "k")
        assert [event["data"] for event in good.events[:3]] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert (bad.state, bad.reason) == ("failed", "ValueError: no")
        assert good.events[-1]["kind"] == bad.events[-1]["kind"] == "end"
        await until(lambda: not any(map(re.compile(".*:arch").fullmatch, valkey.keys())), within=30)
        hf.stop_work()
        await working


async def test_what_the_store_refuses_stays_listed_and_comes_again(
    valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiver, "AGAIN", 0.3)
    monkeypatch.setattr(archiver, "PAUSE", 0.1)

    class Shaky:
        def __init__(self) -> None:
            self.tries = 0

        async def keep(self, collection: str, run: Run, events: Sequence[Event]) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError("the database is away")

    async with Holdfast(valkey.url) as hf:
        agent, store = hf.runs("agent", archive=True), Shaky()
        hf.archive(agent, store)
        async with await agent.claim("run-1"):
            pass
        working = asyncio.create_task(hf.work())
        await until(lambda: store.tries == 2, within=30)
        hf.stop_work()
        await working


async def test_a_run_that_is_gone_before_it_was_archived_is_counted(valkey: Any) -> None:
    told: list[Any] = []

    class Never:
        def keep(self, collection: str, run: Run, events: Sequence[Event]) -> None:
            raise AssertionError("nothing is left to keep")

    async with Holdfast(valkey.url, observers=[told.append]) as hf:
        agent = hf.runs("agent", archive=True, retention=0.05)
        async with await agent.claim("run-1"):
            pass
        await until(lambda: not any(map(re.compile(".*:r:.*").fullmatch, valkey.keys())))
        hf.archive(agent, Never())
        working = asyncio.create_task(hf.work())
        await until(lambda: [one for one in told if isinstance(one, Dropped)])
        assert [(one.what, one.reason, one.count) for one in told if isinstance(one, Dropped)] == [
            ("run", "not archived in time", 1)
        ]
        hf.stop_work()
        await working


async def test_a_collection_that_is_not_listed_for_it_cannot_be_archived(valkey: Any, sqlite_url: str) -> None:
    async with Holdfast(valkey.url) as hf, Memory(sqlite_url) as memory:
        with pytest.raises(ConfigurationError, match="archive=True"):
            hf.archive(hf.runs("agent"), RunArchive(memory))
