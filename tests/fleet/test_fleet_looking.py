"""Looking at the fleet: series in pieces of time, gauges, the audit log with pages; on both twins and every server."""

from __future__ import annotations

import pytest

from holdfast import ConfigurationError, Holdfast, ServerFull
from holdfast.testing import LocalServer
from support.actors import Fleet
from support.backends import Backend
from support.faults import Plan, every_step, install


async def test_every_look_works_on_every_server_and_both_twins(backend: Backend, api: str):
    fleet = Fleet(backend.url, api)
    actor = await fleet.actor(report=0.05, name="me")
    try:
        await actor.do(lambda hf: hf.buffer("b").append("u", 1))
        entry = await actor.do(lambda hf: hf.fleet.record("stop", "runs:agent r", "enough", by="night"))
        await actor.do(lambda hf: hf.fleet.outcome(entry, "stopped"))
        (found,) = await actor.do(lambda hf: hf.fleet.actions())
        assert (found.id, found.action, found.target, found.reason, found.by, found.outcome) == (
            entry, "stop", "runs:agent r", "enough", "night", "stopped",
        )  # fmt: skip
        await actor.do(lambda hf: hf.fleet.gauge({"due": 7.5}))
        series = await actor.do(lambda hf: hf.fleet.series(60))
        assert series.slots[-1].gauges.get("due", series.slots[-2].gauges.get("due")) == 7.5
        assert await actor.do(lambda hf: hf.fleet.names()) is not None
        assert await actor.do(lambda hf: hf.fleet.processes(1)) is not None
    finally:
        await fleet.close()
    async with Holdfast(backend.url, report=0) as looking:
        assert (await looking.fleet.totals())["appended"] == 1
        assert await looking.fleet.processes() == []
        assert {(one.kind, one.name) for one in await looking.fleet.names()} == {("buffer", "b")}


async def test_series_have_no_gaps_and_end_now(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as hf:
        for seconds, step in ((1, 10), (60, 10), (3600, 10), (3601, 300), (172_800, 300)):
            found = await hf.fleet.series(seconds)
            assert found.step == step
            ats = [slot.at for slot in found.slots]
            assert ats == [ats[0] + number * step for number in range(len(ats))]
            assert ats[-1] <= found.now < ats[-1] + step
            assert ats[0] <= found.now - seconds
        for seconds in (0, -1, 172_801, float("nan")):
            with pytest.raises(ConfigurationError):
                await hf.fleet.series(seconds)


async def test_the_last_measurement_of_a_piece_of_time_counts(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as hf:
        await hf.fleet.gauge({"due": 1, "old": 0.25})
        await hf.fleet.gauge({"due": 3})
        found: dict[str, float] = {}
        for slot in (await hf.fleet.series(60)).slots:
            found |= slot.gauges
        assert found == {"due": 3, "old": 0.25}
        assert any(slot.gauges for slot in (await hf.fleet.series(7200)).slots)


async def test_the_audit_log_has_pages_that_neither_miss_nor_repeat(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as hf:
        ids = [await hf.fleet.record("stop", f"t{number}", "why") for number in range(23)]
        seen, before = [], None
        while page := await hf.fleet.actions(5, before=before):
            seen += [one.id for one in page]
            before = page[-1].id
        assert seen == ids[::-1]
        (first,) = await hf.fleet.actions(1)
        assert first.by, "whoever it was, at least the process is named"
        assert first.outcome == ""
        assert await hf.fleet.actions(5, before="0-0") == []
        for wrong in ("", "x", "1", "+", "-", "1-1-1", 7, "9" * 30 + "-1"):
            with pytest.raises(ConfigurationError):
                await hf.fleet.actions(5, before=wrong)
        for wrong in (0, 1001, -1):
            with pytest.raises(ConfigurationError):
                await hf.fleet.actions(wrong)
        for words in (("", "t", "r"), ("a", "t", ""), ("a" * 1001, "t", "r"), ("a", "t" * 1001, "r"), ("a", "t", None)):
            with pytest.raises(ConfigurationError):
                await hf.fleet.record(*words)


async def test_hostile_text_in_the_audit_log_comes_back_as_it_was(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as hf:
        for text in ("<script>", "a\nb\x00c", "\u202e", "日本", "x" * 1000):
            await hf.fleet.record("stop", text, text, by=text)
            (found,) = await hf.fleet.actions(1)
            assert (found.target, found.reason, found.by) == (text, text, text)
        await hf.fleet.record("stop", "\ud800", "lone")
        assert (await hf.fleet.actions(1))[0].target == "?"


async def test_an_action_is_recorded_once_whatever_becomes_of_the_reply(valkey: Backend):
    for fault in ("reply dropped", "silent", "cut before"):
        for number, faults in enumerate(every_step(fault)):
            async with Holdfast(valkey.url, report=0, call_timeout=0.3, retry_for=2.0) as hf:
                plan = Plan(faults, InterruptedError)
                install(hf, plan)
                entry = await hf.fleet.record("stop", f"{fault} {number}", "why")
                plan.faults = {}
                found = [one for one in await hf.fleet.actions() if one.target == f"{fault} {number}"]
                assert [one.id for one in found] == [entry]
            if not plan.hits:
                break


async def test_names_may_be_anything_that_a_collection_can_be_called(valkey: Backend):
    names = ["a:b", "{x}", "日本", "a b", "%"]
    async with Holdfast(valkey.url, report=3600) as hf:
        for name in names:
            await hf.buffer(name).append("u", 1)
    async with Holdfast(valkey.url, report=0) as looking:
        assert {one.name for one in await looking.fleet.names()} == set(names)


async def test_what_frees_memory_can_be_written_down_on_a_server_that_is_full():
    with LocalServer() as server:
        async with Holdfast(server.url, report=0) as hf:
            await hf.buffer("b").append("u", 1)
            server.call("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(ServerFull):
                await hf.buffer("b").append("u", 2)
            entry = await hf.fleet.record("forget", "user:u", "the server is full")
            await hf.buffer("b").forget("u")
            await hf.fleet.outcome(entry, "done")
            assert [one.outcome for one in await hf.fleet.actions()] == ["done"]
