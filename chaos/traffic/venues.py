"""What `python -m chaos monitor` observes, and whom it tells: drawn from a number, the same in every process."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import Holdfast
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.record import Key, Store, Subscriber

MONITOR = "venues"
SITE, FEED = "site", "feed"
"""Sources: results one by one, and pages that are parsed, each once in the fleet."""
FUNCTION = "function"
"""The subscriber that is a function of the nodes."""
SECRET = "whsec_Y2hhb3Mtb2Ytbm9kZXM="
TIMEOUT, MARGIN, READ_LEASE, TASK_LEASE = 1.0, 2.0, 1.0, 2.0
"""Seconds in which a subscriber must answer; by which taking it lasts longer; for a turn to read; for a page."""
PAUSE = 4.0
"""How long a frozen node stands still: longer than all of these."""
INTERVAL = 0.5
PAGE = 10
FIRST = 1_700_000_000.0
UNSEEN = "seen_by"
"""A field that is different each time, and does not count."""


class Row(NamedTuple):
    """A venue at a time."""

    venue: int
    key: Key
    state: dict[str, Any]
    observed_at: float


class Item(NamedTuple):
    """What every node gets at some time: one row of the site, or a page of the feed."""

    number: int
    source: str
    rows: tuple[Row, ...]
    moment: float


def source_of(venue: int) -> str:
    return FEED if venue % 5 == 0 else SITE


def key_of(venue: int) -> Key:
    return f"venue-{venue}" if venue % 2 else ("hall", venue)


def truth(schedule: int, venue: int, steps: int) -> list[Row]:
    """What the venue was, in order. Few states, so that some come back; the last one never was there before."""
    draw = random.Random(f"{schedule}.{venue}")
    rows: list[Row] = []
    for step in range(steps):
        state = {"price": draw.randrange(4), "open": draw.random() < 0.5}
        if step == steps - 1:
            state = {"price": 1000 + venue, "open": True}
        elif rows and draw.random() < 0.15:
            state = rows[-1].state
        rows.append(Row(venue, key_of(venue), state, round(FIRST + step * 60.0 + draw.uniform(0.0, 50.0), 3)))
    return rows


def items(schedule: int, venues: int, steps: int, seconds: float) -> list[Item]:
    """All that there is to observe, each at its moment within so many seconds."""
    draw = random.Random(f"{schedule}.items")
    rows = [truth(schedule, venue, steps) for venue in range(venues)]
    feed = [venue for venue in range(venues) if source_of(venue) == FEED]
    made: list[Item] = []

    def add(source: str, of: Sequence[int], step: int) -> None:
        moment = (step + draw.random()) * seconds / steps
        made.append(Item(len(made), source, tuple(rows[venue][step] for venue in of), moment))

    for step in range(steps):
        for venue in range(venues):
            if source_of(venue) == SITE:
                add(SITE, [venue], step)
        draw.shuffle(feed)
        for at in range(0, len(feed), PAGE):
            add(FEED, feed[at : at + PAGE], step)
    return made


def arrivals(schedule: int, node: int, made: Sequence[Item], seconds: float) -> list[tuple[float, int]]:
    """When a node gets each of them, in its own order; some come twice."""
    draw = random.Random(f"{schedule}.{node}.arrivals")
    found = []
    for item in made:
        for _ in range(2 if draw.random() < 0.15 else 1):
            latest = seconds / 8 if draw.random() < 0.3 else seconds / 60
            found.append((item.moment + draw.uniform(0.0, latest), item.number))
    return sorted(found)


def monitor(hf: Holdfast, store: Store, window: float, backlog: int) -> Monitor:
    return hf.monitor(
        MONITOR, ignore=(UNSEEN,), window=window, store=store, allow=("127.0.0.1",), backlog=backlog, workers=12
    )


def parse_page(raw: str) -> list[tuple[Key, dict[str, Any], float]]:
    """The parser of the feed."""
    return [(tuple(key) if isinstance(key, list) else key, state, at) for key, state, at in json.loads(raw)]


# -- whom it tells ----------------------------------------------------------------------------------------------------

MANNERS: Mapping[str, Mapping[str, float]] = {
    "steady": {},
    "flaky": {"refuse": 0.3},
    "hanging": {"hang": 0.1},
    "late": {"answer late": 0.1, "accept late": 0.1},
    "dropping": {"drop": 0.25},
    "away": {},
    "mortal": {"refuse": 0.4},
    "picky": {"refuse": 0.1, "drop": 0.1},
}
"""The webhooks, and how often each of them is bad in which way. `away` is not there at all for a while."""


def subscribers(urls: Mapping[str, str]) -> list[Subscriber]:
    common: dict[str, Any] = {"first": True, "retries": 1000, "retry_delay": 0.1, "jitter": 0.5, "timeout": TIMEOUT}
    special: dict[str, dict[str, Any]] = {
        "steady": {"secret": SECRET},
        "hanging": {"max_changes": 20},
        "mortal": {"retries": 1, "max_changes": 20},
        "picky": {"sources": (SITE,), "keys": ("venue-*7",), "first": False, "interval": INTERVAL},
    }
    return [Subscriber(name, "webhook", urls[name], **{**common, **special.get(name, {})}) for name in MANNERS]


FUNCTION_OPTIONS: dict[str, Any] = {"first": True, "retries": 1000, "retry_delay": 0.1, "timeout": TIMEOUT}
EVERYBODY = (*MANNERS, FUNCTION)


def wanted(subscriber: str, venue: int, kind: str) -> bool:
    """Is this subscriber to be told?"""
    return subscriber != "picky" or (
        kind != "first" and source_of(venue) == SITE and venue % 10 == 7  # those whose key is text end with 7
    )
