"""Locks: who holds what, since when, for how long, and who waits."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast import ConfigurationError, LockInfo
from holdfast.node.dashboard.asking import Action, Ask, Given
from holdfast.node.dashboard.site import Page, count_of, goto, piece, root_of
from holdfast.node.dashboard.text import Id, id_time, shown, token
from holdfast.node.state import node_of

KINDS = (("lock", "Mutex"), ("rw", "Read/write lock"), ("sem", "Semaphore"))
PAGE, MOST_PAGES = 100, 100
LIVE_PAGES = 2
SORTS = ("name", "age", "left", "waiting")


async def look(request: Request) -> dict[str, Any]:
    """Locks in use, from the shards' indexes."""
    node = node_of(request)
    number = count_of(request, "page", 1, 1, MOST_PAGES)
    sort = request.query_params.get("sort", "age")
    found = await node.hf.list_locks(PAGE, offset=(number - 1) * PAGE)
    if sort not in SORTS:
        sort = "age"
    return {
        "page_title": "Locks", "now": await node.now(), "locks": sorted(found, key=_order(sort)), "sort": sort,
        "live": number <= LIVE_PAGES, "number": number, "more": len(found) == PAGE and number < MOST_PAGES,
        "kinds": dict(KINDS), "total": await node.hf.count_locks(),
    }  # fmt: skip


def _order(sort: str) -> Any:
    def key(info: LockInfo) -> tuple[float, str]:
        first = {
            "age": -max((one.age for one in info.holders), default=0.0),
            "left": min((one.remaining for one in info.holders), default=0.0),
            "waiting": -float(info.waiting),
        }.get(sort, 0.0)
        return first, shown(info.name)

    return key


async def find(request: Request) -> Response:
    """From the search field to the lock of exactly that name."""
    name, kind = request.query_params.get("name", ""), request.query_params.get("kind", "lock")
    if not name or kind not in dict(KINDS):
        return goto(request, f"{root_of(request)}/locks", "Type the whole name of a lock.")
    return goto(request, _path(request, kind, name))


def _path(request: Request, kind: str, name: Id) -> str:
    return f"{root_of(request)}/locks/{kind}/{token(name)}"


def _kind(request: Request) -> str:
    kind: str = request.path_params["kind"]
    if kind not in dict(KINDS):
        raise ConfigurationError(f"pass kind as lock, rw or sem, not {kind!r}")
    return kind


async def look_at_one(request: Request) -> dict[str, Any]:
    """One lock: its holders, its queue and how it was ended by force."""
    node, kind, name = node_of(request), _kind(request), piece(request, "name")
    info = await node.hf.inspect(name, kind)
    history = await node.hf.audit(name, 50, kind=kind)
    return {
        "page_title": shown(name), "now": await node.now(), "info": info, "kind_name": dict(KINDS)[kind],
        "history": [(entry, id_time(entry.id)) for entry in history],
    }  # fmt: skip


async def release(request: Request) -> Ask:
    """End the lease of whoever holds it, or only the one with the fence of the query."""
    node, kind, name = node_of(request), _kind(request), piece(request, "name")
    given = request.query_params.get("fence", "")
    fence = int(given) if given.isdecimal() and len(given) < 20 else None

    async def work(given: Given) -> str:
        ended = await node.hf.force_release(name, reason=given.reason, by=given.by, kind=kind, fence=fence)
        return f"{ended} ended" if ended else "nobody held it"

    return Ask(
        "force-release", "Force release", name, f"{kind}:{shown(name)}",
        "The lease ends now and the next waiter gets it. Its holder learns of it at its next renewal and may act until "
        "then: only a check of the fence at the resource keeps it out.",
        "Force release", work, _path(request, kind, name),
    )  # fmt: skip


PAGES = (
    Page("/locks", "locks.html", "locks", look),
    Page("/locks/{kind}/{name}", "lock.html", "locks", look_at_one, every=1.0),
)
OTHERS = (("/find/lock", find),)
ACTIONS = (Action("/locks/{kind}/{name}/release", "locks", release),)
