"""`holdfast buffers`: how much waits, for whom, since when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from holdfast import Buffer, BufferStats, BufferTotals, UserStats
from holdfast.cli.exits import Exit
from holdfast.cli.names import names_of
from holdfast.cli.nouns import noun
from holdfast.cli.options import Count, Json, Payloads, Reason, Url, Yes
from holdfast.cli.output import brief, data, facts, moment, plain, print_json, progress, show, size, span
from holdfast.cli.running import Ask, audited, client, ident, run

app = noun("Buffers: what waits, for whom, since when. `buffers NAME` shows one, `buffers NAME USER` one user.")
Name = Annotated[str, typer.Argument(help="The buffer's name.")]
Users = Annotated[list[str], typer.Argument(metavar="USER...", help="Whose messages.")]
USERS = ("user", "waiting>", "oldest>", "in flight>")
IN_HAND = ("user", "messages>", "attempt>", "state")


@app.command("list")
def list_(url: Url = None, as_json: Json = False) -> None:
    """The buffers that were used in the last 30 days, with their numbers."""
    run(_list(url, as_json))


async def _list(url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = [(name, await hf.buffer(name).totals()) for name in await names_of(hf, "buffer")]
    if as_json:
        print_json([{"name": name, **data(totals)} for name, totals in found])
        return
    rows = [
        (name, t.users, t.due, t.idle_workers, t.counts.get("absorbed", 0), _dropped(t), t.dead_letters)
        for name, t in found
    ]
    heads = ("buffer", "users>", "due>", "idle workers>", "absorbed>", "dropped>", "dead letters>")
    show(heads, rows, none="no process has reported a buffer")


def _dropped(totals: BufferTotals) -> int:
    """Messages; pairs only explain them."""
    return sum(n for name, n in totals.counts.items() if name.startswith("dropped.") and "pair" not in name)


@app.command("show")
def show_(
    name: Name,
    user: Annotated[str | None, typer.Argument(help="One user of it.")] = None,
    payloads: Payloads = False,
    count: Count = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """One buffer: counts, largest and oldest users. With USER: what waits of that user.

    Exit code 1 if there is nothing."""
    run(_show(name, count, url, as_json) if user is None else _user(name, user, payloads, count, url, as_json))


async def _show(name: str, count: int, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        buffer = hf.buffer(name)
        totals = await buffer.totals()
        largest, oldest = await buffer.largest(count), await buffer.oldest(count)
        in_hand = await buffer.in_hand(count)
    if as_json:
        print_json({"name": name, **data(totals), "largest": largest, "oldest": oldest, "in_hand": in_hand})
    elif totals.users or totals.counts or totals.dead_letters:
        facts({
            "users": totals.users, "due": totals.due, "idle workers": totals.idle_workers,
            "dead letters": totals.dead_letters, **dict(sorted(totals.counts.items())),
        })  # fmt: skip
        for title, users in (("most waiting", largest), ("oldest", oldest)):
            if users:
                rows = [(one.user, one.waiting, span(one.age), one.in_flight) for one in users]
                show(USERS, rows, title)
        if in_hand:
            show(IN_HAND, [(one.user, one.in_flight, one.attempt, _state(one)) for one in in_hand], "batches in hand")
    else:
        print("nothing is known of such a buffer")
    return Exit.DONE if totals.users or totals.counts or totals.dead_letters else Exit.FOUND


def _state(one: UserStats | BufferStats) -> str:
    return f"held, ends in {span(one.free_in)}" if one.held else f"handed out again in {span(one.free_in)}"


async def _user(name: str, user: str, payloads: bool, count: int, url: str | None, as_json: bool) -> int:
    who = ident(user)
    async with client(url) as hf:
        buffer = hf.buffer(name)
        stats, messages = await buffer.stats(who), await buffer.peek(who, count)
    found = bool(stats.waiting or stats.in_flight or stats.pairs)
    if as_json:
        shown = messages if payloads else [{"id": one.id, "at": one.at} for one in messages]
        print_json({"name": name, "user": who, **data(stats), "messages": shown})
        return Exit.DONE if found else Exit.FOUND
    if not found:
        print("nothing waits of this user")
        return Exit.FOUND
    held = _state(stats)
    facts({
        "waiting": f"{stats.waiting} ({size(stats.bytes)})", "oldest": span(stats.age), "pairs": stats.pairs or "",
        "in flight": f"{stats.in_flight}, attempt {stats.attempt}, fence {stats.fence}, {held}"
        if stats.in_flight else "",
    })  # fmt: skip
    if messages:
        heads = ("message", "at", *(("data",) if payloads else ()))
        show(heads, [(one.id, moment(one.at), *((brief(one.data),) if payloads else ())) for one in messages])
    return Exit.DONE


# -- changing -------------------------------------------------------------------------------------------------------


@app.command()
def flush(
    name: Name, users: Users, reason: Reason, yes: Yes = False, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """Let a worker take what waits of these users now, whatever its triggers say."""
    _each("flush", name, users, reason, yes, url, as_json, lambda buffer: buffer.flush)


@app.command()
def clear(
    name: Name, users: Users, reason: Reason, yes: Yes = False, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """Remove what waits of these users. A batch in flight stays."""
    _each("clear", name, users, reason, yes, url, as_json, lambda buffer: buffer.clear)


@app.command()
def forget(
    name: Name, users: Users, reason: Reason, yes: Yes = False, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """Remove every trace of these users: messages, batch in flight, pairs, dead letters.

    Prints a fence for each, higher than any before: record it where you check fences, and a worker that was paused
    cannot write the user back."""
    _each("forget", name, users, reason, yes, url, as_json, lambda buffer: buffer.forget)


Verb = Callable[[Any], Awaitable[Any]]
"""Of one user. It answers how many messages, whether there were some, or a fence."""


def _each(
    action: str, name: str, users: Sequence[str], reason: str, yes: bool, url: str | None, as_json: bool,
    verb: Callable[[Buffer], Verb],
) -> None:  # fmt: skip
    whom = repr(users[0]) if len(users) == 1 else f"{len(users)} users"
    run(_do(action, name, users, reason, url, as_json, verb), Ask(f"{action} {whom} in buffer {name!r}", reason, yes))


async def _do(
    action: str, name: str, users: Sequence[str], reason: str, url: str | None, as_json: bool,
    verb: Callable[[Buffer], Verb],
) -> int:  # fmt: skip
    answers: dict[str, Any] = {}
    try:
        async with client(url) as hf:
            do = verb(hf.buffer(name))
            with progress() as bar:
                for user in bar.track(users, description=action):
                    target = f"buffer:{name} {user}"
                    answers[user] = await audited(hf, action, target, reason, do(ident(user)))
    finally:  # what was done must be told, however it ends
        for user, answer in answers.items():
            if as_json:
                print_json({"action": action, "name": name, "user": ident(user), "answer": answer})
            else:
                print(f"{plain(user)}  {_told(action, answer)}")
    return Exit.DONE if all(answers.values()) else Exit.FOUND


def _told(action: str, answer: Any) -> str:
    if not answer:
        return "nothing waits"
    return {"flush": "a worker takes it now", "clear": f"{answer} message(s) removed"}.get(
        action, f"forgotten, fence {answer}"
    )
