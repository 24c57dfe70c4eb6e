"""`holdfast sessions`: the short-term memory of one session, and the sessions of a user."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.names import names_of
from holdfast.cli.nouns import noun
from holdfast.cli.options import Count, Json, Payloads, Reason, Url, Yes
from holdfast.cli.output import brief, data, moment, plain, print_json, say, show
from holdfast.cli.running import Ask, audited, client, ident, run

app = noun("Sessions: short-term memory. `sessions NAME SESSION` shows one.")
Name = Annotated[str, typer.Argument(help="The name under which the sessions are.")]
Session = Annotated[str, typer.Argument(help="The session's id.")]


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="With USER: whose sessions; without both, all names.")] = None,
    user: Annotated[str | None, typer.Argument(help="The user, as passed to `save`.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Names under which there are sessions; or the sessions of a user."""
    if name is not None and user is None:
        raise typer.BadParameter("add the USER: sessions are found by their user", param_hint="USER")
    run(_names(url, as_json) if name is None or user is None else _list(name, user, url, as_json))


async def _names(url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = await names_of(hf, "sessions")
    if as_json:
        print_json(found)
    else:
        show(("sessions",), [(name,) for name in found], none="no process has reported sessions")


async def _list(name: str, user: str, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        sessions = hf.sessions(ident(name))
        found = [(one, await sessions.count(one)) for one in await sessions.sessions_of(ident(user))]
    if as_json:
        print_json([{"session": session, "entries": entries} for session, entries in found])
    else:
        show(("session", "entries>"), found, none="this user has no session here")
    return Exit.DONE if found else Exit.FOUND


@app.command("show")
def show_(
    name: Name, session: Session, payloads: Payloads = False, count: Count = 50, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """The newest entries of a session, oldest first. Exit code 1 if there is none."""
    run(_show(name, session, payloads, count, url, as_json))


async def _show(name: str, session: str, payloads: bool, count: int, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        found = await hf.sessions(ident(name)).context(ident(session), count)
    if found.unreadable or found.newer:
        say(f"left out: {found.unreadable} damaged, {found.newer} of a newer version")
    if as_json:
        hidden = () if payloads else ("content", "tool_calls", "extra")
        print_json([{k: v for k, v in data(one).items() if k not in hidden} for one in found])
    else:
        heads = ("entry", "at", "role", "tokens>", "calls>", *(("content",) if payloads else ()))
        rows = [
            (
                one.id, moment(one.at), one.role, one.tokens, len(one.tool_calls) or "",
                *((brief(one.content),) if payloads else ()),
            )
            for one in found
        ]  # fmt: skip
        show(heads, rows, none="there is no such session, or it is empty")
    return Exit.DONE if found else Exit.FOUND


# -- changing -------------------------------------------------------------------------------------------------------


@app.command()
def clear(
    name: Name, session: Session, reason: Reason, yes: Yes = False, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """Remove a session. Exit code 1 if there was none."""
    run(_clear(name, session, reason, url, as_json), Ask(f"clear session {session!r} of {name!r}", reason, yes))


async def _clear(name: str, session: str, reason: str, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        sessions = hf.sessions(ident(name))

        async def counted() -> int:
            entries = await sessions.count(ident(session))
            await sessions.clear(ident(session))
            return entries

        entries = await audited(hf, "clear", f"sessions:{name} {session}", reason, counted())
    if as_json:
        print_json({"session": ident(session), "entries": entries})
    else:
        print(f"{entries} entries removed" if entries else "there was no such session")
    return Exit.DONE if entries else Exit.FOUND


@app.command()
def forget(
    name: Name,
    user: Annotated[str, typer.Argument(help="The user, as passed to `save`.")],
    reason: Reason,
    yes: Yes = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove every session of a user, also what others said in it. Exit code 1 if there was none."""
    run(_forget(name, user, reason, url, as_json), Ask(f"forget the sessions of {user!r} in {name!r}", reason, yes))


async def _forget(name: str, user: str, reason: str, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        work = hf.sessions(ident(name)).forget(ident(user))
        gone = await audited(hf, "forget", f"sessions:{name} {user}", reason, work)
    if as_json:
        print_json({"user": ident(user), "sessions": gone})
    else:
        print(f"{gone} session(s) of {plain(user)} removed" if gone else "this user has no session here")
    return Exit.DONE if gone else Exit.FOUND
