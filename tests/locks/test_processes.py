"""Real processes, killed, paused, blocked and forked; real failovers under load."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from holdfast.sync import Holdfast
from holdfast.testing import LocalCluster, LocalSentinel
from support.backends import Backend
from support.conditions import until_blocking
from support.processes import Worker

TTL = 1.0


@pytest.fixture(params=("async", "sync"))
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return ("sync",) if request.param == "sync" else ()


def test_a_killed_holder_is_followed_within_its_ttl(valkey: Backend, options):
    with Worker(valkey.url, *options) as holder, Worker(valkey.url, *options) as waiter:
        first = holder.ask("acquire", "acquired", name="a", ttl=TTL)
        waiter.tell("acquire", name="a", ttl=TTL)
        with Holdfast(valkey.url) as hf:
            until_blocking(lambda: hf.inspect("a").waiting == 1)
        killed = time.monotonic()
        holder.kill()
        second = waiter.hear("acquired")
        assert second["at"] - killed <= TTL + 1
        assert second["fence"] > first["fence"]
        waiter.ask("release", "released", name="a")


def test_a_paused_holder_is_refused_everywhere_when_it_comes_back(valkey: Backend, options):
    """SIGSTOP past the TTL, then SIGCONT: its release, renewal and guarded write are refused (PITFALL 1, 10, 14)."""
    with Worker(valkey.url, *options) as paused, Worker(valkey.url, *options) as next_one:
        old = paused.ask("acquire", "acquired", name="a", ttl=TTL)
        paused.signal(signal.SIGSTOP)
        new = next_one.ask("acquire", "acquired", name="a", ttl=30, wait=TTL + 2)
        assert new["fence"] > old["fence"]
        next_one.ask("write", "written", name="a", value="new")
        paused.signal(signal.SIGCONT)
        assert paused.ask("state", "state", name="a")["lost"]
        paused.ask("write", "Fenced", name="a", value="old")
        paused.ask("release", "LeaseLost", name="a")
        state = next_one.ask("state", "state", name="a")
        assert not state["lost"]
        with Holdfast(valkey.url) as hf:
            assert [h.fence for h in hf.inspect("a").holders] == [new["fence"]]
            assert hf.guarded("a", new["fence"], ("GET", hf.guard_key("a", "value"))) == [b"new"]
        next_one.ask("release", "released", name="a")


def test_the_body_of_a_paused_holder_is_cancelled(valkey: Backend):
    with Worker(valkey.url) as paused, Worker(valkey.url) as next_one:
        paused.tell("body", name="a", ttl=TTL)
        paused.hear("entered")
        paused.signal(signal.SIGSTOP)
        next_one.ask("acquire", "acquired", name="a", wait=TTL + 2)
        paused.signal(signal.SIGCONT)
        resumed = time.monotonic()
        ended = paused.hear("LeaseLost")
        assert ended["at"] - resumed < 1
        next_one.ask("release", "released", name="a")


def test_a_blocked_event_loop_keeps_its_lease(valkey: Backend):
    with Worker(valkey.url) as holder, Worker(valkey.url) as other:
        holder.ask("acquire", "acquired", name="a", ttl=TTL)
        holder.tell("block", name="a", seconds=2 * TTL)
        other.ask("acquire", "NotAcquired", name="a", wait=1.5 * TTL)
        assert holder.hear("blocked")["lost"] is False
        holder.ask("release", "released", name="a")


def test_a_forked_child_has_its_own_connections_and_none_of_the_leases(valkey: Backend):
    """PITFALL 49."""
    with Worker(valkey.url, "sync") as parent:
        parent.ask("acquire", "acquired", name="a", ttl=TTL)
        report = parent.ask("fork", "forked", name="a")
        assert report["child"].get("error") is None, report
        assert report["child"]["busy"] is True
        assert report["child"]["lost"] == "forked"
        assert report["child"]["own"] > 0
        assert report["mine"] is False
        parent.ask("release", "released", name="a")


def test_twenty_dead_waiters_delay_the_next_once_not_twenty_times(valkey: Backend):
    """PITFALL 5. Half of them were killed, so nobody listens; half are paused, so their connections look alive."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Worker(valkey.url))
        holder.ask("acquire", "acquired", name="a", ttl=30)
        dead = [stack.enter_context(Worker(valkey.url, waiter_lease=1.0)) for _ in range(4)]
        with Holdfast(valkey.url) as hf:
            queued = 0
            for worker in dead:
                for _ in range(5):
                    worker.tell("acquire", name="a", ttl=30)
                    queued += 1
                    # one worker asks one after the other, so only its first is in the queue
                    break
                until_blocking(lambda n=queued: hf.inspect("a").waiting == n)
            _add_dead_waiters(hf, 16)
            until_blocking(lambda: hf.inspect("a").waiting == 20)
            last = stack.enter_context(Worker(valkey.url))
            last.tell("acquire", name="a", ttl=30)
            until_blocking(lambda: hf.inspect("a").waiting == 21)
        for number, worker in enumerate(dead):
            worker.kill() if number % 2 else worker.signal(signal.SIGSTOP)
        released = time.monotonic()
        holder.ask("release", "released", name="a")
        got = last.hear("acquired")
        # At most one paused waiter is granted to before all their leases have run out.
        assert got["at"] - released < 7, "twenty times would be twenty seconds"
        last.ask("release", "released", name="a")


