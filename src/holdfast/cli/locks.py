"""`holdfast locks`: who holds what, since when, and who waits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast import LockInfo
from holdfast.cli.exits import Exit
from holdfast.cli.nouns import Inspected, noun
from holdfast.cli.options import Count, Fence, Json, Kind, Reason, Url, Yes
from holdfast.cli.output import data, facts, moment, plain, print_json, show, span
from holdfast.cli.running import Ask, audited, client, ident, run, who

app = noun("Locks in use: who holds them, since when, and who waits. `locks NAME` inspects one.", Inspected)
Name = Annotated[str, typer.Argument(help="The lock's name.")]
HOLDERS = ("lock", "kind", "holder", "pid>", "fence>", "held>", "ends in>", "waiting>")


@app.command("list")
def list_(url: Url = None, count: Count = 100, as_json: Json = False) -> None:
    """Locks in use: who holds them, since when, and who waits."""
    run(_list(url, count, as_json))


async def _list(url: str | None, count: int, as_json: bool) -> None:
    async with client(url) as hf:
        found = await hf.list_locks(count)
    if as_json:
        print_json([_row(info) for info in found])
        return
    show(HOLDERS, (row for info in found for row in _holders(info)), none="no lock is in use")


def _row(info: LockInfo) -> dict[str, Any]:
    return {
        "name": data(info.name), "kind": info.kind, "permits": info.permits, "waiting": info.waiting,
        "holders": data(info.holders),
    }  # fmt: skip


def _holders(info: LockInfo) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        (
            info.name, info.kind, f"{holder.host} {holder.label}", holder.pid, holder.fence, span(holder.age),
            span(holder.remaining) if holder.remaining else "expired", info.waiting,
        )
        for holder in info.holders
    ]  # fmt: skip
    return rows or [(info.name, info.kind, "", "", "", "", "", info.waiting)]


@app.command()
def inspect(name: Name, kind: Kind = "lock", url: Url = None, as_json: Json = False) -> None:
    """One lock: its holders and the first of its waiters. Exit code 1 if nobody has it or waits for it."""
    run(_inspect(name, kind, url, as_json))


async def _inspect(name: str, kind: str, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        info = await hf.inspect(ident(name), kind)
    if as_json:
        print_json({**_row(info), "waiters": info.waiters, "held": info.held, "free": info.free})
    elif info.holders or info.waiting:
        show(HOLDERS, _holders(info))
        waiters = [(n, f"{one.host} {one.label}", one.pid, one.permits) for n, one in enumerate(info.waiters, 1)]
        if waiters:
            show(("", "waits", "pid>", "permits>"), waiters)
    else:
        print("nobody holds it and nobody waits")
    return Exit.DONE if info.holders or info.waiting else Exit.FOUND


@app.command()
def release(
    name: Name, reason: Reason, kind: Kind = "lock", fence: Fence = None, yes: Yes = False, url: Url = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """End a lease by force. Whoever holds it may still act until it notices: guard by fence.

    Exit code 1 if nobody holds it."""
    ask = Ask(f"end the lease of {name!r}{f' with fence {fence}' if fence else ''}", reason, yes)
    run(_release(name, reason, kind, fence, url, as_json), ask)


async def _release(
    name: str, reason: str, kind: str, fence: int | None, url: str | None, as_json: bool
) -> int:  # fmt: skip
    async with client(url) as hf:
        force = hf.force_release(ident(name), reason=reason, by=who(), kind=kind, fence=fence)
        ended = await audited(hf, "force-release", f"{kind}:{name}", reason, force)
    if as_json:
        print_json({"name": data(ident(name)), "kind": kind, "ended": ended})
    else:
        print(f"{ended} lease(s) ended" if ended else "nobody holds it")
    return Exit.DONE if ended else Exit.FOUND


def release_at_once(
    name: Name, reason: Reason, url: Url = None, kind: Kind = "lock", fence: Fence = None
) -> None:  # fmt: skip
    """End a lease by force, without a question. Whoever holds it may still act until it notices: guard by fence."""

    async def go() -> None:
        await _release(name, reason, kind, fence, url, False)  # exit code 0 either way, as it always was

    run(go())


@app.command()
def history(name: Name, kind: Kind = "lock", url: Url = None, count: Count = 100, as_json: Json = False) -> None:
    """Forced releases of a lock in the last 30 days, newest first."""
    run(_history(name, kind, url, count, as_json))


async def _history(name: str, kind: str, url: str | None, count: int, as_json: bool) -> None:
    async with client(url) as hf:
        found = await hf.audit(ident(name), count, kind=kind)
    if as_json:
        print_json(found)
        return
    for entry in found:
        facts({
            "at": moment(int(entry.id.partition("-")[0]) / 1000), "reason": entry.reason, "by": entry.by,
            "ended": entry.ended, "fences": ", ".join(map(str, entry.fences)),
            "owners": ", ".join(map(plain, entry.owners)),
        })  # fmt: skip
        print()
    if not found:
        print("it was never released by force")
