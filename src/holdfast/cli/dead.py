"""`holdfast dead`: the dead letters of buffers and monitors: list, look, put back, throw away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast import Buffer, DeadLetter, Holdfast, Monitor, NotAcquired
from holdfast.cli.exits import Exit
from holdfast.cli.nouns import noun
from holdfast.cli.options import Count, Json, Payloads, Reason, Store, Url, Yes
from holdfast.cli.output import brief, data, facts, moment, plain, print_json, progress, say, show
from holdfast.cli.running import Ask, audited, client, run

app = noun("Dead letters: what was tried often enough. `dead buffer:NAME ID` shows one.")
Where = Annotated[str, typer.Argument(metavar="WHERE", help="buffer:NAME or monitor:NAME; NAME alone is a buffer.")]
Letters = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, as `dead list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every one that is there.")]
KINDS = ("buffer", "monitor")
PAGE = 1000
TARGET_MOST = 900


def place(where: str) -> tuple[str, str]:
    """Kind and name."""
    kind, colon, name = where.partition(":")
    return (kind, name) if colon and kind in KINDS else ("buffer", where)


def collection(hf: Holdfast, where: str) -> Buffer | Monitor:
    kind, name = place(where)
    return hf.buffer(name) if kind == "buffer" else hf.monitor(name)


@app.command("list")
def list_(
    where: Annotated[
        str | None, typer.Argument(metavar="WHERE", help="buffer:NAME or monitor:NAME; without it, all of them.")
    ] = None,
    count: Count = 100,
    url: Url = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Dead letters without their contents: of one collection, or of all that were used in the last 30 days."""
    run(listed(where, count, url, as_json))


async def listed(where: str | None, count: int, url: str | None, as_json: bool) -> None:
    found: list[tuple[str, Any]] = []
    async with client(url) as hf:
        places = [where] if where is not None else await _places(hf)
        for one in places:
            found += [(":".join(place(one)), letter) for letter in await collection(hf, one).dead_letters(count)]
    if as_json:
        print_json([_row(one, letter, False) for one, letter in found])
        return
    rows = [
        (one, letter.id, _whose(letter), moment(letter.at), letter.attempts, _count(letter), letter.error)
        for one, letter in found
    ]
    heads = ("where", "id", "user or subscriber", "died", "attempts>", "messages>", "error")
    show(heads, rows, none="there are no dead letters")


async def _places(hf: Holdfast) -> list[str]:
    return sorted({f"{one.kind}:{one.name}" for one in await hf.fleet.names() if one.kind in KINDS})


def _whose(letter: Any) -> Any:
    return letter.key if isinstance(letter, DeadLetter) else letter.subscriber


def _count(letter: Any) -> int:
    return letter.count if isinstance(letter, DeadLetter) else len(letter.changes)


def _row(where: str, letter: Any, payloads: bool) -> dict[str, Any]:
    row = {"where": where, **data(letter)}
    if not payloads:
        row.pop("messages", None)
        if "changes" in row:
            hidden = ("before", "after")
            row["changes"] = [{k: v for k, v in one.items() if k not in hidden} for one in row["changes"]]
    return row


