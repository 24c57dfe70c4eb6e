"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="Server to use. Default: HOLDFAST_URL.", envvar="HOLDFAST_URL")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Count = Annotated[int, typer.Option("--count", min=1, max=1000, help="Show at most so many.")]
Reason = Annotated[str, typer.Option("--reason", help="Why. It goes into the audit log.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
Kind = Annotated[str, typer.Option("--kind", help="lock, rw or sem")]
Fence = Annotated[int | None, typer.Option("--fence", help="Only the holder with this fence.")]
Payloads = Annotated[bool, typer.Option("--payloads", help="Show what users said, too.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", help="SQL database of the monitor. Default: HOLDFAST_NODE_STORE.", envvar="HOLDFAST_NODE_STORE"
    ),
]
