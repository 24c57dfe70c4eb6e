"""`holdfast config`: what is in force, and where it came from."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Holdfast, HoldfastError
from holdfast.cli.exits import exit_of
from holdfast.cli.options import Json
from holdfast.cli.output import say
from holdfast.settings import ENV_PREFIX, TABLES, NodeSettings, Settings, collections_of, found

HIDDEN = "(hidden)"


def config(
    as_json: Json = False,
    file: Annotated[Path | None, typer.Option("--config", help="TOML file; default: HOLDFAST_CONFIG.")] = None,
) -> None:
    """Show each setting in force, and where it came from. Secrets are hidden."""
    try:
        rows = _rows(file)
    except HoldfastError as error:
        say(error)
        raise typer.Exit(exit_of(error)) from None
    if as_json:
        print(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text as Plain

    table = Table("setting", "value", "from")
    for row in rows:
        table.add_row(f"{row['table']}.{row['setting']}", Plain(str(row["value"])), Plain(str(row["from"])))
    Console().print(table)


def _rows(file: Path | None) -> list[dict[str, Any]]:
    rows = [
        {
            "table": TABLES[kind][0], "setting": name, "value": _shown(kind, name, value), "from": source,
            "variable": f"{TABLES[kind][1]}{name.upper()}",
        }
        for kind in (Settings, NodeSettings)
        for name, (value, source) in _loaded(kind, file).items()
    ]  # fmt: skip
    path = str(file or os.environ.get(f"{ENV_PREFIX}CONFIG", ""))
    rows += [
        {"table": f"{kind}.{name}", "setting": option, "value": value, "from": path, "variable": ""}
        for kind, tables in collections_of(file=file).items()
        for name, options in tables.items()
        for option, value in options.items()
    ]
    url = os.environ.get(f"{ENV_PREFIX}URL")
    rows.insert(0, {
        "table": "holdfast", "setting": "url", "value": Holdfast(url).shown if url else "",
        "from": f"{ENV_PREFIX}URL" if url else "default", "variable": f"{ENV_PREFIX}URL",
    })  # fmt: skip
    return rows


def _loaded(kind: Any, file: Path | None) -> dict[str, tuple[Any, str]]:
    values = found(kind, file=file)
    kind(**{name: value for name, (value, _) in values.items()})  # out of bounds: say so
    return values


def _shown(kind: Any, name: str, value: Any) -> Any:
    secret = next(item.metadata["secret"] for item in fields(kind) if item.name == name)
    return HIDDEN if secret and value else value
