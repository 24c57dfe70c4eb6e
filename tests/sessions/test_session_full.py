"""A server without memory, and one that forgot its scripts (PITFALLS 46, 47)."""

from __future__ import annotations

import asyncio

import pytest
import redis

from holdfast import Draft, Holdfast, ServerFull
from holdfast.engine.embedded import EmbeddedServer


@pytest.fixture
async def own():
    """A server of its own with a client and an admin."""
    embedded = await asyncio.to_thread(EmbeddedServer.open, "embedded:")
    try:
        with redis.Redis(unix_socket_path=embedded.socket_path) as admin:
            async with Holdfast(f"unix://{embedded.socket_path}") as hf:
                yield hf.sessions("chat"), admin
    finally:
        await asyncio.to_thread(embedded.close)


def fill(admin):
    """What it has is more than it may have."""
    admin.config_set("maxmemory", 100_000)


async def test_a_full_server_refuses_to_add_and_lets_be_read_and_removed(own):
    chat, admin = own
    await chat.save_many("s", [Draft("a"), Draft("b")], user="me")
    await chat.save("t", "c", user="me")
    fill(admin)
    with pytest.raises(ServerFull) as refused:
        await chat.save("s", "c")
    assert refused.value.operation == "sessions/save"
    with pytest.raises(ServerFull):
        await chat.save("new", "c", user="me")
    assert [entry.content for entry in await chat.context("s")] == ["a", "b"]
    assert await chat.touch("s", ttl=9000)
    assert (await chat.pop_last("s")).content == "b"
    await chat.clear("t")
    assert await chat.forget("me") == 1
    assert await chat.count("s") == 0
    admin.config_set("maxmemory", 0)
    assert (await chat.save("s", "d")).count == 1


async def test_a_server_that_forgot_its_scripts_is_told_them_again(own):
    chat, admin = own
    for number in range(3):
        admin.script_flush()
        await chat.save("s", number, user=f"u{number}")
        admin.script_flush()
        assert len(await chat.context("s")) == number + 1
    admin.script_flush()
    assert (await chat.pop_last("s")).content == 2
    admin.script_flush()
    assert await chat.forget("u0") == 1
