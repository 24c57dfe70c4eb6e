"""`holdfast doctor`: is the server fit, does everybody work, is something left over; and what to do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import HoldfastError, Unavailable
from holdfast.cli.exits import Exit
from holdfast.cli.findings import Finding, Level
from holdfast.cli.options import Json, Url
from holdfast.cli.output import console, plain, print_json, progress, table
from holdfast.cli.running import client, run

if TYPE_CHECKING:
    from rich.text import Text

STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    scan: Annotated[
        int, typer.Option(min=0, max=100_000_000, help="Look at so many keys for some without an end; 0: at none.")
    ] = 10_000,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say also what is well.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong: server, clock, scripts, rights, keys, workers, what is left over; with the fix for each.

    It only reads, except for one lock of its own for a moment. Exit code 0: nothing is wrong (notes do not count);
    1: there is a warning or a problem; 3: the server cannot be reached."""
    run(_doctor(scan, verbose, url, as_json))


async def _doctor(scan: int, verbose: bool, url: str | None, as_json: bool) -> int:
    found: list[Finding] = []
    code = None
    try:
        # Not refused for what is to be found here.
        async with client(url, check_server=False, allow_eviction=True) as hf:
            from holdfast.cli.checks import CHECKS

            with progress() as bar:
                task = bar.add_task("doctor", total=len(CHECKS))
                for name, check in CHECKS.items():
                    bar.update(task, description=name)
                    found += await _looked(name, check(hf, scan, bar))
                    bar.advance(task)
    except Unavailable as error:
        fix = "check the URL, the network and that the server runs; then `holdfast doctor` again"
        found.append(Finding("connection", Level.PROBLEM, plain(error), fix))
        code = Exit.UNAVAILABLE
    bad = [one for one in found if one.level in (Level.WARNING, Level.PROBLEM)]
    if as_json:
        print_json({"findings": found, "problems": len(bad)})
    else:
        _print(found if verbose else [one for one in found if one.level is not Level.OK], len(found), len(bad))
    return code if code is not None else Exit.FOUND if bad else Exit.DONE


async def _looked(name: str, looking: Awaitable[list[Finding]]) -> list[Finding]:
    """What a check found; one that could not look has found that."""
    try:
        return await looking
    except Unavailable:
        raise
    except HoldfastError as error:
        return [Finding(name, Level.PROBLEM, plain(error), "see docs/how-to/operate.md#rights")]


def _print(shown: Sequence[Finding], checked: int, bad: int) -> None:
    from rich.text import Text

    if shown:
        rows = [(Text(one.level, STYLES[one.level]), one.check, _what(one)) for one in shown]
        console().print(table(("", "check", "what, and what to do"), rows))
    print(f"{checked} checks, {bad} to look at" if bad else f"{checked} checks, nothing is wrong")


def _what(one: Finding) -> Text:
    from rich.text import Text

    text = Text(plain(one.what), overflow="fold")
    if one.fix:
        text.append(f"\n→ {plain(one.fix)}", "bold")
    return text
