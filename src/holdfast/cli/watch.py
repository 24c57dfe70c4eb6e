"""`holdfast watch`: looks at a page again and again, prints what changed, and tells who wants to know."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import Change, ConfigurationError, Delivery, Holdfast, HoldfastError, Monitor, Subscriber
from holdfast.cli.options import Json, Url
from holdfast.events import Delivered, Event, Fetched, FetchFailing, FetchRecovered, NotDelivered

CHANGED, TROUBLE = 1, 3
"""Exit codes. 0: nothing changed; 2: a mistake on the command line."""
TELL_SECONDS = 30.0
"""After the last look, what is still to be told has so long."""
CONTEXT, LONGEST = 20, 100
PRINTER = "print"


def watch(
    page: Annotated[str, typer.Argument(metavar="URL", help="The page: https, unless its host is allowed.")],
    every: Annotated[float, typer.Option(min=1, help="Seconds between two looks.")] = 60.0,
    css: Annotated[str | None, typer.Option(help="What counts: elements, or `a::attr(href)` of them.")] = None,
    json_path: Annotated[str | None, typer.Option(help="What counts: a JSONPath, such as `$.items[*].price`.")] = None,
    regex: Annotated[str | None, typer.Option(help="What counts of that, or of the text: groups of this.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="`Name: value` to send, or `@file` with one on each line. Repeatable.")
    ] = None,
    notify: Annotated[list[str] | None, typer.Option(help="POST changes to this webhook. Repeatable.")] = None,
    slack: Annotated[list[str] | None, typer.Option(help="Tell this Slack webhook. Repeatable.")] = None,
    dingtalk: Annotated[list[str] | None, typer.Option(help="Tell this DingTalk robot. Repeatable.")] = None,
    secret: Annotated[
        str, typer.Option(help="Sign webhooks with it. Better in the environment.", envvar="HOLDFAST_NOTIFY_SECRET")
    ] = "",
    allow: Annotated[
        list[str] | None, typer.Option(help="Host or network that may be private, and without TLS. Repeatable.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds for one answer.")] = 20.0,
    alert_after: Annotated[int, typer.Option(min=1, help="Say so after that many failures in a row.")] = 3,
    data: Annotated[Path | None, typer.Option(help="Keep what is known here, from one run to the next.")] = None,
    url: Url = None,
    once: Annotated[bool, typer.Option("--once", help="Look once: exit code 0 unchanged or new, 1 changed.")] = False,
    count: Annotated[int, typer.Option(min=0, help="Stop after so many looks; 0: go on.")] = 0,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Look at a page again and again, and print what changed, one line for each.

    Without --data and --url nothing is remembered after the end. Exit codes, after --once and --count: 0 nothing
    changed, 1 something did, 3 the page could not be read, somebody not be told or the server not be reached; 2 is a
    mistake on the command line. robots.txt is not read: watch only what you may."""
    told = [
        (kind, one)
        for kind, many in (("webhook", notify), ("slack", slack), ("dingtalk", dingtalk))
        for one in many or ()
    ]
    options: dict[str, Any] = {
        "every": 1.0 if once else every, "css": css, "json": json_path, "regex": regex, "timeout": timeout,
        "alert_after": alert_after,
    }  # fmt: skip
    try:
        server = _server(data, url, once)
        options["headers"] = _headers(header or [])
        watching = Watching(page, options, told, secret, tuple(allow or ()), 1 if once else count, as_json)
        code = asyncio.run(watching.run(server))
    except HoldfastError as error:
        print(f"holdfast: {_advice(str(error))}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 3) from None
    if code:
        raise typer.Exit(code)


def _server(data: Path | None, url: str | None, once: bool) -> str:
    if data is not None and url is not None:
        raise ConfigurationError("choose one of --data and --url (or HOLDFAST_URL): it is where things are remembered")
    if data is not None:
        return f"embedded://{data.expanduser().resolve()}"
    if url is None and once:
        raise ConfigurationError("add --data DIR to --once: without it nothing is known from the last time")
    return url or "embedded:"


def _headers(given: Sequence[str]) -> dict[str, str]:
    lines: list[str] = []
    for one in given:
        if not one.startswith("@"):
            lines.append(one)
            continue
        try:
            lines += [line for line in Path(one[1:]).expanduser().read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"check the file of --header: {type(error).__name__}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if not colon:
            raise ConfigurationError(f"write --header as 'Name: value': number {number} has no colon")
        found[name.strip()] = value.strip()
    return found


def _advice(text: str) -> str:
    """What the library calls `allow` is an option here."""
    host = _HOST.search(text)
    return f"{text} (add --allow {host[1] or host[2]})" if host else text


_HOST = re.compile(r"(?:put (\S+) into allow|https for (\S+?)(?::\d+)?, or put the host into allow)")


class Told:
    """Who is told, as the command line says: a store that keeps nothing else."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribers(self, monitor: str) -> Sequence[Subscriber]:
        return self._subscribers

    def put_subscriber(self, monitor: str, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def remove_subscriber(self, monitor: str, name: str) -> bool:
        return False

    def keep(self, monitor: str, changes: Sequence[Change]) -> None: ...

    def record(self, pushes: Sequence[Any]) -> None: ...

    def history(self, monitor: str, source: str, key: Any, **bounds: Any) -> Sequence[Any]:
        return ()

    def pushes(self, monitor: str, subscriber: str | None, limit: int) -> Sequence[Any]:
        return ()

    def prune(self, monitor: str, seconds: float) -> int:
        return 0


class Watching:
    """One page that is watched until somebody stops it or it was looked at often enough."""

    def __init__(
        self, page: str, options: dict[str, Any], told: Sequence[tuple[str, str]], secret: str, allow: Sequence[str],
        count: int, as_json: bool,
    ) -> None:  # fmt: skip
        self._page = page
        self._options = options
        self._told = told
        self._secret = secret
        self._allow = allow
        self._count = count
        self._as_json = as_json
        self._looks = self._failures = self._changes = 0
        self._delivered: dict[str, int] = {}
        self._dead = 0
        self._enough = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def _name(self) -> str:
        """Of the monitor. Who watches something else, or tells somebody else, has nothing to do with this one."""
        what = [self._page, self._told, *(self._options[name] for name in ("css", "json", "regex"))]
        return "watch." + sha256(json.dumps(what).encode()).hexdigest()[:24]

    async def run(self, server: str) -> int:
        """Answers the exit code."""
        loop = asyncio.get_running_loop()
        for interrupt in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(interrupt, self._enough.set)
        hf = Holdfast(server, observers=[self._heard])
        monitor = hf.monitor(self._name, store=Told() if self._told else None, allow=self._allow)
        monitor.subscriber(PRINTER, first=not self._count, max_changes=1)(self._tell)
        monitor.fetch(self._page, **self._options)
        async with hf:
            for number, (kind, target) in enumerate(self._told):
                await monitor.subscribe(Subscriber(f"{kind}-{number}", kind, target, secret=self._secret))
            await self._work(hf, monitor)
        return self._end()

    async def _work(self, hf: Holdfast, monitor: Monitor) -> None:
        working = asyncio.create_task(hf.work())
        waiting = asyncio.create_task(self._wait(monitor))
        try:
            await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
            hf.stop_work()
            await working
        finally:
            for task in (working, waiting):
                task.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)

    async def _wait(self, monitor: Monitor) -> None:
        await self._enough.wait()
        if not self._count or self._looks < self._count:
            return  # interrupted
        try:
            async with asyncio.timeout(TELL_SECONDS):
                while not await self._all_told(monitor):
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await self._news.wait()
        except TimeoutError:
            self._dead += 1
            self._say("somebody could not be told in time; with --data or --url it is tried again next time")

    async def _all_told(self, monitor: Monitor) -> bool:
        """What changed in this run, and what was left over from an earlier one."""
        names = [PRINTER, *(f"{kind}-{number}" for number, (kind, _) in enumerate(self._told))]
        if any(self._delivered.get(name, 0) < self._changes for name in names):
            return False
        return not any((await monitor.status()).waiting.values())

    def _end(self) -> int:
        if not self._as_json and not self._count:
            self._say(f"stopped after {self._looks} looks: {self._changes} changes, {self._failures} failures")
        if not self._count:
            return 0
        if self._dead or (self._failures and self._failures == self._looks):
            return TROUBLE
        return CHANGED if self._changes else 0

    # -- what happens -------------------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        self._news.set()
        match event:
            case Fetched():
                self._looked(event)
            case FetchFailing(failures=failures, error=error):
                self._say(f"failed {failures} times: {_advice(error)}")
            case FetchRecovered(failures=failures):
                self._say(f"can be read again after {failures} failures")
            case Delivered(subscriber=name, changes=changes):
                self._delivered[name] = self._delivered.get(name, 0) + changes
            case NotDelivered(subscriber=name, changes=changes, error=error, dead=dead):
                self._say(f"{name} was not told{', and is not told again' if dead else ''}: {error}")
                self._dead += dead
                self._delivered[name] = self._delivered.get(name, 0) + (changes if dead else 0)

    def _looked(self, event: Fetched) -> None:
        self._looks += 1
        self._changes += event.outcome == "changed"
        if event.outcome == "failed":
            self._failures += 1
            # A mistake in the selector shows at the first look; later ones may be the page's.
            if self._failures == self._looks == 1 or self._count:
                self._say(_advice(event.error))
        if self._count and self._looks >= self._count:
            self._enough.set()

    async def _tell(self, delivery: Delivery) -> None:
        try:
            for change in delivery.changes:
                if change.kind == "first":
                    self._say(f"now {_shown(change.after)}")
                    continue
                for line in self._lines(change):
                    print(line, flush=True)
        except BrokenPipeError:  # nobody reads any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._enough.set()

    def _lines(self, change: Change) -> list[str]:
        when = datetime.fromtimestamp(change.at, UTC).astimezone()
        if self._as_json:
            found = {
                "time": when.isoformat(timespec="milliseconds"), "url": self._page, "fields": list(change.fields),
                "before": change.before, "after": change.after,
            }  # fmt: skip
            return [json.dumps(found)]
        at = when.strftime("%Y-%m-%d %H:%M:%S")
        if not change.fields:
            return [f"{at}  {_difference(change.before, change.after)}"]
        return [
            f"{at}  {_clean(name)}  {_difference(change.before.get(name), change.after.get(name))}"
            for name in change.fields
        ]

    def _say(self, text: str) -> None:
        """To whoever looks on; what changed goes to standard output."""
        print(f"holdfast: {_clean(text)}", file=sys.stderr, flush=True)


# -- how it is shown --------------------------------------------------------------------------------------------------


def _difference(before: Any, after: Any) -> str:
    """Of long texts the part that differs, with a little around it."""
    old, new = _text(before), _text(after)
    if max(len(old), len(new)) > LONGEST:
        start = _alike(old, new)
        end = min(_alike(old[::-1], new[::-1]), min(len(old), len(new)) - start)
        old, new = (_cut(text, start - CONTEXT, len(text) - end + CONTEXT) for text in (old, new))
    return f"{_shown(old)} → {_shown(new)}"


def _alike(one: str, other: str) -> int:
    """How many characters at the start are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str, start: int, end: int) -> str:
    start = max(0, start)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    text = _clean(_text(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _clean(text: str) -> str:
    """What a stranger wrote must not move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\x{ord(c):02x}" for c in text)
