"""The audit log: what operators did, why, and what came of it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from holdfast.node.dashboard.site import Page
from holdfast.node.state import node_of

PAGE = 50
ROUNDS = 10
"""Pages of the log that are read for one page of a filter; then the reader goes on by hand."""
ACTIONS_KNOWN = ("stop", "force-release", "requeue", "replay", "purge", "forget", "clear", "show")


async def look(request: Request) -> dict[str, Any]:
    """A page of the log, from the newest, or before an entry."""
    node, query = node_of(request), request.query_params
    wanted, before = query.get("action", ""), query.get("before") or None
    found: list[Any] = []
    more = True
    for _ in range(ROUNDS):
        lot = await node.hf.fleet.actions(PAGE + 1, before=before)
        more = len(lot) > PAGE
        for entry in lot[:PAGE]:
            before = entry.id
            if not wanted or entry.action == wanted:
                found.append(entry)
            if len(found) == PAGE:
                break
        if len(found) == PAGE or not more:
            break
    return {
        "page_title": "Audit", "now": await node.now(), "entries": found, "wanted": wanted,
        "older": before if more and found else "", "known": ACTIONS_KNOWN, "first": query.get("before", "") == "",
    }  # fmt: skip


PAGES = (Page("/audit", "audit.html", "audit", look, every=3.0),)
