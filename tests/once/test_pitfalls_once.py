"""PITFALLS 38, 40, 44: each check holds, and fails with the bug put back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import HoldfastError, LeaseLost
from holdfast.engine import digest as digest_module
from holdfast.engine.core import Core
from holdfast.engine.flow import Flow, Send, Sleep
from holdfast.engine.resp import pack
from holdfast.once import claim as claim_module
from holdfast.once import flows
from holdfast.once.spec import Space
from support.backends import Backends
from support.conditions import TooSlow, patiently, until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()


async def comes_true(condition: Any, within: float, why: str) -> None:
    try:
        await until(condition, within=within)
    except TooSlow:
        raise AssertionError(why) from None


# -- 38: check and mark; mark and crash -----------------------------------------------------------------------------


def in_two_steps(core: Core, space: Space, ids: Sequence[Any], within: float, policy: str) -> Flow[list[bool]]:
    """As one would write it without a script: look, then mark what was not there."""
    new = []
    for one in ids:
        shard, key = space.key(one)
        there = yield Send(space.tags[shard], pack(b"EXISTS", key))
        if not there:
            yield Send(space.tags[shard], pack(b"SET", key, b"1", b"PX", int(within * 1000)))
        new.append(not there)
    return new


@cases.pitfall(38, looked_up_and_then_marked=patch(flows, "mark", in_two_steps))
async def one_caller_of_many_is_told_yes(world: World):
    crew = [await world.client() for _ in range(4)]
    for number in range(10):
        told = await asyncio.gather(*(hf.once("orders", number) for hf in crew))
        assert sum(told) == 1, f"PITFALL 38: {sum(told)} callers were told that it is new"


@cases.pitfall(
    38,
    marked_as_done_before_the_work=lua(
        "once/begin", "'p' .. ARGV[1] .. ARGV[2], 'PX', ARGV[3]", "'d' .. ARGV[1] .. ARGV[2], 'PX', 300000"
    ),
)
async def what_its_worker_did_not_finish_is_done_by_another(world: World):
    code = (
        "import asyncio, sys, holdfast\n"
        "from holdfast.engine.scripts import Scripts\n"
        "EDITS = eval(sys.argv[2])\n"
        "class Edited(Scripts):\n"
        "    def read(self, room, name):\n"
        "        text = super().read(room, name)\n"
        "        for place, old, new in EDITS:\n"
        "            if place == f'{room}/{name}': text = text.replace(old, new)\n"
        "        return text\n"
        "async def main():\n"
        "    hf = holdfast.Holdfast(sys.argv[1]); hf._core.scripts = Edited()\n"
        "    async with hf, hf.claim('orders', 'a', lease=0.3) as claim:\n"
        "        print(claim.state, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    worker = await world.python(code, world.url, repr(world.edits))
    assert await asyncio.wait_for(worker.stdout.readline(), 20) == b"mine\n"
    worker.kill()
    await worker.wait()
    hf = await world.client()
    async with hf.claim("orders", "a", wait=patiently(2.0)) as claim:
        assert claim.state == "mine", (
            f"PITFALL 38: marked before the work, and its worker died: never done ({claim.state})"
        )


@cases.pitfall(38, mark_not_taken_back=patch(flows, "Detach", lambda flow, **_: Sleep(0.0)))
async def what_nobody_was_told_of_is_new(world: World):
    hf, other = await world.client(), await world.client()
    await other.once("warm", "up")
    for number in range(20):
        asking = world.start(hf.once("orders", number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if await asking:
                continue

        async def new(number: int = number) -> bool:
            return await other.once("orders", number)

        await comes_true(new, 0.5, "PITFALL 38: it counts as seen, and nobody was told of it")


# -- 40: ids with parts; windows ------------------------------------------------------------------------------------


def joined(value: Any, depth: int = 0) -> bytes:
    """As ids are usually made."""
    parts = value if isinstance(value, tuple) else (value,)
    return ":".join(part.decode() if isinstance(part, bytes) else str(part) for part in parts).encode()


@cases.pitfall(40, parts_are_joined=patch(digest_module, "id_structure", joined))
async def parts_of_an_id_are_never_joined(world: World):
    hf = await world.client()
    alike = [("19:00", "a"), ("19", "00", "a"), ("19", "00:a"), "19:00:a", ("1", "2"), (1, "2"), (1, 2), "1:2"]
    for one in alike:
        assert await hf.once("slots", one), f"PITFALL 40: {one!r} is taken for another id"
    for one in alike:
        async with hf.claim("claims", one) as claim:
            assert claim, f"PITFALL 40: {one!r} is taken for another id"
        assert (await hf.gate("gate").check(one, "A")).reason == "first", (
            f"PITFALL 40: {one!r} is taken for another thing"
        )


TRUNCATED = """
local time = redis.call('TIME')
local ms = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local life = tonumber(ARGV[2])
for i = 1, #KEYS do"""


@cases.pitfall(
    40,
    window_ends_with_the_clocks=lua(
        "once/mark", "\nfor i = 1, #KEYS do", TRUNCATED, "once/mark", "'PX', ARGV[2])", "'PX', life - ms % life)"
    ),
)
async def a_window_begins_with_what_is_in_it(world: World):
    """Wherever the clock stands: nothing is told twice because a minute has begun."""
    hf = await world.client()
    for part in range(5):
        began = time.monotonic()
        assert await hf.once("slots", part, 0.5)
        while (spent := time.monotonic() - began) < 0.3:
            known = not await hf.once("slots", part, 0.5)
            assert known or time.monotonic() - began > 0.5, (
                f"PITFALL 40: new again after {spent:.3f} s, across the boundary"
            )
            await asyncio.sleep(0.03)
        await asyncio.sleep(0.03 + 0.02 * part)


