"""What an operation costs: one round trip, and a fixed number of commands whatever the session holds."""

from __future__ import annotations

import pytest

from holdfast import Draft

SCRIPT = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_script|load")


@pytest.fixture
def server(valkey):
    client = valkey.owner.client()
    yield client
    client.close()


def calls(server):
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in server.info("commandstats").items()}


async def commands_of(server, work):
    before = calls(server)
    await work()
    after = calls(server)
    return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0) and name != "info"}


@pytest.mark.parametrize("entries", [1, 90])
async def test_a_save_is_one_round_trip_and_reads_no_entry(quick, server, entries):
    chat = await quick.chat()
    await chat.save_many("s", [Draft("x" * 100)] * entries, user="me")
    await chat.save("s", "x", user="me")
    done = await commands_of(server, lambda: chat.save("s", "x", user="me"))
    assert done.pop("pttl", 0) <= 1  # when two saves fall into one ms
    assert done == {"evalsha": 1, "lindex": 1, "rpush": 1, "lset": 1, "pexpire": 1, "time": 1}


async def test_a_save_that_trims_one_entry_reads_only_that(quick, server):
    chat = await quick.chat(max_entries=50)
    await chat.save_many("s", [Draft("x")] * 50)
    await chat.save("s", "x")
    done = await commands_of(server, lambda: chat.save("s", "x"))
    assert done.pop("pttl", 0) <= 1
    assert done == {"evalsha": 1, "lindex": 3, "lrem": 1, "rpush": 1, "lset": 1, "pexpire": 1, "time": 1}


@pytest.mark.parametrize("method", ["context", "count", "entries", "clear", "touch", "pop_last"])
async def test_every_other_operation_is_one_round_trip(quick, server, method):
    chat = await quick.chat()
    for _ in range(2):
        await chat.save_many("s", [Draft("x")] * 5)
        done = await commands_of(server, lambda: getattr(chat, method)("s"))
    assert done["evalsha"] == 1


async def test_the_index_of_a_user_does_not_grow_with_sessions_that_ended(quick, server):
    # Given a user with sessions that ended long ago
    chat = await quick.chat(ttl=100)
    await chat.save("s0", "x", user="me")
    (index,) = server.keys("*:user:me")
    server.zadd(index, {f"old{n}": 1000 + n for n in range(35)})
    await chat.save("old0", "alive", user="other")
    # when the user goes on, expect them to leave the index some at a time, and those that live to stay
    for number in range(1, 8):
        await chat.save(f"s{number}", "x", user="me")
        if quick.api == "async":
            for task in list(chat.actor.hf._open._background):
                await task
    assert {name.decode() for name in server.zrange(index, 0, -1)} == {"old0", *(f"s{n}" for n in range(8))}
    assert sorted(await chat.sessions_of("me")) == ["old0", *(f"s{n}" for n in range(8))]


async def test_forget_removes_the_index_of_what_is_not_new(quick, server):
    chat = await quick.chat()
    await chat.save("s", "x", user="me")
    (index,) = server.keys("*:user:me")
    server.zadd(index, {"s": 1000})
    assert await chat.forget("me") == 1
    assert server.keys("*") == []
