"""Three agents that need no model. Each sees every batch, and what it finds is stored once."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from holdfast.memory import AbsorbableBatch, NewEntry

PACE = float(os.environ.get("MEMORY_PACE", "0"))
"""Seconds that thinking takes: a model would need some."""

FACT = re.compile(r"\b(I (am|like|love|hate|live|work|have|only)\b|my \w+ (is|are|was)\b)", re.I)
RECIPE = re.compile(r"\b(first|then|finally|step \d+|to \w+[^,]*, (you|one) (need|must|have))\b", re.I)


def sentences(text: str) -> Iterator[str]:
    yield from (part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if part.strip())


class Episodic:
    """What happened: every message, with what was attached to it."""

    name = "episodic"

    def run(self, batch: AbsorbableBatch) -> list[NewEntry]:
        found = []
        for message in batch.messages:
            attached = "".join(f" [{name}]" for name in message.attachments)
            data = {"attachments": dict(message.attachments)}
            found.append(NewEntry("episodic", message.data["text"] + attached, data, message.at, message.id))
        return found


class Picking:
    """Keeps the sentences that match."""

    def __init__(self, kind: str, pattern: re.Pattern[str]) -> None:
        self.name = kind
        self._pattern = pattern

    def run(self, batch: AbsorbableBatch) -> list[NewEntry]:
        time.sleep(PACE)  # in a thread: a plain `run` stops nobody else
        return [
            NewEntry(self.name, sentence, {"message": message.id}, message.at)
            for message in batch.messages
            for sentence in sentences(message.data["text"])
            if self._pattern.search(sentence)
        ]


AGENTS = (Episodic(), Picking("semantic", FACT), Picking("procedural", RECIPE))
