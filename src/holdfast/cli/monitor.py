"""`holdfast monitor`: what changed, who is told, and how telling goes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Change, ConfigurationError, Holdfast, Monitor, Subscriber
from holdfast.cli import dead as letters
from holdfast.cli.exits import Exit
from holdfast.cli.names import names_of
from holdfast.cli.nouns import Counted, noun
from holdfast.cli.options import Count, Json, Payloads, Store, Url
from holdfast.cli.output import brief, data, facts, moment, print_json, say, show, span
from holdfast.cli.running import client, run

app = noun("Monitors: changes, subscribers, deliveries. `monitor NAME` shows how one is doing.", Counted)
Name = Annotated[str, typer.Argument(help="The monitor's name.")]
SECRET = ("target", "secret")
"""What a subscriber has and nobody is shown: the URL of many a receiver is itself a secret."""


@contextlib.asynccontextmanager
async def opened(name: str, store: str | None, url: str | None) -> AsyncIterator[tuple[Holdfast, Monitor]]:
    """The monitor, with its store if one is named."""
    with _store(store) as keeps:
        async with client(url) as hf:
            yield hf, hf.monitor(name, store=keeps)


def _store(store: str | None) -> contextlib.AbstractContextManager[Any]:
    """An existing one: looking at a monitor makes no database."""
    if store is None:
        return contextlib.nullcontext()
    try:
        import sqlalchemy as sa

        from holdfast.memory import MonitorStore
    except ImportError:
        raise ConfigurationError(
            "pip install '.[monitor]' in Holdfast's clone to look into a store: SQLAlchemy is missing"
        ) from None
    try:
        known = sa.make_url(store)
    except sa.exc.ArgumentError:
        raise ConfigurationError(
            "pass --store as a URL, such as sqlite:///monitor.db or postgresql://host/db"
        ) from None
    file = known.database if known.get_backend_name() == "sqlite" else None
    if file and file != ":memory:" and not Path(file).exists():
        raise ConfigurationError(f"check --store: there is no file {file}")
    return MonitorStore(store)


@app.command("list")
def list_(url: Url = None, as_json: Json = False) -> None:
    """The monitors that were used in the last 30 days."""
    run(_list(url, as_json))


async def _list(url: str | None, as_json: bool) -> None:
    async with client(url) as hf:
        found = [(name, await hf.monitor(name).status()) for name in await names_of(hf, "monitor")]
    if as_json:
        print_json([{"name": name, **data(status)} for name, status in found])
        return
    rows = [(name, s.changes, sum(s.waiting.values()), len(s.failing), s.dead_letters) for name, s in found]
    heads = ("monitor", "changes in the log>", "waiting>", "failing>", "dead letters>")
    show(heads, rows, none="no process has reported a monitor")


@app.command()
def status(name: Name, store: Store = None, url: Url = None, as_json: Json = False) -> None:
    """How much waits, for whom, and who fails. Without --store only functions count as subscribers."""
    run(_status(name, store, url, as_json))


async def _status(name: str, store: str | None, url: str | None, as_json: bool) -> None:
    async with opened(name, store, url) as (_, monitor):
        found = await monitor.status()
    if as_json:
        print_json({"name": name, **data(found)})
        return
    facts({"changes in the log": found.changes, "dead letters": found.dead_letters})
    rows = [(one, waiting, found.failing.get(one, 0)) for one, waiting in found.waiting.items()]
    show(("subscriber", "waiting>", "failures>"), rows, none="nobody subscribes" + ("" if store else " (no --store)"))


@app.command()
def changes(
    name: Name,
    source: Annotated[str | None, typer.Option(help="With --key and --store: the history of one thing.")] = None,
    key: Annotated[str | None, typer.Option(help="Its key: text, or a JSON list for a key of several parts.")] = None,
    payloads: Payloads = False,
    store: Store = None,
    count: Count = 20,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """The last changes, newest first: those in the log; or all that one thing was, from the store."""
    if (source is None) != (key is None):
        raise typer.BadParameter("pass both --source and --key, or none of them")
    thing = None if source is None or key is None else (source, _key(key))
    run(_changes(name, thing, payloads, store, count, url, as_json))


def _key(text: str) -> Any:
    if text.startswith("["):
        with contextlib.suppress(ValueError):
            parts = json.loads(text)
            if parts and all(isinstance(part, (str, int)) for part in parts):
                return tuple(parts)
    return text


async def _changes(
    name: str, thing: tuple[str, Any] | None, payloads: bool, store: str | None, count: int, url: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    found: Sequence[Any]
    async with opened(name, store, url) as (_, monitor):
        found = await monitor.changes(count) if thing is None else await monitor.history(*thing, limit=count)
    hidden = () if payloads else ("before", "after", "state")
    if as_json:
        print_json([{k: v for k, v in _change(one).items() if k not in hidden} for one in found])
    else:
        heads = ("change", "observed", "source", "key", "kind", "fields", *(("now",) if payloads else ()))
        show(heads, [_row(one, payloads) for one in found], none="nothing has changed")
    return Exit.DONE if found else Exit.FOUND


def _change(one: Any) -> dict[str, Any]:
    row: dict[str, Any] = data(one)
    return {**row, "fields": list(one.fields)} if isinstance(one, Change) else row


def _row(one: Any, payloads: bool) -> tuple[object, ...]:
    now = one.after if isinstance(one, Change) else one.state
    fields = ", ".join(one.fields) if isinstance(one, Change) else ""
    key = one.key if isinstance(one.key, str) else brief(one.key)
    return (
        one.id, moment(one.observed_at), one.source, key, one.kind, fields, *((brief(now),) if payloads else ())
    )  # fmt: skip


@app.command()
def subscribers(name: Name, store: Store = None, url: Url = None, as_json: Json = False) -> None:
    """Who is told, of what, and how often. Targets and secrets are not shown."""
    run(_subscribers(name, store, url, as_json))


async def _subscribers(name: str, store: str | None, url: str | None, as_json: bool) -> None:
    async with opened(name, store, url) as (_, monitor):
        found = await monitor.subscribers()
    if store is None:
        say("without --store only functions are shown")
    if as_json:
        print_json([{k: v for k, v in data(one).items() if k not in SECRET} for one in found])
        return
    rows = [(one.name, one.sink, "yes" if one.enabled else "no", _wants(one)) for one in found]
    show(("subscriber", "sink", "enabled", "wants"), rows, none="nobody subscribes")


def _wants(one: Subscriber) -> str:
    wants = {
        "sources": one.sources, "keys": one.keys, "fields": one.fields, "min_change": one.min_change,
        "interval": one.interval, "quiet": one.quiet,
    }  # fmt: skip
    return ", ".join(f"{name} {brief(value)}" for name, value in wants.items() if value) or "everything"


@app.command()
def deliveries(
    name: Name,
    subscriber: Annotated[str | None, typer.Option(help="Only those to this one.")] = None,
    store: Store = None,
    count: Count = 50,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Attempts to tell, newest first. Needs --store."""
    run(_deliveries(name, subscriber, store, count, url, as_json))


async def _deliveries(
    name: str, subscriber: str | None, store: str | None, count: int, url: str | None, as_json: bool
) -> int:
    if store is None:
        raise ConfigurationError("add --store with the monitor's database: attempts are written down there")
    async with opened(name, store, url) as (_, monitor):
        found = await monitor.pushes(subscriber, count)
    if as_json:
        print_json(found)
    else:
        rows = [
            (moment(one.at), one.subscriber, one.outcome, one.attempt, one.changes, span(one.latency), one.detail)
            for one in found
        ]
        heads = ("at", "subscriber", "outcome", "attempt>", "changes>", "took>", "detail")
        show(heads, rows, none="nobody was told anything")
    return Exit.DONE if found else Exit.FOUND


@app.command()
def dead(name: Name, count: Count = 100, url: Url = None, as_json: Json = False) -> None:
    """What subscribers did not accept however often it was tried: as `holdfast dead list monitor:NAME`."""
    run(letters.listed(f"monitor:{name}", count, url, as_json))