def _add_dead_waiters(hf: Holdfast, count: int) -> None:
    """Places in the queue of processes that died right after asking: nobody will ask again, nobody listens."""
    from holdfast.locks.spec import place

    at = place(hf._core, "lock", "a")
    script = hf._core.scripts.get("locks/acquire")
    for number in range(count):
        from holdfast.engine.flow import call

        args = (f"dead{number}.x", 1, 1, 30_000, 1_000, "f", "nowhere 1", at.channels)
        flow = call(script, at.tag, at.keys, args, clock=hf._core.clock, until=hf._core.clock() + 5)
        assert hf._open.run(flow)[0] == b"queued"


# -- failovers under load -------------------------------------------------------------------------------------------


def check_fences(reports: list[dict]) -> dict[str, list[int]]:
    """No fence twice, and for one caller always rising, whatever was lost in a failover."""
    by_name: dict[str, list[int]] = {}
    for report in reports:
        mine: dict[str, list[int]] = {}
        for name, fence in report["grants"]:
            mine.setdefault(name, []).append(fence)
        for name, fences in mine.items():
            assert fences == sorted(fences), f"fences of {name} went back in one process"
            by_name.setdefault(name, []).extend(fences)
    for name, fences in by_name.items():
        assert len(set(fences)) == len(fences), f"a fence of {name} was given twice"
    return by_name


SETTINGS = {"retry_for": 15.0, "call_timeout": 1.0, "connect_timeout": 1.0}


def calls(server) -> int:
    with server.client() as client:
        stats = client.info("commandstats")
    return stats.get("cmdstat_evalsha", {"calls": 0})["calls"]


def at_work(*servers) -> None:
    """A stretch of load on each primary among them."""
    before = {server: calls(server) for server in servers if server.call("ROLE")[0] == b"master"}
    for server, count in before.items():
        until_blocking(lambda s=server, c=count: calls(s) > c + 500, within=20, what="a stretch of load")


def test_a_sentinel_failover_under_load_never_takes_a_fence_back(tmp_path: Path):
    with LocalSentinel() as service, contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(service.url, **SETTINGS)) for _ in range(3)]
        for worker in workers:
            worker.tell("hammer", names=["a", "b", "c"], end=str(tmp_path / "end"), ttl=2)
        with Holdfast(service.url, **SETTINGS) as hf:
            before = hf.lock("probe", ttl=2).acquire()
            before.release()
            server = service.primary_server()
            at_work(server)
            service.failover(kill=True)
            after = hf.lock("probe", ttl=2).acquire(wait=10)
            assert after.fence > before.fence
            moved = time.monotonic()
            after.release()
            at_work(service.primary_server())
            (tmp_path / "end").touch()
        reports = [worker.hear("hammered") for worker in workers]
        fences = check_fences(reports)
        assert set(fences) == {"a", "b", "c"}
        assert all(report["at"] > moved for report in reports)
        with Holdfast(service.url, **SETTINGS) as hf:
            for name, seen in fences.items():
                lease = hf.lock(name, ttl=2).acquire(wait=10)
                assert lease.fence > max(seen), "a fence after the failover is lower than one before it"
                lease.release()


def test_a_cluster_failover_and_a_slot_migration_under_load(tmp_path: Path):
    from redis.crc import key_slot

    from holdfast.keys import shard_of

    with LocalCluster() as cluster, contextlib.ExitStack() as stack:
        names = [f"n{i}" for i in range(6)]
        slots = {name: key_slot(f"locks.{shard_of(name.encode())}".encode()) for name in names}
        workers = [stack.enter_context(Worker(cluster.url, **SETTINGS)) for _ in range(3)]
        for worker in workers:
            worker.tell("hammer", names=names, end=str(tmp_path / "end"), ttl=2)
        slot = slots["n0"]
        at_work(*cluster.nodes)
        source = cluster.node_for_slot(slot)
        target = next(n for n in {cluster.node_for_slot(s) for s in (0, 6000, 16383)} if n is not source)
        cluster.migrate_slot(slot, target)
        assert cluster.node_for_slot(slot) is target
        at_work(target)
        at_work(cluster.failover(slots["n1"], kill=True))
        (tmp_path / "end").touch()
        reports = [worker.hear("hammered", timeout=40) for worker in workers]
        fences = check_fences(reports)
        assert set(fences) == set(names)
        with Holdfast(cluster.url, **SETTINGS) as hf:
            for name, seen in fences.items():
                lease = hf.lock(name, ttl=2).acquire(wait=10)
                assert lease.fence > max(seen)
                lease.release()
