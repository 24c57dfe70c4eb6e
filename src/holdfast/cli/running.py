"""Around every command: the client, the errors, the exit code, and what must be asked before something changes."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import io
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, NamedTuple, TypeVar

import typer

from holdfast import ConfigurationError, Holdfast, HoldfastError, ServerFull
from holdfast.cli.exits import Exit, exit_of
from holdfast.cli.output import plain, say

T = TypeVar("T")
REASON_MOST = 1000
SILENT = 1.5
"""Seconds without an answer before it is said."""


@contextlib.asynccontextmanager
async def client(url: str | None, **settings: Any) -> AsyncIterator[Holdfast]:
    """For a short look: it does not count as a process of the fleet, and names nothing there.

    Says so where the server does not answer at once: it is tried for `retry_for`, and who types must know why."""
    hf = Holdfast(url, **{"report": 0.0, **settings})
    waiting = asyncio.get_running_loop().call_later(
        SILENT, say, f"{hf.shown} does not answer; trying for {hf.settings.retry_for:g} s"
    )
    try:
        await hf.open()
        await hf.ping()
    except BaseException:
        waiting.cancel()
        await hf.close()
        raise
    waiting.cancel()
    async with hf:
        yield hf


class Ask(NamedTuple):
    """What changes something must be agreed to, and have a reason."""

    what: str
    reason: str
    yes: bool


def run(work: Coroutine[Any, Any, int | None], ask: Ask | None = None) -> None:
    """Run it, if the answer is yes. A mistake is one line; what it answers is the exit code."""
    for stream in (sys.stdout, sys.stderr):  # where a terminal has no such letters, it is shown what they are
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if ask is not None:  # before there is a loop, which would keep Ctrl-C from ending the question
            agree(ask)
        code = asyncio.run(work) or 0
        sys.stdout.flush()  # here, where a reader that went away is no noise
    except HoldfastError as error:
        say(error)
        raise typer.Exit(exit_of(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    finally:
        work.close()  # it was never begun if the answer was no
    if code:
        raise typer.Exit(code)


async def server_time(hf: Holdfast) -> float:
    """Seconds since 1970 by the server's clock: that of all that it answers."""
    seconds, micros = await hf.command("TIME")
    return int(seconds) + int(micros) / 1e6


def ident(text: str) -> str | bytes:
    """An id from the command line; one that is no text arrives as the bytes that were typed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


def who() -> str:
    """Who types: for the audit log."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such user on this machine
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def agree(ask: Ask) -> None:
    """Ask before something is changed. Ends the command unless the answer is yes."""
    if not ask.reason.strip() or len(ask.reason) > REASON_MOST:
        raise ConfigurationError(f"give a --reason of 1 to {REASON_MOST} characters: it goes into the audit log")
    if ask.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"add --yes to {ask.what}: there is no terminal to ask on")
    try:
        agreed = typer.confirm(f"{plain(ask.what)}?", err=True)
    except typer.Abort:
        raise typer.Exit(Exit.INTERRUPTED) from None
    if not agreed:
        say("nothing was done")
        raise typer.Exit(Exit.FOUND)


async def audited(hf: Holdfast, action: str, target: str, reason: str, work: Awaitable[T]) -> T:
    """Write down what is about to be done, do it, and write down what came of it.

    A server that is out of memory may have no room for the first: what frees memory is done nonetheless."""
    try:
        entry = await hf.fleet.record(action, plain(target), reason, by=who())
    except ServerFull:
        entry = ""
        say("the server is full, so the audit log does not say this")
    try:
        result = await work
    except HoldfastError as error:
        await _outcome(hf, entry, type(error).__name__)
        raise
    await _outcome(hf, entry, "done" if result else "nothing to do")
    return result


async def _outcome(hf: Holdfast, entry: str, text: str) -> None:
    with contextlib.suppress(HoldfastError):  # what was done counts, and must be told
        if entry:
            await hf.fleet.outcome(entry, text)
