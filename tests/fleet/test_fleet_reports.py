"""What processes tell of themselves: it adds up, it is counted once, and telling it never gets in the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import holdfast
import holdfast.sync
from holdfast import Holdfast
from holdfast.testing import LocalServer
from support.backends import Backend
from support.conditions import until
from support.faults import FAULTS, Plan, every_step
from support.processes import Worker

NEVER = 3600.0
"""Only when the test says so, and at goodbye."""
QUICK = {"call_timeout": 0.3, "retry_for": 2.0}


async def cycles(hf: Holdfast, count: int, name: str = "a") -> None:
    for _ in range(count):
        async with hf.lock(name):
            pass


def key(hf: Holdfast, name: str) -> str:
    return hf._core.keys.base("fleet") + name


async def test_reports_of_several_clients_of_both_twins_add_up_exactly(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as looking:
        for number in range(3):
            async with Holdfast(valkey.url, report=0.05 if number else NEVER, name=f"p{number}") as hf:
                await cycles(hf, 10 + number)
                await hf.buffer("b").extend("u", [1, 2, 3])
                await (await hf.buffer("b").take("u")).ack()
        with holdfast.sync.Holdfast(valkey.url, report=0.05) as hf:
            for _ in range(7):
                with hf.lock("a"):
                    pass
        totals = await looking.fleet.totals()
        assert totals["granted"] == 10 + 11 + 12 + 7
        assert totals["released"] == totals["granted"]
        assert totals["appended"] == 9
        assert totals["acked"] == 3
        series = await looking.fleet.series(60)
        assert sum(slot.counts.get("granted", 0) for slot in series.slots) == totals["granted"]
        assert sum(slot.times["hold"].count for slot in series.slots if "hold" in slot.times) == totals["released"]
        assert not any(name.startswith("t:") for name in totals), "times are of interest over time only"


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_report_is_counted_once_whatever_becomes_of_its_reply(valkey: Backend, fault: str):
    """At every step of a report; the next one makes up for it."""
    done = 0
    async with Holdfast(valkey.url, report=NEVER, **QUICK) as hf:
        await hf._open.run(hf._reporter._send(bye=False))  # after this nothing is told in the background
        hf._reporter._leaving = True
        for faults in every_step(fault):
            await cycles(hf, 3)
            done += 3
            plan = Plan(faults, InterruptedError)
            try:
                await hf._open.run(plan.around(hf._reporter._send(bye=False)))
            except (holdfast.HoldfastError, InterruptedError):
                await cycles(hf, 2)  # more happens before it is tried again
                done += 2
            await hf._open.run(hf._reporter._send(bye=False))
            await hf._open.run(hf._reporter._send(bye=False))
            assert (await hf.fleet.totals())["granted"] == done
            if not plan.hits:
                break


async def test_goodbye_after_a_lost_reply_is_heard(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as looking:
        hf = await Holdfast(valkey.url, report=NEVER, **QUICK).open()
        await cycles(hf, 3)
        await until(lambda: _alive(looking))
        await cycles(hf, 2)
        plan = Plan({0: "cancel after"}, InterruptedError)
        with pytest.raises(InterruptedError):
            await hf._open.run(plan.around(hf._reporter._send(bye=False)))
        await hf.close()
        assert await looking.fleet.processes() == []
        assert (await looking.fleet.totals())["granted"] == 5


async def _alive(hf: Holdfast) -> list:
    return [one for one in await hf.fleet.processes() if one.alive]


async def test_a_process_says_what_it_is_uses_and_holds(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as looking, Holdfast(valkey.url, report=0.05, name="me") as hf:
        await hf.buffer("messages").append("u", 1)
        await hf.sessions("chat").save("s", "text")
        await hf.runs("agent").start("r")
        lease = await hf.lock("held").acquire()

        async def told():
            found = await looking.fleet.processes()
            return found if found and found[0].leases else None

        (one,) = await until(told)
        assert (one.pid, one.label, one.version, one.alive) == (os.getpid(), "me", holdfast.__version__, True)
        assert one.leases == 1
        assert {"buffer:messages", "sessions:chat", "runs:agent"} <= set(one.uses)
        assert one.works == ()
        assert one.since <= one.seen
        names = {(named.kind, named.name) for named in await looking.fleet.names()}
        assert {("buffer", "messages"), ("sessions", "chat"), ("runs", "agent")} <= names
        await lease.release()
    assert await _gone(valkey)


async def _gone(valkey: Backend) -> bool:
    async with Holdfast(valkey.url, report=0) as looking:
        left = await looking.fleet.processes()
        names = await looking.fleet.names()
        return not left and {one.name for one in names} >= {"messages", "chat", "agent"}


async def test_a_killed_process_is_shown_gone_and_then_forgotten(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as looking:
        with Worker(valkey.url, report=0.2) as worker:
            worker.ask("acquire", "acquired", name="x")
            (one,) = await until(lambda: _alive(looking))
            worker.kill()
            (gone,) = await until(lambda: _dead(looking))
            assert gone.id == one.id
            assert await _alive(looking) == []
            assert (await looking.fleet.totals())["granted"] >= 0
        # An hour later, when somebody else reports:
        server = valkey.primaries()[0]
        server.zincrby(key(looking, "alive"), -3_700_000, gone.id)
        async with Holdfast(valkey.url, report=0.05) as hf:
            await cycles(hf, 1)
            await until(lambda: _only(looking, hf._core.client_id))


async def _dead(hf: Holdfast) -> list:
    return [one for one in await hf.fleet.processes() if not one.alive]


async def _only(hf: Holdfast, client: str) -> bool:
    return [one.id for one in await hf.fleet.processes()] == [client]


async def test_a_paused_process_is_alive_again_when_it_goes_on(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as looking:
        with Worker(valkey.url, report=0.2) as worker:
            worker.ask("acquire", "acquired", name="x")
            await until(lambda: _alive(looking))
            worker.signal(signal.SIGSTOP)
            await until(lambda: _dead(looking))
            worker.signal(signal.SIGCONT)
            await until(lambda: _alive(looking))


async def test_a_client_that_is_told_not_to_report_sends_nothing(valkey: Backend):
    async with Holdfast(valkey.url, report=0) as hf:
        hf.buffer("b")
        await cycles(hf, 3)
    left = [name for name, _ in valkey.keys().items() if "{fleet}" in name]
    assert left == []


async def test_a_client_that_did_nothing_leaves_at_most_itself(valkey: Backend):
    async with Holdfast(valkey.url, report=NEVER):
        pass
    async with Holdfast(valkey.url, report=0) as looking:
        assert await looking.fleet.processes() == []
        assert await looking.fleet.totals() == {}


async def test_a_server_that_cannot_be_told_disturbs_nobody_and_is_complained_of_once(caplog):
    settings = {"report": 0.05, "call_timeout": 0.1, "retry_for": 0.1}
    with LocalServer() as server:
        async with Holdfast(server.url, **settings) as hf:
            await cycles(hf, 5)
            await until(lambda: _alive(hf))
            server.call("CONFIG", "SET", "maxmemory", "1")
            await cycles_in_spite(hf)
            await until(lambda: _complaints(caplog))
            failures = [0]
            real = hf._reporter._send

            def counted(**options):
                failures[0] += 1
                return real(**options)

            hf._reporter._send = counted
            await until(lambda: failures[0] >= 4)
            assert len(_complaints(caplog)) == 1, "one warning, and not one for each attempt"
            server.call("CONFIG", "SET", "maxmemory", "0")
            await cycles(hf, 5)
            await until(lambda: _granted(hf, 10))
    assert len(_complaints(caplog)) == 1


async def cycles_in_spite(hf: Holdfast) -> None:
    with contextlib.suppress(holdfast.ServerFull):
        await cycles(hf, 1)


async def _granted(hf: Holdfast, least: int) -> bool:
    return (await hf.fleet.totals()).get("granted", 0) >= least


def _complaints(caplog) -> list[str]:
    return [one.getMessage() for one in caplog.records
            if one.levelno >= logging.WARNING and "fleet was not told" in one.getMessage()]  # fmt: skip


async def test_an_unreachable_server_does_not_hold_up_closing():
    with LocalServer() as server:
        hf = await Holdfast(server.url, report=0.05, call_timeout=0.2, retry_for=0.2).open()
        await cycles(hf, 1)
        await until(lambda: _alive(hf))
        server.pause()
        started = time.monotonic()
        await hf.close()
        assert time.monotonic() - started < 5
        server.resume()


def test_after_a_fork_each_tells_its_own(valkey: Backend):
    """The child counts what it does itself, and nothing of the parent's again."""
    code = """
        import os, sys
        import holdfast.sync
        hf = holdfast.sync.Holdfast(sys.argv[1], report=0.05, name="parent").open()
        def cycle(count):
            for _ in range(count):
                with hf.lock("a"):
                    pass
        cycle(5)
        child = os.fork()
        cycle(3 if child == 0 else 4)
        hf.close()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), valkey.url], check=True, timeout=60)
    with holdfast.sync.Holdfast(valkey.url, report=0) as looking:
        assert looking.fleet.totals()["granted"] == 5 + 3 + 4
        assert looking.fleet.processes() == []
