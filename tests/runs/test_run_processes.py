"""Runs and real processes: owners that are killed, frozen, blocked, drained and forked."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_process_apps import BLOCKING, COROUTINE, FORKING, LEASE, PLAIN, Reader, RunSite, runs_on, words

from holdfast import RunActive
from holdfast.sync.runs import Runs
from support.backends import Backend
from support.conditions import until_blocking

HANDLERS = pytest.mark.parametrize("handler", [COROUTINE, PLAIN], ids=["coroutine", "plain"])


@pytest.fixture
def site(tmp_path: Path, valkey: Backend) -> RunSite:
    return RunSite(tmp_path, valkey.url)


@pytest.fixture
def agent(valkey: Backend) -> Iterator[Runs]:
    with runs_on(valkey.url) as runs:
        yield runs


# -- killed ---------------------------------------------------------------------------------------------------------


@HANDLERS
def test_a_killed_owners_run_goes_on_in_another_process(site: RunSite, agent: Runs, handler: str):
    site.write(handler)
    with site.run() as first:
        first.working()
        agent.start("r")
        reader = Reader(agent, "r")
        (old,) = first.told("saved")
        with site.run() as second:
            second.working()
            time.sleep(LEASE)  # longer than the lease: it was renewed
            assert not second.facts
            killed = time.time()
            first.signal(signal.SIGKILL)
            (new,) = second.told("got", within=LEASE + 5)
            # expect it with its checkpoint, in another attempt, with a higher fence
            assert (new["attempt"], new["saved"]) == (2, 1)
            assert new["fence"] > old["fence"]
            events = reader.end()
    assert words(events) == ["first", 2, "first", "last", "completed"]
    assert events[1].data["after"] == events[0].id, "what came after the checkpoint is repeated"
    assert events[1].at - killed < LEASE + 1
    run = agent.get("r")
    assert (run.state, run.result, run.attempt) == ("completed", 2, 2)


def test_when_all_owners_are_dead_whoever_looks_is_told(site: RunSite, agent: Runs):
    """PITFALL 31: a run that cannot go on does not say "running" for ever."""
    with site.write(resumable=False).run() as only:
        only.working()
        agent.start("looked at")
        agent.start("read")
        only.told("saved", 2)
        reader = Reader(agent, "read")
        only.signal(signal.SIGKILL)
        only.wait()
    # when nobody works any more, expect the one who looks to see how it ended
    until_blocking(lambda: agent.get("looked at").over, within=LEASE + 3, what="the end of the run")
    run = agent.get("looked at")
    assert (run.state, run.reason, run.attempt, run.owner) == ("failed", "worker lost", 1, "")
    # and the reader who only waits
    assert words(reader.end(within=LEASE + 6)) == ["first", "failed"]
    assert agent.list(state="running") == []


def test_when_all_owners_are_dead_a_resumable_run_waits_for_the_next_process(site: RunSite, agent: Runs):
    site.write()
    with site.run() as first:
        first.working()
        agent.start("r")
        first.told("saved")
        reader = Reader(agent, "r")
        first.signal(signal.SIGKILL)
        first.wait()
    until_blocking(lambda: agent.get("r").state == "queued", within=LEASE + 3, what="the run back in the queue")
    with site.run() as second:
        second.told("done", within=15)
        assert words(reader.end()) == ["first", 2, "first", "last", "completed"]


def test_a_run_that_kills_its_owners_ends_after_so_many(site: RunSite, agent: Runs):
    site.write(attempts=2, then=60)
    with site.run() as first, site.run() as second:
        first.working()
        second.working()
        agent.start("r")
        until_blocking(lambda: first.facts or second.facts, what="an owner")
        owner, other = (first, second) if first.facts else (second, first)
        owner.told("saved")
        owner.signal(signal.SIGKILL)
        other.told("saved", within=LEASE + 5)
        other.signal(signal.SIGKILL)
        run = agent.wait("r", timeout=LEASE + 6)
    assert (run.state, run.reason, run.attempt) == ("failed", "worker lost", 2)


# -- frozen and blocked ---------------------------------------------------------------------------------------------


@HANDLERS
@pytest.mark.parametrize("then", [0, 2.5], ids=["after the end", "meanwhile"])
def test_an_owner_frozen_past_its_lease_is_told_and_refused(site: RunSite, agent: Runs, handler: str, then: float):
    site.write(handler, then=then)
    with site.run() as frozen:
        frozen.working()
        agent.start("r")
        reader = Reader(agent, "r")
        (old,) = frozen.told("saved")
        with site.run() as other:
            other.working()
            frozen.signal(signal.SIGSTOP)
            (new,) = other.told("saved", within=LEASE + 5)
            if not then:
                other.told("done")
            # when it goes on, expect it to learn that it lost the run, and what it writes to be refused
            frozen.signal(signal.SIGCONT)
            (told,) = frozen.told("interrupted")
            assert (told["lost"], told["attempt"]) == (True, 1)
            frozen.told("refused")
            events = reader.end()
            assert words(events) == ["first", 2, "first", "last", "completed"]
            fences = [event.data["fence"] for event in events if event.kind == "data"]
            assert fences == [old["fence"], new["fence"], new["fence"]]
            run = agent.get("r")
            assert (run.state, run.attempt, run.fence) == ("completed", 2, new["fence"])
            # and it works on, with the next ones
            other.signal(signal.SIGSTOP)
            for number in range(6):
                agent.start(f"next-{number}")
            until_blocking(
                lambda: [fact for fact in frozen.facts if fact["what"] == "got" and fact["run"] != "r"],
                what="another run",
            )
            other.signal(signal.SIGKILL)


def test_a_blocked_event_loop_loses_nothing(site: RunSite, agent: Runs):
    site.write(BLOCKING, first=3 * LEASE)
    with site.run() as blocked, site.run() as other:
        blocked.working()
        other.working()
        agent.start("r")
        run = agent.wait("r", timeout=3 * LEASE + 10)
        assert (run.state, run.attempt, run.result) == ("completed", 1, 1)
        assert len([fact for fact in [*blocked.facts, *other.facts] if fact["what"] == "got"]) == 1


# -- told to end ----------------------------------------------------------------------------------------------------


@HANDLERS
def test_sigterm_lets_a_run_finish(site: RunSite, agent: Runs, handler: str):
    with site.write(handler, first=0.8).run() as app:
        app.working()
        agent.start("r")
        app.told("saved")
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
        assert app.told("done")[0]["draining"] is True
        assert app.errors == []
    run = agent.get("r")
    assert (run.state, run.attempt) == ("completed", 1)


@HANDLERS
def test_sigterm_hands_over_what_cannot_finish(site: RunSite, agent: Runs, handler: str):
    """At once, not when the lease is over; and a plain function that goes on does not keep the process."""
    site.write(handler, drain=0.2, lease=30)
    with site.run() as first:
        first.working()
        agent.start("r")
        reader = Reader(agent, "r")
        first.told("saved")
        with site.run() as second:
            second.working()
            first.signal(signal.SIGTERM)
            (new,) = second.told("got", within=8)
            assert (new["attempt"], new["saved"]) == (2, 1)
            events = reader.end()
            assert first.wait() == 0
    said = words(events)
    assert [word for word in said if word != "late"] == ["first", 2, "first", "last", "completed"]
    assert "late" not in said[said.index(2) :]


def test_a_run_that_cannot_go_on_fails_when_its_process_shuts_down(site: RunSite, agent: Runs):
    with site.write(drain=0.2, lease=30, resumable=False).run() as app:
        app.working()
        agent.start("r")
        app.told("saved")
        app.signal(signal.SIGTERM)
        assert app.wait() == 0
    run = agent.get("r")
    assert (run.state, run.reason, run.attempt) == ("failed", "worker shut down", 1)


def test_a_hand_over_does_not_count_as_an_attempt(site: RunSite, agent: Runs):
    """Two deployments and one crash: with max_attempts=2 the run still goes on."""
    site.write(drain=0.2, attempts=2, then="60 if run.attempt < 4 else 0")
    agent.start("r")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        with site.run() as app:
            app.told("saved", within=15)
            app.signal(number)
            app.wait()
    with site.run() as last:
        (got,) = last.told("got", within=15)
        assert (got["attempt"], got["saved"]) == (4, 3)
        assert agent.wait("r", timeout=10).state == "completed"


# -- stopped from another process -----------------------------------------------------------------------------------


@HANDLERS
def test_a_stop_reaches_the_handler(site: RunSite, agent: Runs, handler: str):
    with site.write(handler, lease=30).run() as app:
        app.working()
        agent.start("r")
        app.told("saved")
        asked = time.time()
        assert agent.stop("r", "enough").state == "stopping"
        run = agent.wait("r", timeout=5)
        assert run.ended - asked < 1
        assert app.told("interrupted")[0]["stopping"] is True
        assert (run.state, run.reason, run.stop_reason, run.attempt) == ("stopped", "enough", "enough", 1)
        # its last word is kept
        assert words(list(agent.events("r"))) == ["first", "late", "stopped"]


def test_a_stop_whose_message_is_lost_reaches_the_handler_all_the_same(site: RunSite, agent: Runs, valkey: Backend):
    """PITFALL 32: the worker's subscription is cut each time it is made."""
    client = valkey.owner.client()
    with site.write(lease=30).run() as app:
        app.working()
        agent.start("r")
        app.told("saved")
        client.client_kill_filter(_type="pubsub")
        assert agent.stop("r").state == "stopping"
        asked = time.monotonic()
        while not agent.get("r").over:
            client.client_kill_filter(_type="pubsub")
            assert time.monotonic() - asked < 6
            time.sleep(0.02)
        app.told("interrupted")
        assert agent.get("r").state == "stopped"
    client.close()


