"""The first request of a save that was repeated, arriving after the repetition: it must store nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Draft
from holdfast.engine.flow import ReplyLost


def send_raw(server: Any, payload: bytes) -> Any:
    """The very bytes of a request, as if they had been in a socket all the time."""
    connection = server.connection_pool.get_connection()
    try:
        connection.send_packed_command([payload])
        return connection.read_response()
    finally:
        server.connection_pool.release(connection)


class Late:
    """Lets a chat's next save lose its first request, and delivers that request later."""

    def __init__(self, crew: Any, chat: Any) -> None:
        self.chat = chat
        self.server = crew.backend.owner.client()
        self.payload = b""

    async def save(self, *words: str) -> Any:
        driver = self.chat.actor.hf._open
        real = driver.run
        driver.run = lambda flow: real(self._lossy(flow))
        try:
            return await self.chat.save_many("s", [Draft(word) for word in words])
        finally:
            driver.run = real

    def _lossy(self, flow: Any) -> Any:
        self.payload = next(flow).payload
        effect = flow.throw(ReplyLost("on its way, as the test knows and the client cannot"))
        while True:
            try:
                effect = flow.send((yield effect))
            except StopIteration as stop:
                return stop.value

    def arrive(self) -> bytes:
        return send_raw(self.server, self.payload)[0]


@pytest.fixture
async def late(quick):
    chat = await quick.chat(max_entries=3)
    await chat.save("s", "before")
    made = Late(quick, chat)
    yield made
    made.server.close()


async def test_it_stores_nothing(late):
    saved = await late.save("a")
    assert late.arrive() == b"doubtful"
    assert late.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["before", "a"]
    assert (await late.chat.get("s", saved.id)).content == "a"


async def test_it_stores_nothing_of_a_batch(late):
    await late.save("a", "b")
    assert late.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["before", "a", "b"]


async def test_it_stores_nothing_when_others_saved_in_between(late):
    await late.save("a")
    await late.chat.save("s", "b")
    assert late.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["before", "a", "b"]


async def test_it_stores_nothing_when_its_entry_was_trimmed(late):
    await late.save("a")
    for word in "bcd":
        await late.chat.save("s", word)
    assert late.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["b", "c", "d"]


async def test_it_stores_nothing_when_its_entry_was_popped(late):
    await late.save("a")
    await late.chat.pop_last("s")
    assert late.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["before"]


async def test_two_of_them_store_nothing(quick, late):
    other = Late(quick, await quick.chat(max_entries=3))
    await late.save("a")
    await other.save("b")
    assert late.arrive() == other.arrive() == b"doubtful"
    assert await late.chat.contents("s") == ["before", "a", "b"]
    other.server.close()


async def test_others_are_not_held_up(late):
    """The mark is for one request: whoever else saves is stored at once, in one round trip."""
    await late.save("a")
    before = late.server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert (await late.chat.save("s", "b")).count == 3
    assert late.server.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


def _key(late: Any) -> bytes:
    (key,) = late.server.keys("*:s:s")
    return key


async def test_the_memory_of_late_ones_is_bounded(quick, late):
    late.chat = await quick.chat(max_entries=100)
    for number in range(40):
        await late.save(f"a{number}")
    assert len(late.server.lindex(_key(late), 0)) < 32 * 16 + 120
    assert late.arrive() == b"doubtful"


async def test_a_request_that_arrives_first_is_found_by_the_repetition(late):
    """The other order: the request was executed, only its reply was lost."""
    real = late._lossy

    def executed(flow):
        inner = real(flow)
        effect = next(inner)
        assert late.arrive() == b"stored"
        while True:
            try:
                effect = inner.send((yield effect))
            except StopIteration as stop:
                return stop.value

    late._lossy = executed
    saved = await late.save("a")
    assert saved.count == 2
    assert await late.chat.contents("s") == ["before", "a"]
