"""PITFALLS 18, 25, 27-30, 45, 50 and 51 in short-term memory: each check holds, and fails with the bug put back."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import ConfigurationError, Draft, TooLarge
from holdfast.engine import payload
from holdfast.engine.flow import ReplyLost
from holdfast.errors import UnreadablePayload
from holdfast.keys import shard_of
from holdfast.sessions import flows, spec
from holdfast.sessions.entry import Context, decode, open_raw
from support.backends import Backends
from support.faults import Plan, install
from support.mutants import Case, Pitfalls, World, fails, holds, lua, patch

cases = Pitfalls()
SAVE, CHANGE = "sessions/_save", "sessions/_change"
LIFE = "    trim()\n    write_meta()\n    live(ARGV[1])"


def contents(context):
    return [entry.content for entry in context]


def lives(world: World) -> dict[bytes, int]:
    server = world.redis()
    return {key: server.pttl(key) for key in server.keys("*:s:*")}


# -- 18, 27: one step, and life in it -------------------------------------------------------------------------------


@cases.pitfall(
    18,
    trimmed_by_a_later_call=lua(SAVE, LIFE, LIFE.replace("    trim()\n", "")),
    life_set_by_a_later_call=lua(SAVE, LIFE, LIFE.replace("\n    live(ARGV[1])", "")),
)
async def what_others_see_after_a_save_is_bounded_and_has_an_end(world: World):
    writer, reader = await world.client(), await world.client()
    chat, seen = writer.sessions("chat", max_entries=3), reader.sessions("chat")
    for number in range(6):
        await chat.save("s", number)
        assert await seen.count("s") <= 3, "PITFALL 18: a reader sees more than the cap"
        assert all(life > 0 for life in lives(world).values()), "PITFALL 18: a session without an end"


@cases.pitfall(
    27,
    returns_before_expire_when_trimmed=lua(
        SAVE, LIFE, "    local full = over()\n    trim()\n    write_meta()\n    if not full then live(ARGV[1]) end"
    ),
)
async def a_full_session_lives_on_while_it_is_used(world: World):
    client = await world.client()
    brief, chat = client.sessions("chat", max_entries=2, ttl=50), client.sessions("chat", max_entries=2, ttl=500)
    for number in range(2):
        await brief.save("s", number)
    saved = await chat.save("s", 2)
    assert saved.trimmed.entries == 1
    (life,) = lives(world).values()
    assert life > 400_000, "PITFALL 27: a save that trimmed has not prolonged the life"


# -- 28: whose clock ------------------------------------------------------------------------------------------------

BY_TIME = """if now < last then call('LINSERT', KEYS[1], 'AFTER', call('LINDEX', KEYS[1], 0), entry)
      else call('RPUSH', KEYS[1], entry) end"""


@cases.pitfall(
    28,
    placed_by_its_time=lua(SAVE, "      call('RPUSH', KEYS[1], entry)\n", f"      {BY_TIME}\n"),
    time_goes_back=lua(SAVE, "local ms = math.max(now, last)", "local ms = now"),
)
async def the_newest_stays_although_the_clock_went_back(world: World):
    world.edits.append(("engine/_time", "call('TIME')", "{call('GET', 'test:clock'), 0}"))
    server = world.redis()
    client = await world.client()
    chat = client.sessions("chat", max_entries=3)
    for number, clock in enumerate([5000, 5001, 5002, 4000, 4001]):
        server.set("test:clock", clock, ex=60)
        saved = await chat.save("s", number)
        found = await chat.context("s")
        assert contents(found)[-1:] == [number], "PITFALL 28: the newest entry evicted itself"
        assert saved.id == found[-1].id, "PITFALL 28: the caller was given the id of nothing"
        times = [entry.at for entry in found]
        assert times == sorted(times), "PITFALL 28: times contradict the order"


# -- 29: limits and lives -------------------------------------------------------------------------------------------


@cases.pitfall(29, not_checked=patch(flows, "check_count", lambda *_: None))
async def a_limit_of_zero_is_refused(world: World):
    chat = (await world.client()).sessions("chat")
    await chat.save("s", 1)
    for limit in (0, -1):
        with pytest.raises(ConfigurationError) as refused:
            await refuse(chat.context("s", limit))
        assert "pass limit" in str(refused.value), "PITFALL 29: a limit of 0 was taken for something else"


async def refuse(work):
    found = await work
    raise ConfigurationError(f"it answered {len(found)} entries")


@cases.pitfall(
    29,
    expire_without_gt=lua(
        CHANGE, "if call('PEXPIRE', KEYS[1], ttl, 'GT') == 0 and call('PTTL', KEYS[1]) == -1 then", "if true then"
    ),
)
async def a_ttl_never_shortens_the_session(world: World):
    chat = (await world.client()).sessions("chat", ttl=500)
    await chat.save("s", 1)
    await chat.save("s", 2, ttl=5)
    await chat.touch("s", ttl=5)
    (life,) = lives(world).values()
    assert life > 400_000, "PITFALL 29: one entry's TTL has shortened the whole session"


# -- 30: tool calls and their results -------------------------------------------------------------------------------


def read_all(items):
    """As if a window were any part of a list."""
    return Context.of([decode(open_raw(item)) for item in items])


def calls_known(entries):
    made = set()
    for entry in entries:
        if entry.tool_call_id is not None and entry.tool_call_id not in made:
            return False
        made.update(entry.tool_calls)
    return True


@cases.pitfall(
    30,
    trimmed_one_by_one=lua(SAVE, "    if links(oldest) > 0 then return trim_units() end\n", ""),
    results_not_joined=lua(SAVE, "if unit[j] == from then unit[j] = to end", ""),
)
async def trimming_leaves_no_result_without_its_call(world: World):
    client = await world.client()
    chat = client.sessions("chat", max_entries=5)
    world.patch.setattr(flows, "read", read_all)
    await chat.save("s", "call", role="assistant", tool_calls=["a", "b"])
    for name in ("a", "b"):
        await chat.save("s", f"result {name}", role="tool", tool_call_id=name)
    for number in range(6):
        await chat.save("s", number)
        assert calls_known(await chat.entries("s")), "PITFALL 30: a tool result without its call"


@cases.pitfall(30, any_window=patch(flows, "read", read_all))
async def no_window_starts_inside_a_turn(world: World):
    chat = (await world.client()).sessions("chat")
    await chat.save("s", "call", role="assistant", tool_calls=["a"])
    await chat.save("s", "result", role="tool", tool_call_id="a")
    for limit in (1, 2):
        assert calls_known(await chat.context("s", limit)), "PITFALL 30: a tool result without its call"


@cases.pitfall(30, stored_all_the_same=lua(SAVE, "if answers_a_call(entry) then", "if true then"))
async def a_result_whose_call_is_gone_is_not_stored(world: World):
    client = await world.client()
    chat = client.sessions("chat", max_entries=2)
    world.patch.setattr(flows, "read", read_all)
    await chat.save("s", "call", role="assistant", tool_calls=["a"])
    await chat.save_many("s", [Draft(1), Draft(2)])
    await chat.save("s", "result", role="tool", tool_call_id="a")
    assert calls_known(await chat.entries("s")), "PITFALL 30: a tool result without its call"


# -- 45: requests that are executed twice ---------------------------------------------------------------------------


@cases.pitfall(45, sent_again_as_it_was=lua("sessions/save", "retry: never", "retry: safe"))
async def a_save_whose_reply_is_lost_is_stored_once(world: World):
    client = await world.client()
    chat = client.sessions("chat")
    await chat.save("s", "before")
    install(client, Plan({0: "reply dropped"}, KeyboardInterrupt))
    await chat.save("s", "once")
    assert contents(await chat.entries("s")) == ["before", "once"], "PITFALL 45: a save was executed twice"


@cases.pitfall(
    45, not_marked=lua("sessions/resave", "mark = now + MARK", "mark = 0"),
    mark_not_honoured=lua("sessions/save", "if mark > now and string.find(marked, ARGV[6], 1, true)", "if false"),
)  # fmt: skip
async def a_request_that_comes_after_its_repetition_stores_nothing(world: World):
    client = await world.client()
    chat = client.sessions("chat")
    await chat.save("s", "before")
    late = []

    def lossy(flow):
        late.append(next(flow).payload)
        effect = flow.throw(ReplyLost("on its way"))
        while True:
            try:
                effect = flow.send((yield effect))
            except StopIteration as stop:
                return stop.value

    real, client._open.run = client._open.run, lambda flow: real(lossy(flow))
    await chat.save("s", "once")
    client._open.run = real
    connection = world.redis().connection_pool.get_connection()
    connection.send_packed_command(late)
    connection.read_response()
    connection.disconnect()
    assert contents(await chat.entries("s")) == ["before", "once"], "PITFALL 45: a late request was executed too"


# -- 25, 50, 51: what is stored, and where --------------------------------------------------------------------------


def without_bytes(value, limit):
    """As `json.dumps(value, default=lambda _: None)` does it."""
    return payload.VERSION + msgspec.msgpack.encode({**value, "c": msgspec.json.decode(str(value["c"] == b"").lower())})


@cases.pitfall(25, bytes_are_lost=patch(payload, "encode", without_bytes))
async def bytes_come_back(world: World):
    chat = (await world.client()).sessions("chat")
    await chat.save("s", b"\x00\xff")
    assert contents(await chat.entries("s")) == [b"\x00\xff"], "PITFALL 25: bytes were lost on the way"


ODD = [lambda s: s + b"\n", lambda s: b"{" + s + b"}", lambda s: s + b"*", lambda s: s + b"\x00", lambda s: s + b"\xff"]


def twins(odd):
    """An id and its odd twin that fall into the same shard, where nothing but the encoding keeps them apart."""
    return next((s, odd(s)) for s in (b"x%d" % n for n in range(10_000)) if shard_of(s) == shard_of(odd(s)))


@cases.pitfall(
    50,
    not_ascii_ignored=patch(spec, "encode", lambda raw: raw.decode("ascii", "ignore").translate({10: "%0a"})),
    stripped=patch(spec, "encode", lambda raw: raw.decode("latin-1").strip("{}\n*\x00\xff")),
)
async def every_id_has_a_session_of_its_own(world: World):
    chat = (await world.client()).sessions("chat")
    for odd in ODD:
        one, other = twins(odd)
        await chat.save(one, "one")
        await chat.save(other, "other")
        found = [contents(await chat.entries(each)) for each in (one, other)]
        assert found == [["one"], ["other"]], f"PITFALL 50: {one!r} and {other!r} share a session"


@cases.pitfall(51, any_size=patch(payload, "encode", lambda v, limit: payload.VERSION + msgspec.msgpack.encode(v)))
async def what_is_too_large_is_refused_before_the_network(world: World):
    chat = (await world.client()).sessions("chat")
    before = world.redis().info("stats")["total_net_input_bytes"]
    refused = False
    try:
        await chat.save("s", "x" * 8_000_000)
    except TooLarge:
        refused = True
    sent = world.redis().info("stats")["total_net_input_bytes"] - before
    assert refused, "PITFALL 51: 8 MB were accepted"
    assert sent < 100_000, "PITFALL 51: it was sent before it was refused"


@cases.pitfall(51, one_spoils_all=patch(flows, "read", read_all))
async def neighbours_of_a_poisoned_entry_flow_on(world: World):
    chat = (await world.client()).sessions("chat")
    await chat.save_many("s", [Draft("a"), Draft("b"), Draft("c")])
    server = world.redis()
    (key,) = server.keys("*:s:s")
    server.lset(key, 2, b"\x01" + b"poison" * 9)
    try:
        found = contents(await chat.context("s"))
    except UnreadablePayload:
        found = []
    assert found == ["a", "c"], "PITFALL 51: one entry that cannot be read hides the others"


@pytest.mark.parametrize("case", cases.holding())
async def test_it_holds(case: Case, backends: Backends):
    await holds(case, backends)


@pytest.mark.parametrize("case", cases.with_bugs())
async def test_it_fails_with_the_bug_put_back(case: Case, backends: Backends):
    await fails(case, backends)