def test_a_stop_before_any_process_is_there_is_not_forgotten(site: RunSite, agent: Runs):
    agent.start("r")
    assert agent.stop("r", "changed my mind").state == "stopped"
    with site.write(first=0).run() as app:
        app.working()
        agent.start("next")
        assert agent.wait("next", timeout=10).state == "completed"
        assert {fact["run"] for fact in app.facts} == {"next"}
    assert agent.get("r").state == "stopped"


@pytest.mark.parametrize("comes_back", [False, True], ids=["killed", "goes on"])
def test_a_stop_while_the_owner_is_frozen(site: RunSite, agent: Runs, comes_back: bool):
    """Dead or not: it ends stopped, and no other process runs it again."""
    site.write()
    with site.run() as frozen:
        frozen.working()
        agent.start("r")
        reader = Reader(agent, "r")
        frozen.told("saved")
        with site.run() as other:
            other.working()
            frozen.signal(signal.SIGSTOP)
            assert agent.stop("r").state == "stopping"
            if comes_back:
                frozen.signal(signal.SIGCONT)
                assert frozen.told("interrupted")[0]["stopping"] is True
            else:
                frozen.signal(signal.SIGKILL)
            assert words(reader.end(within=LEASE + 6))[-1] == "stopped"
            assert not other.facts