@cases.pitfall(
    40,
    minute_is_truncated=lua(
        "once/mark",
        "\nfor i = 1, #KEYS do",
        TRUNCATED,
        "once/mark",
        "'PX', ARGV[2])",
        "'PX', life + 60000 - ms % 60000)",
    ),
)
async def a_repeat_after_the_window_is_not_hidden(world: World):
    hf = await world.client()
    assert await hf.once("slots", "a", 0.1)

    async def new() -> bool:
        return await hf.once("slots", "a", 0.1)

    await comes_true(new, 1.0, "PITFALL 40: it happened again, in the same minute, and that is hidden")


# -- 44: deadline and owner -----------------------------------------------------------------------------------------


@cases.pitfall(44, no_deadline=lua("once/begin", ", 'PX', ARGV[3])", ")"))
async def one_whose_worker_is_gone_is_free_again(world: World):
    gone, hf = await world.client(), await world.client()
    claim = await gone.claim("orders", "a", lease=0.2).begin()
    claim._hold.abandoned = True
    got = await hf.claim("orders", "a", wait=patiently(1.0)).begin()
    assert got.state == "mine", "PITFALL 44: in progress for ever, and nobody works on it"
    await got.release()


@cases.pitfall(
    44,
    owner_not_compared=lua("once/confirm", "if token ~= ARGV[1] or kind == 'm' then return {'not_held'} end", ""),
    token_written_back=lua(
        "once/confirm", "if token ~= ARGV[1] or kind == 'm' then return {'not_held'} end", "token = ARGV[1]"
    ),
)
async def only_its_owner_completes_it(world: World):
    paused, hf, third = await world.client(), await world.client(), await world.client()
    claim = await paused.claim("orders", "a", lease=0.2).begin()
    paused._core.keeper.remove(
        claim._hold
    )  # as if its process stood still: not renewed, and nobody says that it is lost
    claim._hold.over = False
    claim._hold.deadline += 60
    other = await hf.claim("orders", "a", wait=5, lease=30).begin()
    assert other.state == "mine"
    with contextlib.suppress(LeaseLost):
        await claim.confirm()
    asked = await third.claim("orders", "a").begin()
    assert asked.state == "busy", f"PITFALL 44: completed by one who did not have it any more: {asked.state}"
    await other.confirm()


@cases.pitfall(
    44,
    loss_is_passed_over=patch(claim_module.Claim, "lost", property(lambda self: False)),
)
async def who_has_lost_it_is_told(world: World):
    hf, other = await world.client(), await world.client()
    claim = await hf.claim("orders", "a", lease=0.2).begin()
    await other.forget("orders", "a")
    await until(lambda: claim._hold.lost_reason)
    told = False
    try:
        await claim.confirm()
    except LeaseLost:
        told = True
    assert told, "PITFALL 44: confirmed without an error, and it is not done"


@cases.pitfall(
    44,
    anybody_frees_it=lua(
        "once/drop", "if not claimed_by(call('GET', KEYS[1]), ARGV[1]) then return {'not_held'} end", ""
    ),
)
async def only_its_owner_gives_it_back(world: World):
    paused, hf, third = await world.client(), await world.client(), await world.client()
    claim = await paused.claim("orders", "a", lease=0.2).begin()
    paused._core.keeper.remove(claim._hold)
    claim._hold.over = False
    other = await hf.claim("orders", "a", wait=5, lease=30).begin()
    with contextlib.suppress(HoldfastError):
        await claim.release()
    asked = await third.claim("orders", "a").begin()
    assert asked.state == "busy", f"PITFALL 44: given back by one who did not have it any more: {asked.state}"
    await other.confirm()


@cases.pitfall(
    44,
    renewal_makes_it_anew=lua(
        "once/renew",
        "if mine then call('PEXPIRE'",
        "call('SET', KEYS[i], 'p' .. ARGV[2 * i - 3] .. string.rep('\\0', 16))\n  mine = true\n"
        "  if mine then call('PEXPIRE'",
    ),
)
async def a_renewal_does_not_make_it_anew(world: World):
    hf, other = await world.client(), await world.client()
    claim = await hf.claim("orders", "a", lease=0.2).begin()
    await other.forget("orders", "a")
    with contextlib.suppress(AssertionError):
        await until(lambda: claim.lost, within=0.5)
    asked = await other.claim("orders", "a").begin()
    assert asked.state == "mine", "PITFALL 44: a renewal took back what was taken away"
    await asked.release()


@cases.pitfall(
    44,
    other_arguments_get_its_result=lua("once/begin", "if digest ~= ARGV[2] then return {'mismatch'} end", ""),
)
async def the_same_key_with_other_arguments_is_told(world: World):
    hf = await world.client()

    @hf.idempotent("{order}")
    async def charge(order: str, amount: int) -> int:
        return amount

    assert await charge("a", 1) == 1
    try:
        answer = await charge("a", 1000)
    except HoldfastError:
        return
    raise AssertionError(f"PITFALL 44: charged 1000 and got the receipt of {answer}")


@pytest.mark.parametrize("case", cases.holding())
async def test_it_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_it_fails_with_the_bug(case: Case, backends: Backends):
    await fails(case, backends)
