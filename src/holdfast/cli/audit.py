"""`holdfast audit`: what operators did."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.options import Count, Json, Url
from holdfast.cli.output import moment, print_json, show
from holdfast.cli.running import client, run


def audit(
    before: Annotated[str | None, typer.Option(help="Only what came before the action with this id.")] = None,
    count: Count = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """What operators did, newest first: stops, forced releases, replays, forgotten users. Kept for 90 days."""
    run(_audit(before, count, url, as_json))


async def _audit(before: str | None, count: int, url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = await hf.fleet.actions(count, before=before)
    if as_json:
        print_json(found)
        return
    rows = [(one.id, moment(one.at), one.by, one.action, one.target, one.reason, one.outcome) for one in found]
    show(("id", "at", "by", "action", "target", "reason", "outcome"), rows, none="nobody did anything")
