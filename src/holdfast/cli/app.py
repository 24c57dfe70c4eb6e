"""Commands. No traceback for a user's mistake: every HoldfastError is one line and exit code 2."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

import holdfast
from holdfast import ConfigurationError, Holdfast, HoldfastError
from holdfast.cli.options import Json, Url
from holdfast.cli.watch import watch
from holdfast.node import health

app = typer.Typer(help="Holdfast: a fleet of workers that behaves like one careful worker.", no_args_is_help=True)
app.command()(watch)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(holdfast.__version__)
        raise typer.Exit


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Directory of the embedded server.")] = Path(".holdfast"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the health address; 0: any free one.")] = 0,
    server_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Also let the server listen on this loopback port; 0: socket only.")
    ] = 0,
) -> None:
    """Run the embedded server in the foreground, with a health address, until interrupted."""
    _run(_up(f"embedded://{data.expanduser().resolve()}", port, server_port))


async def _up(url: str, port: int, server_port: int) -> None:
    async with Holdfast(f"{url}?port={server_port}" if server_port else url) as hf:

        async def probe() -> dict[str, object]:
            return {"version": holdfast.__version__, "round_trip_ms": round(await hf.ping() * 1000, 3)}

        server = await health.serve(probe, "127.0.0.1", port)
        health_port = server.sockets[0].getsockname()[1]
        print(f"Holdfast {holdfast.__version__} is up. Stop it with Ctrl-C.")
        print(f"  connect  {url}")
        if server_port:
            print(f"           redis://127.0.0.1:{server_port}")
        print(f"  health   http://127.0.0.1:{health_port}/healthz")
        print(f"  try      HOLDFAST_URL={url} python examples/quickstart.py", flush=True)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with server:
            await stop.wait()
    print("stopped")


@app.command()
def locks(
    url: Url = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Show at most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """Locks in use: who holds them, since when, and who waits."""
    _run(_locks(url, count, as_json))


async def _locks(url: str | None, count: int, as_json: bool) -> None:
    async with Holdfast(url) as hf:
        found = await hf.list_locks(count)
    if as_json:
        rows = [
            {
                "name": str(info.name), "kind": info.kind, "permits": info.permits, "waiting": info.waiting,
                "holders": [{s: getattr(h, s) for s in h.__slots__} for h in info.holders],
            }
            for info in found
        ]  # fmt: skip
        print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("lock", "kind", "holder", "pid", "fence", "held", "ends in", "waiting")
    for info in found:
        for holder in info.holders:
            # Text, not markup: a lock may be named "[red]".
            table.add_row(
                Text(str(info.name)), info.kind, Text(f"{holder.host} {holder.label}"), str(holder.pid),
                str(holder.fence), f"{holder.age:.1f} s", f"{holder.remaining:.1f} s", str(info.waiting),
            )  # fmt: skip
    Console().print(table if found else "no lock is in use")


@app.command()
def release(
    name: Annotated[str, typer.Argument(help="The lock's name.")],
    reason: Annotated[str, typer.Option(help="Why. It goes into the audit log.")],
    url: Url = None,
    kind: Annotated[str, typer.Option(help="lock, rw or sem")] = "lock",
    fence: Annotated[int | None, typer.Option(help="Only the holder with this fence.")] = None,
) -> None:
    """End a lease by force. Whoever holds it may still act until it notices: guard by fence."""

    async def go() -> None:
        async with Holdfast(url) as hf:
            ended = await hf.force_release(name, reason=reason, kind=kind, fence=fence)
        print(f"{ended} lease(s) ended" if ended else "nobody holds it")

    _run(go())


@app.command()
def work(
    target: Annotated[str, typer.Argument(help="The client, as module:variable.")],
    processes: Annotated[
        int, typer.Option(min=1, max=1000, help="Run so many processes, and start again what ends.")
    ] = 1,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run the absorbers of an application until SIGTERM or Ctrl-C.

    Handlers may then finish for the setting `drain`; what cannot is handed back to the fleet."""
    from holdfast.cli import work as working

    try:
        client = working.load(target)
        if processes == 1 or supervised:
            working.run_one(client, supervised)
            return
        code = asyncio.run(working.supervise(client, target, processes))
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        # What starting again may mend, whoever looks after this process must be able to tell apart.
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from None
    if code:
        raise typer.Exit(code)


def _run(work: object) -> None:
    try:
        asyncio.run(work)  # type: ignore[arg-type]
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