@app.command("show")
def show_(
    where: Where,
    letter: Annotated[str | None, typer.Argument(metavar="ID", help="Without it, all are listed.")] = None,
    payloads: Payloads = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """One dead letter. Exit code 1 if there is no such one."""
    run(listed(where, 100, url, as_json) if letter is None else _show(where, letter, payloads, url, as_json))


async def _show(where: str, letter: str, payloads: bool, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        found = await _find(collection(hf, where), letter)
    if found is None:
        say("there is no such dead letter")
        return Exit.FOUND
    if as_json:
        print_json(_row(":".join(place(where)), found, payloads))
        return Exit.DONE
    facts({
        "id": found.id, "of": _whose(found), "died": moment(found.at), "attempts": found.attempts,
        "messages": _count(found), "error": found.error,
    })  # fmt: skip
    for one in _inside(found) if payloads else ():
        print(f"  {one}")
    return Exit.DONE


def _inside(found: Any) -> list[str]:
    if isinstance(found, DeadLetter):
        return [f"{one.id}  {moment(one.at)}  {brief(one.data)}" for one in found.messages]
    return [f"{one.id}  {moment(one.at)}  {plain(one.source)}  {brief(one.key)}  {brief(one.after)}"
            for one in found.changes]  # fmt: skip


async def _find(at: Buffer | Monitor, letter: str) -> Any:
    if isinstance(at, Buffer):
        return await at.dead_letter(letter)
    async for one in _of_monitor(at):
        if one.id == letter:
            return one
    return None


# -- changing -------------------------------------------------------------------------------------------------------


@app.command()
def replay(
    where: Where, reason: Reason, letters: Letters = None, every: All = False, yes: Yes = False, store: Store = None,
    url: Url = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Put dead letters back, to be tried anew. Subscribers of a monitor that are in its database need --store.

    That of a user who has a batch in flight stays where it is: exit code 5, try again later."""
    _change("replay", where, letters or (), every, reason, yes, store, url, as_json)


@app.command()
def purge(
    where: Where, reason: Reason, letters: Letters = None, every: All = False, yes: Yes = False, url: Url = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Remove dead letters for good. Exit code 1 if one of them was not there."""
    _change("purge", where, letters or (), every, reason, yes, None, url, as_json)


@dataclass
class Tally:
    """What became of them."""

    done: int = 0
    missing: int = 0
    busy: int = 0

    def __bool__(self) -> bool:
        return self.done > 0


def _change(
    action: str, where: str, letters: Sequence[str], every: bool, reason: str, yes: bool, store: str | None,
    url: str | None, as_json: bool,
) -> None:  # fmt: skip
    if bool(letters) == every:
        raise typer.BadParameter("pass the ids of dead letters, or --all")
    what = f"{action} {'all' if every else len(letters)} dead letter(s) of {where}"
    run(_do(action, where, letters, reason, store, url, as_json), Ask(what, reason, yes))


async def _do(
    action: str, where: str, letters: Sequence[str], reason: str, store: str | None, url: str | None, as_json: bool
) -> int:
    from holdfast.cli.monitor import opened  # here, as that file knows this one

    kind, name = place(where)
    tally, target = Tally(), f"{kind}:{name} {', '.join(letters) or 'all'}"
    try:
        async with opened(name, store if kind == "monitor" else None, url) as (hf, monitor):
            at = monitor if kind == "monitor" else hf.buffer(name)
            # One entry for all of them: the audit log has an end, and other things to say.
            await audited(hf, action, target[:TARGET_MOST], reason, _sweep(at, action, letters, tally))
    finally:  # what was done must be told, however it ends
        if as_json:
            print_json({"action": action, "where": f"{kind}:{name}", **data(tally)})
        else:
            print(f"{tally.done} dead letter(s) {'put back' if action == 'replay' else 'removed'}")
    if tally.missing:
        say(f"{tally.missing} were not there")
    if tally.busy:
        say(f"{tally.busy} were left: their users have a batch in flight; try again later")
        return Exit.REFUSED
    return Exit.FOUND if tally.missing else Exit.DONE


async def _sweep(at: Buffer | Monitor, action: str, letters: Sequence[str], tally: Tally) -> Tally:
    with progress() as bar:
        task = bar.add_task(action, total=0)
        async for page in _pages(at, letters):
            bar.update(task, total=(bar.tasks[0].total or 0) + len(page))
            for letter in page:
                try:
                    count = int(await (at.replay(letter) if action == "replay" else at.purge(letter)))
                    tally.done, tally.missing = tally.done + bool(count), tally.missing + (not count)
                except NotAcquired:
                    tally.busy += 1
                bar.advance(task)
    return tally


async def _pages(at: Buffer | Monitor, letters: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """Those that were named; or all, once each, so that one that dies again meanwhile does not keep us for ever."""
    if letters:
        yield letters
    elif isinstance(at, Buffer):
        seen: set[str] = set()
        while page := [one.id for one in await at.dead_letters(PAGE) if one.id not in seen]:
            seen.update(page)
            yield page
    else:
        known = [one.id async for one in _of_monitor(at)]
        yield known


async def _of_monitor(monitor: Monitor) -> AsyncIterator[Any]:
    after = ""
    while page := await monitor.dead_letters(PAGE, after=after):
        for one in page:
            yield one
        after = page[-1].id
