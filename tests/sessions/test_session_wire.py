"""Faults on the wire, through a real proxy, while many callers save: each save that returned is there exactly once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from holdfast import Holdfast, HoldfastError, Unavailable
from holdfast.testing import FaultProxy
from support.conditions import until
from support.depth import examples

QUICK = {"call_timeout": 0.3, "retry_for": 5.0}
CALLERS = 20


class Caller:
    """Saves numbers into a session of its own and into one that all share, and writes down what it was told."""

    def __init__(self, number: int, chat: Any) -> None:
        self.number, self.chat = number, chat
        self.told: dict[str, list[list[int]]] = {"returned": [], "refused": [], "unknown": []}
        self.session = f"own-{number}"

    async def run(self, stop: asyncio.Event) -> None:
        at = 0
        while not stop.is_set():
            at += 1
            for session in (self.session, "shared"):
                word = [self.number, at]
                try:
                    await self.chat.save(session, word, user=f"user-{self.number}")
                except Unavailable:
                    outcome = "refused"
                except HoldfastError:
                    outcome = "unknown"
                else:
                    outcome = "returned"
                self.told[outcome].append([session == "shared", *word])
            await asyncio.sleep(0)


@pytest.mark.parametrize("schedule", [1, 2])
async def test_saves_are_stored_once_through_cuts_and_losses(valkey, schedule):
    chance = random.Random(schedule)
    options = {"max_entries": 10_000, "max_bytes": 1 << 26}
    with FaultProxy("127.0.0.1", valkey.owner.port) as proxy:
        async with Holdfast(proxy.url, **QUICK) as hf, Holdfast(valkey.url) as witness:
            chat = hf.sessions("chat", **options)
            stop = asyncio.Event()
            callers = [Caller(number, chat) for number in range(CALLERS)]
            running = [asyncio.create_task(caller.run(stop)) for caller in callers]

            def returned() -> int:
                return sum(len(caller.told["returned"]) for caller in callers)

            for trouble in range(1, examples(20, 200) + 1):
                match chance.randrange(3):
                    case 0:
                        proxy.cut()
                    case 1:
                        proxy.drop_replies(chance.randrange(1, 20), match=b"EVALSHA")
                    case 2:
                        proxy.cut_after_requests(chance.randrange(1, 40), match=b"EVALSHA")
                await until(lambda n=trouble: returned() >= 5 * n, within=30, what="some saves between troubles")
            proxy.heal()
            stop.set()
            await asyncio.gather(*running)
            seen = witness.sessions("chat", **options)
            shared = [entry.content for entry in await seen.entries("shared")]
            assert 0 < len(shared) < 10_000, "nothing was trimmed, so all must be there"
            for caller in callers:
                own = [entry.content for entry in await seen.entries(caller.session)]
                mine = [word for word in shared if word[0] == caller.number]
                check(caller, own, [word[1:] for word in caller.told["returned"] if not word[0]])
                check(caller, mine, [word[1:] for word in caller.told["returned"] if word[0]])
                refused = [word[1:] for word in caller.told["refused"] if not word[0]]
                assert not [word for word in own if word in refused], "stored, although it was said not to be"
            assert all(life > 0 for life in valkey.keys().values())
            # and every session is in the index of its users, whatever was lost on the way
            for caller in callers:
                await seen.forget(f"user-{caller.number}")
            left = valkey.keys()
            assert [key for key in left if ":s:" in key] == []
    valkey.flush()


def check(caller: Caller, found: list[list[int]], returned: list[list[int]]) -> None:
    """Once each, in the order in which they were saved; more only where the outcome was not known."""
    assert found == sorted(found), f"the order is wrong for {caller.number}"
    assert all(found.count(word) == 1 for word in found), f"stored twice by {caller.number}"
    assert not [word for word in returned if word not in found], f"lost by {caller.number}"
