"""The commands, put together. No traceback for a user's mistake: every HoldfastError is one line and an exit code."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

import holdfast
from holdfast import HoldfastError
from holdfast.cli import buffers, dead, locks, monitor, runs, sessions
from holdfast.cli.audit import audit
from holdfast.cli.bench import bench
from holdfast.cli.config import config
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.exits import exit_of
from holdfast.cli.output import say
from holdfast.cli.top import top
from holdfast.cli.up import up
from holdfast.cli.watch import watch

# Its own way of showing a traceback prints local variables, among them URLs with passwords.
app = typer.Typer(
    help="Holdfast: a fleet of workers that behaves like one careful worker.", no_args_is_help=True,
    pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(holdfast.__version__)
        raise typer.Exit


def work(
    target: Annotated[str, typer.Argument(help="The client, as module:variable.")],
    processes: Annotated[
        int, typer.Option(min=1, max=1000, help="Run so many processes, and start again what ends.")
    ] = 1,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run what an application has registered (absorbers, runners, monitors, gates) until SIGTERM or Ctrl-C.

    Handlers may then finish for the setting `drain`; what cannot is handed back to the fleet."""
    from holdfast.cli import work as working

    try:
        client = working.load(target)
        if processes == 1 or supervised:
            working.run_one(client, supervised)
            return
        code = asyncio.run(working.supervise(client, target, processes))
    except HoldfastError as error:
        say(error)
        # What starting again may mend, whoever looks after this process must be able to tell apart.
        raise typer.Exit(exit_of(error)) from None
    if code:
        raise typer.Exit(code)


RUN, LOOK, CHECK = "Run", "Look, and do something", "Check"
app.command(rich_help_panel=RUN)(up)
app.command(rich_help_panel=RUN)(work)
app.command(rich_help_panel=RUN)(watch)
app.command(rich_help_panel=RUN)(demo)
app.command(rich_help_panel=CHECK)(doctor)
app.command(rich_help_panel=CHECK)(top)
app.command(rich_help_panel=CHECK)(audit)
app.command(rich_help_panel=CHECK)(bench)
app.command(rich_help_panel=CHECK)(config)
app.add_typer(locks.app, name="locks", rich_help_panel=LOOK)
app.add_typer(buffers.app, name="buffers", rich_help_panel=LOOK)
app.add_typer(runs.app, name="runs", rich_help_panel=LOOK)
app.add_typer(sessions.app, name="sessions", rich_help_panel=LOOK)
app.add_typer(monitor.app, name="monitor", rich_help_panel=LOOK)
app.add_typer(dead.app, name="dead", rich_help_panel=LOOK)
app.command("release", rich_help_panel=LOOK)(locks.release_at_once)
