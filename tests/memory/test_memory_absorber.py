"""The memory with the real thing: a buffer, its absorber and their fences."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_help import contents

from holdfast import Holdfast
from holdfast.errors import Fenced, LeaseLost
from holdfast.memory import Memory, NewEntry
from support.conditions import until


async def test_an_absorber_hands_its_batches_to_the_memory(valkey: Any, url: str) -> None:
    async with Holdfast(valkey.url) as hf, Memory(url) as memory:
        inbox = hf.buffer("messages")
        hf.absorber(inbox, threshold=2)(memory.absorb)
        working = asyncio.create_task(hf.work())

        # when a user says something, and a pair that explains it
        await inbox.append("user-7", {"text": "I moved to 東京"})
        await inbox.append("user-7", {"text": "I like green tea"})

        # expect it to be found
        await until(lambda: memory.recall("user-7", "tea"), within=30)
        assert [entry.content for entry in await memory.recall("user-7", "東京")] == ["I moved to 東京"]
        hf.stop_work()
        await working


async def test_a_batch_handed_out_again_is_the_same_to_the_memory(valkey: Any, sqlite_url: str) -> None:
    async with Holdfast(valkey.url) as hf, Memory(sqlite_url) as memory:
        inbox = hf.buffer("messages")
        await inbox.append("user-7", "tea")
        # Given a batch that was absorbed and not acknowledged
        first = await inbox.take("user-7")
        await memory.absorb(first)
        await first.nack()

        # when it is handed out again
        second = await inbox.take("user-7")
        assert (second.id, second.fence > first.fence) == (first.id, True)
        await memory.absorb(second)
        await second.ack()

        # expect one entry
        assert contents(memory.store) == ["tea"]


async def test_what_a_buffer_forgot_no_worker_brings_back(valkey: Any, url: str) -> None:
    async with Holdfast(valkey.url) as hf:
        inbox = hf.buffer("messages")
        async with Memory(url, forget_also=[inbox]) as memory:
            # Given a worker with a batch in its hands
            await inbox.append("user-7", "tea")
            batch = await inbox.take("user-7")

            # when the user is forgotten
            await memory.forget("user-7")

            # expect the worker to be refused, by its lease or, if it does not look, by its fence
            with pytest.raises((LeaseLost, Fenced)):
                await memory.absorb(batch)
            with pytest.raises(Fenced):
                memory.store.commit(batch, "verbatim", [NewEntry("episodic", "tea")])
            assert await inbox.take("user-7") is None
            # and what is said later to be kept
            await inbox.append("user-7", "milk")
            async with await inbox.take("user-7") as later:
                await memory.absorb(later)
            assert contents(memory.store) == ["milk"]
            await inbox.forget("user-7")
