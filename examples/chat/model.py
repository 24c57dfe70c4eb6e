"""A model that needs no account: it makes up one word after the other, and can go on from its own half answer."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator, Sequence

PACE = float(os.environ.get("CHAT_PACE", "0.06"))
"""Seconds for a word."""
LENGTH = int(os.environ.get("CHAT_WORDS", "160"))

TEXT = """
A holdfast is what a kelp holds on with. The sea pulls at the kelp all day and the kelp stays where it is. When a storm
takes one branch of the holdfast the other branches hold. When a wave takes the whole kelp another kelp grows where it
was. The rock does not know which kelp it has. The sea does not ask. What was said before the storm is said again after
the storm and nobody hears it twice. A small crab lives in the holdfast and counts the waves. When the crab goes another
crab goes on with the number that the first one left. The kelp is never without a crab and never has two. All day the
waves come one after the other and each of them is counted once.
"""


def follow(prompt: str, said: Sequence[str], earlier: int = 0) -> str | None:
    """The word after these; None: the answer is complete. The same for the same words, as a patient model would be.

    A real model is shown what was said earlier; this one only counts it."""
    again = f"That is question {earlier + 1}.".split() if earlier else ["Well."]
    opening = ["You", "asked:", f"“{' '.join(prompt.split())[:80]}”.", *again, "A"]
    if len(said) < len(opening):
        return opening[len(said)]
    if len(said) >= LENGTH and said[-1].endswith("."):
        return None
    words = TEXT.split()
    after = [words[at + 1] for at in range(len(words) - 1) if words[at] == said[-1]] or ["The"]
    return after[zlib.crc32(f"{prompt} {len(said)}".encode()) % len(after)]


async def go_on(prompt: str, said: Sequence[str], earlier: int = 0) -> AsyncIterator[str]:
    """The words that are still missing, one after the other. A real model gets its half answer as a prefix."""
    so_far = list(said)
    while (word := follow(prompt, so_far, earlier)) is not None:
        await asyncio.sleep(PACE)
        so_far.append(word)
        yield word
