"""PITFALLS 2, 18 to 22 and 24 to 26 for buffers: each check holds, and fails with the bug put back.

The index of who is due, full servers, ids, payloads and secrets are in test_pitfalls_buffer_edges.py."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, LeaseLost, NotAcquired
from holdfast.buffers import buffer as buffer_module
from holdfast.buffers import flows
from holdfast.buffers.batch import Batch
from holdfast.buffers.buffer import Buffer
from holdfast.engine.payload import encode
from support.backends import Backends
from support.conditions import until
from support.mutants import Case, Pitfalls, World, fails, holds, lua, must, patch

cases = Pitfalls()


def data_of(messages: Any) -> list:
    return [message.data for message in messages]


def said(batch: Batch) -> list:
    return [pair.user for pair in batch.pairs]


def key_of(buffer: Buffer, user: str, kind: str = "u") -> str:
    place = buffer._spec.place(user)
    return f"{place.base}{kind}:{place.user}"


async def raw(client: Holdfast, buffer: Buffer, user: str, script: str, *args: Any, keys: Any = None) -> list:
    """One request as it is, whatever the client has come to know meanwhile."""
    place = buffer._spec.place(user)
    return await client._open.run(flows.ask(client._core, f"buffers/{script}", place, keys or (place.key,), args))


async def late_ack(client: Holdfast, buffer: Buffer, batch: Batch) -> list:
    """An acknowledgement that was under way for too long."""
    place = buffer._spec.place(batch.key)
    return await raw(client, buffer, batch.key, "ack", place.user, place.base, batch._taking.hold.token, batch.fence)


async def taken(buffer: Buffer, user: str, **options: Any) -> Batch | None:
    try:
        return await buffer.take(user, **options)
    except NotAcquired:
        return None


async def two_holders(world: World) -> tuple[Holdfast, Buffer, Batch, Holdfast, Buffer, Batch]:
    """One that stood still for too long, and the one that has its batch now."""
    first, second = await world.client(), await world.client()
    one, two = first.buffer("b"), second.buffer("b")
    await one.extend("u", [1, 2])
    old = await one.take("u", lease=0.2)
    old._taking.hold.abandoned = True
    new = await until(lambda: taken(two, "u", lease=30), what="the end of the first one's lease")
    assert new.id == old.id
    return first, one, old, second, two, new


def work(world: World, client: Holdfast, buffer: Buffer, handler: Any, **options: Any) -> None:
    """An absorber, for as long as the check runs."""
    client.absorber(buffer, **options)(handler)
    world.start(client.work())


# -- 2: select inside the lease, remove by id -----------------------------------------------------------------------


@cases.pitfall(2, read_without_the_lease=lua("buffers/take", "if token ~= ARGV[3] then return", "if false then return"))
async def two_workers_do_not_get_the_same_messages(world: World):
    one, two = (await world.client()).buffer("b"), (await world.client()).buffer("b")
    await one.extend("u", [1, 2])
    first, second = await one.take("u"), await taken(two, "u")
    assert first is not None
    assert second is None, "PITFALL 2: two workers have the same messages at the same time"


@cases.pitfall(2, by_count=lua("buffers/ack", "wanted[string.sub(entry, 1, 10)]", "#removed < #ARGV - 4"))
async def what_is_removed_is_what_was_seen(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.extend("u", [1, 2, 3])
    batch = await buffer.take("u")
    await batch.ack([batch.messages[1].id])
    await batch.nack()
    left = data_of((await buffer.take("u")).messages)
    assert left == [1, 3], f"PITFALL 2: removed by count and not by id: {left} is left of 1, 2, 3 without 2"


@cases.pitfall(2, whatever_is_there=lua("buffers/ack", "call('LPOP', key, 1 + b)", "call('LPOP', key, 1 + b + n)"))
async def what_came_meanwhile_is_not_removed(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.extend("u", [1, 2])
    batch = await buffer.take("u")
    await buffer.extend("u", [3, 4])
    await batch.ack()
    assert data_of(await buffer.peek("u")) == [3, 4], "PITFALL 2: messages that nobody has seen were removed"


# -- 18: one step ---------------------------------------------------------------------------------------------------


@cases.pitfall(
    18,
    no_life=lua("buffers/_drop", "call('PEXPIRE', key, ms)", "", "buffers/_append", "call('PEXPIRE', key, life())", ""),
)
async def there_is_no_moment_without_a_ttl(world: World):
    buffer, server = (await world.client()).buffer("b", ttl=100), world.redis()
    for number in range(3):
        await buffer.append("u", number)
        life = server.pttl(key_of(buffer, "u"))
        assert 0 < life <= 200_000, f"PITFALL 18: after an append the messages live {life} ms"


@cases.pitfall(18, trimmed_later=lua("buffers/_append", "if n > capacity then", "if n > capacity + 5 then"))
async def nobody_sees_more_than_the_capacity(world: World):
    buffer = (await world.client()).buffer("b", capacity=3)
    lengths = [(await buffer.append("u", number)).length for number in range(8)]
    seen = [len(await buffer.peek("u")), await buffer.count("u")]
    assert max(lengths + seen) == 3, "PITFALL 18: readers see more than the capacity"


@cases.pitfall(
    18,
    trims_the_head=lua(
        "buffers/_drop", "for i = skip + b, skip + 1, -1 do back", "for i = #away, #away - b + 1, -1 do back"
    ),
)
async def a_trim_does_not_move_what_somebody_works_on(world: World):
    buffer = (await world.client()).buffer("b", capacity=2)
    await buffer.extend("u", [1, 2])
    batch = await buffer.take("u")
    await buffer.extend("u", [3, 4, 5])
    await batch.nack()
    again = await buffer.take("u")
    assert data_of(again.messages) == [1, 2], "PITFALL 18: a trim moved the messages under their worker"


# -- 19: a crash, an error ------------------------------------------------------------------------------------------


@cases.pitfall(
    19,
    popped=lua("buffers/take", "return tell(0)", "local answer = tell(0) call('DEL', key) return answer"),
    gone_in_a_minute=lua(
        *("buffers/_user", "local ends = last + ttl", "local ends = n > 0 and last + ttl or 0"),
        *(
            "buffers/_user",
            "deadline + ttl > ends then ends = deadline + ttl end",
            "deadline > ends then ends = deadline end",
        ),
    ),
)
async def a_worker_that_dies_loses_nothing(world: World):
    one, two = (await world.client()).buffer("b"), (await world.client()).buffer("b")
    await one.extend("u", [1, 2])
    dead = await one.take("u", lease=0.2)
    dead._taking.hold.abandoned = True
    life = world.redis().pttl(key_of(one, "u"))
    assert life > 3_600_000, f"PITFALL 19: a batch whose worker dies is gone in {life} ms"
    again = await until(lambda: taken(two, "u"), within=0.8, what="PITFALL 19: the batch of a worker that died")
    assert data_of(again.messages) == [1, 2], "PITFALL 19: a worker died and messages are gone"


async def _always_ack(batch: Batch, kind: Any, error: Any, trace: Any) -> None:
    await batch.ack()


@cases.pitfall(19, error_is_success=patch(Batch, "__aexit__", _always_ack))
async def an_error_is_not_success(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.append("u", 1)
    with pytest.raises(KeyError):
        async with await buffer.take("u"):
            raise KeyError
    again = await buffer.take("u")
    assert again is not None, "PITFALL 19: an error was taken for success, and the messages are gone"


@cases.pitfall(19, refusal_is_success=lua("buffers/ack", "return {'not_held'}", "return {'acked', 0, 0}"))
async def a_refused_acknowledgement_is_not_success(world: World):
    _, _, old, *_ = await two_holders(world)
    old._taking.hold.over, old._taking.hold.lost_reason = False, ""  # as if nobody had told it yet
    try:
        await old.ack()
    except LeaseLost:
        return
    raise AssertionError("PITFALL 19: an acknowledgement that removed nothing was taken for success")


# -- 20, 22: attachments --------------------------------------------------------------------------------------------


@cases.pitfall(
    20,
    total_less_pending=lua(
        "buffers/_schedule",
        "if np == 0 then return math.min(n, most), nil end",
        "if true then return math.min(n - np, most), now + 1000 end",
    ),
)
async def a_pending_message_is_not_taken_for_a_ready_one(world: World):
    # Given a pending message before two ready ones
    buffer = (await world.client()).buffer("b")
    pending = await buffer.append("u", "pending", pending=["file"])
    await buffer.extend("u", ["ready", "also ready"])
    # when somebody takes, or pops, what is ready, expect nothing before its turn and everything once
    assert await buffer.take("u") is None, "PITFALL 20: total less pending was taken from the head"
    assert await buffer.pop("u", 10) == [], "PITFALL 20: total less pending was removed from the head"
    await buffer.resolve("u", pending.id, "file", 1)
    batch = await buffer.take("u")
    assert data_of(batch.messages) == ["pending", "ready", "also ready"], "PITFALL 20: one deleted, one repeated"


@cases.pitfall(
    22, waits_for_ever=lua("buffers/_schedule", "tonumber(open) > 0 and tonumber(latest) > now", "tonumber(open) > 0")
)
async def an_upload_that_died_does_not_block_its_user(world: World):
    buffer = (await world.client()).buffer("b", capacity=3)
    await buffer.append("u", 1, pending={"file": 0.1})
    await buffer.append("u", 2)
    batch = await until(lambda: buffer.take("u"), within=0.6, what="PITFALL 22: an upload given up after its deadline")
    assert data_of(batch.messages) == [1, 2]


@cases.pitfall(
    22,
    not_looked_at=lua(
        "buffers/_schedule", "if count == 0 then return math.min(", "if count == 0 then return 0 * math.min("
    ),
)
async def a_worker_comes_when_the_upload_is_given_up(world: World):
    client, seen = await world.client(sweep=0.2), []
    buffer = client.buffer("b")

    async def handler(batch: Batch) -> None:
        seen.extend(data_of(batch.messages))

    work(world, client, buffer, handler, threshold=1)
    await buffer.append("u", 1, pending={"file": 0.3})
    await until(lambda: seen == [1], within=1, what="PITFALL 22: a worker, after the deadline of an upload")


# -- 21, 24: conversations and ages ---------------------------------------------------------------------------------


@cases.pitfall(21, whole_key=lua("buffers/ack", "b, bc = 0, 0", "b, bc = 0, 0\n  call('DEL', base .. 'c:' .. member)"))
async def pairs_that_came_meanwhile_stay(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.converse("u", "before", "")
    await buffer.append("u", 1)
    batch = await buffer.take("u")
    await buffer.converse("u", "meanwhile", "")
    assert said(batch) == ["before"]
    await batch.ack()
    await buffer.append("u", 2)
    assert said(await buffer.take("u")) == ["meanwhile"], "PITFALL 21: a pair that nobody has seen was removed"


@cases.pitfall(
    24,
    age_of_the_newest=lua(
        "buffers/_drop", "if n == 0 or oldest + ttl > now then", "if n == 0 or last + ttl > now then"
    ),
)
async def old_messages_of_an_active_user_do_not_live_for_ever(world: World):
    buffer = (await world.client()).buffer("b", ttl=0.5)
    started = time.monotonic()
    await buffer.append("u", "old")
    while time.monotonic() - started < 0.6:
        await buffer.append("u", "new")
        await asyncio.sleep(0.05)
    assert "old" not in data_of(await buffer.pop("u", 1000)), "PITFALL 24: appends keep old messages alive"


@cases.pitfall(
    24, nobody_looks=lua("buffers/_schedule", "local at = oldest + ttl -", "local at = oldest + ttl + 60000 -")
)
async def a_quiet_users_messages_are_absorbed_before_they_are_too_old(world: World):
    client, seen = await world.client(sweep=0.2), []
    buffer = client.buffer("b", ttl=2.0)

    async def handler(batch: Batch) -> None:
        seen.extend(data_of(batch.messages))

    work(world, client, buffer, handler, threshold=50)
    await buffer.append("u", 1)
    await until(lambda: seen == [1], within=2, what="PITFALL 24: a worker, before a quiet user's message is removed")


@cases.pitfall(
    24,
    own_life_only=lua(
        "buffers/_letter", "if at + kept > now or n > 0 and oldest <= at + kept then", "if at + kept > now then"
    ),
    key_ends_first=lua("buffers/_converse", "kept + tonumber(ARGV[5]) + GRACE", "kept"),
)
async def pairs_live_as_long_as_the_messages_they_explain(world: World):
    buffer, server = (await world.client()).buffer("b", ttl=100, conversation_ttl=0.5), world.redis()
    await buffer.converse("u", "needed", "")
    await buffer.append("u", 1)
    lives = [server.pttl(key_of(buffer, "u", kind)) for kind in "cu"]
    assert lives[0] >= lives[1] - 1000, f"PITFALL 24: pairs live {lives[0]} ms, and their messages {lives[1]} ms"

    async def old() -> bool:
        return await buffer.age("u") > 0.6

    await until(old, what="the end of the pair's own life")
    assert said(await buffer.take("u")) == ["needed"], "PITFALL 24: a pair ended before the message that it explains"


# -- 25: nothing and everything -------------------------------------------------------------------------------------


@cases.pitfall(25, not_checked=patch(buffer_module, "check_count", lambda what, value, low, high: max(value, 1)))
async def pop_of_nothing_is_refused(world: World):
    buffer = (await world.client()).buffer("b")
    await buffer.extend("u", [1, 2])
    for limit in (0, -1):
        with contextlib.suppress(ConfigurationError):
            got = await buffer.pop("u", limit)
            raise AssertionError(f"PITFALL 25: pop({limit}) was taken for something else, and answered {len(got)}")
    assert await buffer.count("u") == 2


def _without_bytes(value: Any, limit: int) -> bytes:
    def clean(one: Any) -> Any:
        return (
            {key: clean(item) for key, item in one.items() if not isinstance(item, bytes)}
            if isinstance(one, dict)
            else one
        )

    return encode(clean(value), limit)


@cases.pitfall(25, bytes_dropped=patch(flows, "encode", _without_bytes))
async def bytes_come_back(world: World):
    buffer = (await world.client()).buffer("b")
    value = {"text": "a", "image": b"\x89PNG\x00\xff", "more": {"bytes": b""}}
    await buffer.append("u", value)
    assert data_of((await buffer.take("u")).messages) == [value], "PITFALL 25: bytes were dropped on the way"


# -- 26: old and new holders ----------------------------------------------------------------------------------------


@cases.pitfall(26, not_compared=lua("buffers/ack", "or fence ~= mine or token ~= ARGV[3]", ""))
async def an_old_acknowledgement_leaves_the_newer_twin(world: World):
    first, one, old, _, two, new = await two_holders(world)
    await late_ack(first, one, old)
    stats = await two.stats("u")
    assert stats.in_flight == 2, "PITFALL 26: acknowledging the old batch removed the newer twin"
    assert await must(new.ack(), "PITFALL 26: the newer holder cannot acknowledge") == 0


@cases.pitfall(26, token_not_compared=lua("buffers/nack", "or token ~= ARGV[3]", ""))
async def an_old_give_back_leaves_the_newer_twin(world: World):
    first, one, old, _, two, new = await two_holders(world)
    place = one._spec.place("u")
    await raw(first, one, "u", "nack", place.user, place.base, old._taking.hold.token, old.id, 0, 5, "")
    assert (await two.stats("u")).held, "PITFALL 26: giving the old batch back took it from the newer holder"
    await new.ack()


@cases.pitfall(26, token_not_compared=lua("buffers/renew", "and token == ARGV[2 * i - 3]", ""))
async def a_late_renewal_changes_nothing_for_the_newer_holder(world: World):
    first, one, old, _, two, new = await two_holders(world)
    place = one._spec.place("u")
    reply = await raw(first, one, "u", "renew", old._taking.hold.token, 1, keys=(place.shard.due, place.key))
    assert reply[2:] == [0], "PITFALL 26: a late renewal was accepted"
    assert (await two.stats("u")).free_in > 20, "PITFALL 26: a late renewal ended the newer holder's lease"
    await new.ack()


@cases.pitfall(26, made_again=lua("buffers/renew", "and deadline > now", ""))
async def a_renewal_after_the_deadline_is_refused(world: World):
    client = await world.client()
    buffer = client.buffer("b")
    await buffer.append("u", 1)
    batch = await buffer.take("u", lease=0.1)
    batch._taking.hold.abandoned = True

    async def over() -> bool:
        return not (await buffer.stats("u")).held

    await until(over, what="the end of the lease")
    place = buffer._spec.place("u")
    reply = await raw(client, buffer, "u", "renew", batch._taking.hold.token, 60_000, keys=(place.shard.due, place.key))
    assert reply[2:] == [0], "PITFALL 26: a renewal came too late and was accepted"
    assert await taken(buffer, "u") is not None, "PITFALL 26: a late renewal keeps the next one out"


@cases.pitfall(
    26,
    takes_its_own=lua("buffers/_schedule", "if b > 0 then return", "if b > 0 then return now end if b > 0 then return"),
)
async def a_worker_does_not_take_its_own_live_batch(world: World):
    client, seen = await world.client(sweep=0.1), []
    buffer = client.buffer("b")

    async def handler(batch: Batch) -> None:
        seen.append((batch.id, batch.attempt))
        await asyncio.sleep(1.0)

    work(world, client, buffer, handler, threshold=1, lease=0.6, concurrency=4)
    await buffer.append("u", 1)

    async def absorbed() -> bool:
        return (await buffer.totals()).counts.get("absorbed", 0) == 1 or len(seen) > 1

    await until(absorbed, within=4, what="PITFALL 26: the end of the work")
    assert [attempt for _, attempt in seen] == [1], "PITFALL 26: a worker took its own live batch"


@pytest.mark.parametrize("case", cases.holding())
async def test_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
