"""PITFALLS 13 and 15, clocks and fences: each check holds, and fails with the bug put back."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast import Fenced
from holdfast.engine import core as core_module
from holdfast.engine.keeper import Keeper
from holdfast.events import ClockJumped, Renewed
from holdfast.keys import SHARDS
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, must, patch, place_of

cases = Pitfalls()

HOUR = 3600
SILENT = patch(Keeper, "_check_clock", lambda keeper, server, local: None)


def jumps(events: list) -> list[float]:
    return [event.seconds for event in events if isinstance(event, ClockJumped)]


async def first_renewal(events: list) -> None:
    await until(lambda: any(isinstance(event, Renewed) for event in events), what="a renewal before the jump")


# -- 13: clocks that jump -------------------------------------------------------------------------------------------


@cases.pitfall(
    13,
    not_reported=SILENT,
    effect_not_fenced=lua("locks/guarded", "if tonumber(ARGV[1]) < seen then", "if false then"),
    holder_not_told=lua("locks/renew", "if deadline > now then", "if true then"),
)
async def a_server_clock_set_forward_lets_no_effect_happen_twice(world: World):
    # Given a holder that renews
    server, clock = world.server_with_clock()
    events, told = [], threading.Event()
    first, second = await world.client(server.url, observers=[events.append]), await world.client(server.url)
    old = await first.lock("a", ttl=1.5).acquire()
    old.on_lost(told.set)
    await first_renewal(events)
    # when the clock jumps over its deadline, and a second one is admitted
    clock.move(+120)
    new = await must(second.lock("a", ttl=30).acquire(wait=10), "PITFALL 13: nobody gets in after the jump")
    # expect a higher fence, the first one's write refused, the first one told, and the jump reported
    assert new.fence > old.fence, "PITFALL 13: the second holder has no higher fence"
    key = first.guard_key("a", "effect")
    await second.guarded("a", new, ("SET", key, "second"))
    try:
        await first.guarded("a", old, ("SET", key, "first"))
    except Fenced:
        pass
    else:
        raise AssertionError("PITFALL 13: both holders had their effect")
    await until(told.is_set, within=1.2, what="PITFALL 13: word to the first holder")
    await until(lambda: jumps(events), within=0.6, what="PITFALL 13: a report of the jump")
    assert 115 < jumps(events)[0] < 125


@cases.pitfall(
    13,
    deadline_believed=lua("locks/_queue", "if deadline - now > ttl then", "if false then"),
    not_reported=SILENT,
)
async def a_server_clock_set_back_does_not_make_a_dead_holders_lease_last(world: World):
    # Given a holder that dies and one that lives
    server, clock = world.server_with_clock()
    events = []
    first, second = await world.client(server.url, observers=[events.append]), await world.client(server.url)
    live = await first.lock("b", ttl=1.5).acquire()
    await first_renewal(events)
    dead = await first.lock("a", ttl=1, renew=False).acquire()
    # when the clock goes back by an hour
    clock.move(-HOUR)
    # expect the dead one's lock to be free in about a ttl, and the live one's not
    started = time.monotonic()
    new = await must(second.lock("a", ttl=1).acquire(wait=3), "PITFALL 13: a dead holder keeps it for the jump")
    assert time.monotonic() - started < 1 + 2, "PITFALL 13: a dead holder keeps it for longer than ttl + 2 s"
    assert new.fence > dead.fence, "PITFALL 13: fences went back with the clock"
    await until(lambda: jumps(events), within=0.6, what="PITFALL 13: a report of the jump")
    assert -HOUR - 5 < jumps(events)[0] < -HOUR + 5
    assert not live.lost, "PITFALL 13: a holder that lives lost its lease"


@cases.pitfall(13, wall_clock=patch(core_module, "system_clock", lambda: lambda: time.time()))
async def the_holders_deadline_does_not_follow_its_wall_clock(world: World):
    holder = await world.client()
    lease = await holder.lock("a", ttl=30).acquire()
    left, real = lease.remaining(), time.time
    world.patch.setattr(time, "time", lambda: real() + HOUR)
    assert not lease.lost, "PITFALL 13: the wall clock was set forward and the lease is lost"
    world.patch.setattr(time, "time", lambda: real() - HOUR)
    assert lease.remaining() <= left, "PITFALL 13: the wall clock was set back and the lease lasts longer"


# -- 15: fences -----------------------------------------------------------------------------------------------------


@cases.pitfall(15, only_a_counter=lua("locks/_grant", "last < now_us and now_us or last + 1", "last + 1"))
async def fences_rise_although_the_server_forgot_the_last_ones(world: World):
    client, seen = await world.client(), []
    for _ in range(3):
        lease = await client.lock("a").acquire()
        seen.append(lease.fence)
        await lease.release()
    world.redis().delete(place_of(client, "a").shard)  # as after a failover to a replica that had none of this
    lease = await client.lock("a").acquire()
    assert lease.fence > max(seen), "PITFALL 15: a failover took the fences back"


@cases.pitfall(
    15,
    a_counter_for_each_name=lua(
        "locks/_grant", "  call('ZADD', K[3], fence,", "  call('INCR', K[1] .. '.fence')\n  call('ZADD', K[3], fence,"
    ),
)
async def names_that_were_locked_once_leave_no_keys(world: World):
    client, server = await world.client(), world.redis()
    for lease in await client.acquire_many([f"name {number}" for number in range(200)]):
        await lease.release()
    left = {key: server.pttl(key) for key in server.scan_iter(count=1000)}
    assert len(left) <= SHARDS, "PITFALL 15: every name ever locked has left a key"
    assert -1 not in left.values(), "PITFALL 15: keys that stay for ever"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
