"""Events that are only counted: under which name, by which outcome, and how many."""

from __future__ import annotations

from holdfast.events import (
    Claimed,
    Delivered,
    Event,
    Fetched,
    FetchFailing,
    FetchRecovered,
    Filtered,
    Gated,
    Lost,
    NotDelivered,
    Observed,
    Outage,
)

KINDS = {
    "ids": "Ids that were asked about: unique, duplicate",
    "claims": "Claims of ids and calls: acquired, rejected, duplicate, lost",
    "states": "States that gates have judged: first, changed, suppressed, unchanged",
    "outages": "Answers given without the server: raise, allow, deny",
    "observations": "Observations of monitors: first, changed, suppressed, unchanged, older, full",
    "deliveries": "Messages to subscribers: delivered, failed, dead",
    "fetches": "Looks at pages: first, changed, unchanged, older, failed; failing and recovered ones",
    "told": "Changes that subscribers have accepted",
}


def outcomes(event: Event) -> list[tuple[str, str, int]]:
    """Kind, outcome and number; nothing for an event that is more than a count."""
    match event:
        case Filtered(unique=unique, duplicates=duplicates):
            return [("ids", "unique", unique), ("ids", "duplicate", duplicates)]
        case Claimed(outcome=outcome):
            return [("claims", outcome, 1)]
        case Lost(what="claim"):
            return [("claims", "lost", 1)]
        case Gated(reason=reason, count=count):
            return [("states", _shown(reason), count)]
        case Outage(answer=answer):
            return [("outages", answer, 1)]
        case Observed(outcome=outcome, count=count):
            return [("observations", _shown(outcome), count)]
        case Delivered(changes=changes):
            return [("deliveries", "delivered", 1), ("told", "accepted", changes)]
        case Fetched(outcome=outcome):
            return [("fetches", outcome, 1)]
        case FetchFailing():
            return [("fetches", "failing", 1)]
        case FetchRecovered():
            return [("fetches", "recovered", 1)]
        case NotDelivered(dead=dead):
            return [("deliveries", "dead" if dead else "failed", 1)]
    return []


def _shown(reason: str) -> str:
    return "suppressed" if reason == "repeated" else reason
