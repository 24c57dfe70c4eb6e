"""The account: what went in, what became of it, and what does not add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from chaos.history.log import REFUSED, STORED, UNKNOWN, read


@dataclass(frozen=True)
class Account:
    acknowledged: int
    unknown: int
    """Appends that got no answer: they may or may not be stored."""
    refused: int
    absorbed: int
    """Different messages in SQL."""
    dropped: int
    """As counted by the server, by capacity, bytes and age."""
    lost: int
    """Acknowledged, neither in SQL nor counted as dropped."""
    duplicates: int
    """Messages in SQL more than once."""
    unexpected: int
    """Messages in SQL that nobody was told were stored, or might be."""
    reported: int
    """Drops that producers were told of."""

    @property
    def clean(self) -> bool:
        return self.lost == 0 and self.duplicates == 0 and self.unexpected == 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}


def effects(database: str) -> Counter[int]:
    """How often each message is in SQL."""
    engine = sa.create_engine(database)
    try:
        with engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT content FROM holdfast_memory_entries")).scalars()
            return Counter(int(content) for content in rows)
    finally:
        engine.dispose()


def check(folder: Path, database: str, counts: dict[str, int]) -> Account:
    told: dict[str, set[int]] = {STORED: set(), UNKNOWN: set(), REFUSED: set()}
    reported = 0
    for record in read(folder):
        told[record.outcome].update(range(record.first, record.first + record.count))
        reported += record.dropped
    found = effects(database)
    dropped = sum(number for name, number in counts.items() if name.startswith("dropped.") and "pair" not in name)
    missing = len(told[STORED] - found.keys())
    # A message of an unknown append may be among the dropped: so many may be missing from the count of drops.
    unseen = len(told[UNKNOWN] - found.keys())
    lost = missing - dropped if missing > dropped else max(0, dropped - missing - unseen)
    return Account(
        acknowledged=len(told[STORED]),
        unknown=len(told[UNKNOWN]),
        refused=len(told[REFUSED]),
        absorbed=len(found),
        dropped=dropped,
        lost=lost,
        duplicates=sum(1 for times in found.values() if times > 1),
        unexpected=len(found.keys() - told[STORED] - told[UNKNOWN]),
        reported=reported,
    )
