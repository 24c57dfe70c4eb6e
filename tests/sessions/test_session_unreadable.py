"""What cannot be read is skipped and counted, and nothing is removed by reading (PITFALLS 51, 52)."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from holdfast import Draft, NewerPayload, UnreadablePayload
from holdfast.events import Dropped


@pytest.fixture
def server(valkey):
    client = valkey.owner.client()
    yield client
    client.close()


def key_of(server):
    (key,) = server.keys("*:s:s")
    return key


def head_of(data: bytes) -> bytes:
    """All before the payload, of an entry without tool calls."""
    return data[:23]


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a payload was executed",))


DAMAGES = {
    "nothing": lambda data: b"",
    "text": lambda data: b"hello",
    "cut in its head": lambda data: data[:12],
    "cut in its payload": lambda data: data[:-1],
    "no payload": head_of,
    "pickle": lambda data: pickle.dumps(Trap()),
    "pickle as payload": lambda data: head_of(data) + pickle.dumps(Trap(), 0),
    "no mapping": lambda data: head_of(data) + b"\x01" + msgspec.msgpack.encode([1, 2]),
    "no content": lambda data: head_of(data) + b"\x01" + msgspec.msgpack.encode({"r": "user"}),
    "links that are not there": lambda data: data[:21] + b"\xff\xff" + data[23:],
}
NEWER = {
    "entry": lambda data: b"\x02" + data[1:],
    "payload": lambda data: head_of(data) + b"\x1f" + data[24:],
}


async def damaged(quick, server, damage):
    events = []
    chat = await quick.chat(max_entries=4, settings={"observers": [events.append]})
    saved = await chat.save_many("s", [Draft(word) for word in "abc"])
    key = key_of(server)
    server.lset(key, 2, damage(server.lindex(key, 2)))
    return chat, saved, events, key


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d != "pickle as payload"])
async def test_a_damaged_entry_is_skipped_and_counted(quick, server, damage):
    chat, _, events, key = await damaged(quick, server, DAMAGES[damage])
    before = server.lrange(key, 0, -1)
    found = await chat.context("s")
    assert [entry.content for entry in found] == ["a", "c"]
    assert (found.unreadable + found.newer) == 1
    assert [e.what for e in events if isinstance(e, Dropped)] == ["session entry"]
    assert server.lrange(key, 0, -1) == before, "reading removes nothing"
    # neighbours flow on: saving, trimming and popping work as ever
    await chat.save_many("s", [Draft(word) for word in "defg"])
    assert [entry.content for entry in await chat.context("s")] == ["d", "e", "f", "g"]


async def test_a_pickle_is_data_only(quick, server):
    chat, saved, _, _ = await damaged(quick, server, DAMAGES["pickle as payload"])
    assert [entry.content for entry in await chat.context("s")] == ["a", "c"]
    with pytest.raises(UnreadablePayload):
        await chat.get("s", saved.ids[1])


@pytest.mark.parametrize("kind", NEWER)
async def test_what_a_newer_version_wrote_is_skipped_counted_and_stays(quick, server, kind):
    chat, _, events, key = await damaged(quick, server, NEWER[kind])
    before = server.lrange(key, 0, -1)
    found = await chat.context("s")
    assert ([entry.content for entry in found], found.newer, found.unreadable) == (["a", "c"], 1, 0)
    assert [e.reason for e in events if isinstance(e, Dropped)] == ["newer"]
    assert (await chat.pop_last("s")).content == "c"
    with pytest.raises(NewerPayload):
        await chat.pop_last("s")
    assert server.lrange(key, 1, -1) == before[1:3]


@pytest.mark.parametrize("damage", [DAMAGES[d] for d in ("nothing", "cut in its head", "cut in its payload")])
async def test_pop_last_skips_what_is_damaged_and_counts_it(quick, server, damage):
    chat, _, events, _ = await damaged(quick, server, damage)
    assert [(await chat.pop_last("s")).content for _ in range(2)] == ["c", "a"]
    assert [e.reason for e in events if isinstance(e, Dropped)] == ["unreadable"]
    assert await chat.pop_last("s") is None


async def test_a_call_that_cannot_be_read_takes_its_result_along(quick, server):
    chat = await quick.chat()
    await chat.save_many("s", [Draft("call", tool_calls=["one"]), Draft("result", tool_call_id="one"), Draft("after")])
    key = key_of(server)
    server.lset(key, 1, server.lindex(key, 1)[:-1])
    assert [entry.content for entry in await chat.context("s")] == ["after"]


@pytest.mark.parametrize(("first", "kind"), [(b"junk", UnreadablePayload), (b"2 1 2 3", NewerPayload)])
async def test_a_session_whose_first_item_is_not_ours_is_left_alone(quick, server, first, kind):
    chat = await quick.chat()
    await chat.save("s", "a")
    key = key_of(server)
    server.lset(key, 0, first)
    before = server.lrange(key, 0, -1)
    for work in (chat.save("s", "b"), chat.context("s"), chat.pop_last("s"), chat.count("s")):
        with pytest.raises(kind):
            await work
    assert server.lrange(key, 0, -1) == before
    await chat.clear("s")
    assert (await chat.save("s", "b")).count == 1


async def test_no_payload_is_in_an_event_an_error_or_a_repr(quick, server):
    chat, _, events, _ = await damaged(quick, server, DAMAGES["cut in its payload"])
    await chat.save("s", "hunter2", user="me")
    await chat.context("s")
    assert "hunter2" not in repr(events) + repr(chat.sessions)
