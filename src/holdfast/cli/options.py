"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="Server to use. Default: HOLDFAST_URL.", envvar="HOLDFAST_URL")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
