"""`holdfast runs`: which runs there are, who has them, what they say; and how to stop them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast import Event, Run
from holdfast.cli.exits import Exit
from holdfast.cli.names import names_of
from holdfast.cli.nouns import noun
from holdfast.cli.options import Count, Json, Payloads, Reason, Url, Yes
from holdfast.cli.output import brief, data, facts, moment, print_json, show, span
from holdfast.cli.running import Ask, audited, client, ident, run, server_time

app = noun("Runs: their states, owners and events. `runs NAME` lists those of a collection, `runs NAME RUN` shows one.")
Name = Annotated[str, typer.Argument(help="The collection's name.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
LOOK = 1.0
"""Seconds without an event after which one who does not follow has seen all there is."""


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="A collection; without it, all of them with their totals.")] = None,
    state: Annotated[str | None, typer.Option(help="queued, running, stopping, completed, failed or stopped")] = None,
    key: Annotated[str | None, typer.Option(help="Only those of this key.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only those that this process has, as the list shows it.")] = None,
    stuck: Annotated[bool, typer.Option("--stuck", help="Only those that made no progress for long.")] = False,
    stuck_after: Annotated[
        float | None, typer.Option(min=0.05, help="So many seconds are long. Default: the setting run_stuck.")
    ] = None,
    count: Count = 100,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Collections with their runs by state; or the runs of one."""
    if name is None:
        run(_names(url, as_json))
        return
    where = {"state": state, "key": None if key is None else ident(key), "owner": owner, "stuck": stuck}
    run(_list(name, where, stuck_after, count, url, as_json))


async def _names(url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = {name: await hf.runs(name).totals() for name in await names_of(hf, "runs")}
    if as_json:
        print_json([{"name": name, "states": totals} for name, totals in found.items()])
        return
    states = next(iter(found.values()), {})
    rows = [(name, *totals.values()) for name, totals in found.items()]
    show(("runs", *(f"{state}>" for state in states)), rows, none="no process has reported runs")


async def _list(
    name: str, where: dict[str, Any], stuck_after: float | None, count: int, url: str | None, as_json: bool
) -> None:
    async with client(url) as hf:
        found = await hf.runs(name, stuck_after=stuck_after).list(**where, count=count)
        now = await server_time(hf)
    if as_json:
        print_json([_row(one, False) for one in found])
        return
    rows = [
        (
            one.id, one.state + (", waits" if one.waits else ""), one.key, one.owner, one.attempt or "",
            moment(one.created), "" if one.progress is None or one.over else span(now - one.progress), one.reason,
        )
        for one in found
    ]  # fmt: skip
    heads = ("run", "state", "key", "owner", "attempt>", "created", "last progress>", "reason")
    show(heads, rows, none="there is no such run")


def _row(one: Run, payloads: bool) -> dict[str, Any]:
    row: dict[str, Any] = data(one)
    return row if payloads else {name: value for name, value in row.items() if name not in ("input", "result")}


@app.command("show")
def show_(
    name: Name,
    run_id: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Its id; without it, all are listed.")] = None,
    payloads: Payloads = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """One run: state, owner, attempts, times. Exit code 1 if there is no such run."""
    if run_id is None:
        where = {"state": None, "key": None, "owner": None, "stuck": False}
        run(_list(name, where, None, 100, url, as_json))
    else:
        run(_show(name, run_id, payloads, url, as_json))


async def _show(name: str, run_id: str, payloads: bool, url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = await hf.runs(name).get(ident(run_id))
    _print(found, payloads, as_json)


def _print(found: Run, payloads: bool, as_json: bool) -> None:
    if as_json:
        print_json(_row(found, payloads))
        return
    facts({
        "run": found.id, "state": found.state + (", waits for its key" if found.waits else ""), "key": found.key,
        "kind": found.kind, "owner": found.owner, "lease ends in": span(found.remaining) if found.owner else "",
        "attempt": found.attempt or "", "fence": found.fence or "", "created": moment(found.created),
        "started": moment(found.started), "progress": moment(found.progress), "ended": moment(found.ended),
        "reason": found.reason, "stop asked": found.stop_reason,
        "events": f"{found.events}, {found.dropped} dropped, last {found.last_event}",
        **({"input": brief(found.input), "result": brief(found.result)} if payloads else {}),
    })  # fmt: skip


@app.command()
def events(
    name: Name,
    run_id: RunId,
    after: Annotated[str | None, typer.Option(help="Go on after the event with this id.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until the run has ended.")] = False,
    payloads: Payloads = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The events of a run, oldest first, one on each line."""
    run(_events(name, run_id, after, follow, payloads, url, as_json))


async def _events(
    name: str, run_id: str, after: str | None, follow: bool, payloads: bool, url: str | None, as_json: bool
) -> None:
    async with client(url) as hf:
        runs = hf.runs(name)
        found = await runs.get(ident(run_id))
        if not follow and not found.over and found.last_event == (after or "0-0"):
            return
        reading = runs.events(ident(run_id), after, keep_alive=None if follow else LOOK)
        try:
            async for event in reading:
                if event.kind == "alive":
                    break
                _event(event, payloads, as_json)
                if not follow and not found.over and event.id == found.last_event:
                    break
        finally:
            await reading.aclose()


def _event(event: Event, payloads: bool, as_json: bool) -> None:
    inside = event.data
    if not payloads:  # of the others the data are ours, but for what the handler returned
        ours = isinstance(inside, dict) and event.kind != "data"
        inside = {name: one for name, one in inside.items() if name != "result"} if ours else None
    if as_json:
        row = {"id": event.id, "at": event.at, "kind": event.kind}
        print_json({**row, "data": inside} if payloads or inside is not None else row)
        return
    text = "" if inside is None else brief(inside)
    print(f"{event.id}  {moment(event.at)}  {event.kind}  {text}".rstrip(), flush=True)


# -- changing -------------------------------------------------------------------------------------------------------


@app.command()
def stop(
    name: Name, run_id: RunId, reason: Reason, yes: Yes = False, url: Url = None, as_json: Json = False
) -> None:  # fmt: skip
    """Stop a run, wherever it is. Exit code 1 if there is no such run."""
    run(_stop(name, run_id, reason, url, as_json), Ask(f"stop run {run_id!r} of {name!r}", reason, yes))


async def _stop(name: str, run_id: str, reason: str, url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        work = hf.runs(name).stop(ident(run_id), reason)
        found = await audited(hf, "stop", f"runs:{name} {run_id}", reason, work)
    if as_json:
        print_json(_row(found, False))
    else:
        print(f"it is {found.state}" + (": its handler is cancelled" if found.state == "stopping" else ""))


@app.command()
def stop_all(
    name: Name,
    key: Annotated[str, typer.Argument(help="The key whose runs are stopped.")],
    reason: Reason,
    yes: Yes = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Stop every run of a key that has not ended. Exit code 1 if there is none."""
    run(_stop_all(name, key, reason, url, as_json), Ask(f"stop all runs of {key!r} in {name!r}", reason, yes))


async def _stop_all(name: str, key: str, reason: str, url: str | None, as_json: bool) -> int:
    async with client(url) as hf:
        work = hf.runs(name).stop_all(ident(key), reason)
        stopped = await audited(hf, "stop-all", f"runs:{name} key {key}", reason, work)
    if as_json:
        print_json({"name": name, "key": ident(key), "stopped": stopped})
    else:
        print(f"{stopped} run(s) stopped" if stopped else "no run of this key is active")
    return Exit.DONE if stopped else Exit.FOUND