# -- the guard alone ------------------------------------------------------------------------------------------------

CLAIM = """
import asyncio, json, os
import holdfast

async def main():
    async with holdfast.Holdfast({url!r}) as hf:
        agent = hf.runs("agent", lease={lease})
        async with await agent.claim("r", input="x") as run:
            await run.checkpoint("half")
            os.write(1, (json.dumps(dict(what="claimed", attempt=run.attempt, saved=run.saved)) + "\\n").encode())
            await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_claim_is_taken_over_when_its_owner_was_killed(site: RunSite, agent: Runs):
    with site.script(CLAIM.format(url=site.url, lease=LEASE)) as owner:
        owner.told("claimed", within=15)
        with pytest.raises(RunActive) as busy:
            agent.claim("r", input="x")
        assert f" {owner.process.pid}" in busy.value.run.owner
        owner.signal(signal.SIGKILL)
        killed = time.monotonic()
        run = None
        while run is None:
            with contextlib.suppress(RunActive):
                run = agent.claim("r", input="x")
            assert time.monotonic() - killed < LEASE + 2
        with run:
            assert (run.attempt, run.saved, run.input) == (2, "half", "x")
            run.result = "whole"
    assert agent.get("r").result == "whole"


# -- forked ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_does_not_own_its_parents_run(site: RunSite, agent: Runs):
    """PITFALL 49."""
    with site.write(FORKING, first=1.5 * LEASE).run() as app:
        app.working()
        agent.start("r")
        (done,) = app.told("done", within=20)
        child = done["child"]
        assert child.pop("flush", "blocked") in ("done", "LeaseLost"), "what is on its way is its parent's"
        assert child == {
            "lost": True, "left": 0.0, "check": "LeaseLost", "emit": "LeaseLost", "checkpoint": "LeaseLost",
        }  # fmt: skip
        run = agent.wait("r", timeout=5)
    assert (run.state, run.result, run.attempt) == ("completed", "parent", 1)
    assert [event.data for event in agent.events("r") if event.kind == "data"] == ["before", "on its way", "after"]
