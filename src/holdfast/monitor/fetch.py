"""One page that is looked at again and again: what is asked for, and what is known of it in this process."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from holdfast.engine.calling import in_thread, is_blocking
from holdfast.engine.digest import id_digest
from holdfast.engine.limits import check_count, check_seconds
from holdfast.errors import ConfigurationError, InvalidPayload
from holdfast.monitor.exchange import Exchange
from holdfast.monitor.extract import Extract, ExtractFrom, make_extract
from holdfast.monitor.outgoing import Answer, Outgoing, Place, parse
from holdfast.monitor.page import PageFailed, PageUnreadable
from holdfast.monitor.reader import WALL_SECONDS, Reader
from holdfast.monitor.record import DeliveryFailed, Key

LONGEST_RETRY_AFTER = 86_400.0
FULL_AFTER = 3600.0
"""After so long a page is asked for in full, whatever is known of it: nothing rests on one answer for ever."""
_VALIDATORS = {"if-none-match", "if-modified-since"}


class FetchFailed(PageFailed):
    """The page was not answered, or with a status other than 200. `after`: not before so many seconds."""

    def __init__(self, message: str, *, status: int = 0, after: float | None = None, **where: object) -> None:
        self.status = status
        self.after = after
        super().__init__(message, **where)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A page to look at. Made by `make_fetch`. It prints without query and headers: they may hold secrets."""

    url: str = field(repr=False)
    every: float
    extract: Extract | ExtractFrom
    headers: Mapping[str, str] = field(repr=False)
    timeout: float
    alert_after: int
    key: Key = field(repr=False)
    source: str
    host: str
    shown: str


def make_fetch(
    url: str, *, every: float = 60.0, css: str | None = None, json: str | None = None, regex: str | None = None,
    text: bool = False, empty_ok: bool = False, extract: ExtractFrom | None = None,
    headers: Mapping[str, str] | None = None, timeout: float = 20.0, alert_after: int = 3, key: Key | None = None,
    source: str = "http",
) -> Fetch:  # fmt: skip
    """A page to look at `every` so many seconds (1 or more). Raises ConfigurationError; nothing is sent.

    `css`, `json`, `regex`, `text`, `empty_ok`: what counts of it, as in `make_extract`. Or `extract`: a function of
    body and content type that answers a JSON value; it may be a coroutine function, and is not ended if it hangs.
    `timeout`: seconds for one answer. `alert_after`: that many failures in a row are told. `key` and `source`: what it
    is called in the monitor; the key is the URL otherwise."""
    place = parse(url)
    if extract is None:
        extract = make_extract(css=css, json=json, regex=regex, text=text, empty_ok=empty_ok)
    elif css is not None or json is not None or regex is not None or text or empty_ok:
        raise ConfigurationError("pass extract, or css, json, regex and text, not both")
    elif not callable(extract):
        raise ConfigurationError("pass extract as a function of body and content type")
    id_digest(url if key is None else key)  # raises where it cannot be a key
    return Fetch(
        url=url, every=check_seconds("every", every, 1.0, 30 * 86_400.0), extract=extract,
        headers=_checked_headers(place, headers or {}), timeout=check_seconds("timeout", timeout, 0.01, 3600.0),
        alert_after=check_count("alert_after", alert_after, 1, 1_000_000), key=url if key is None else key,
        source=source, host=place.host, shown=f"{place}{urlsplit(url).path or '/'}",
    )  # fmt: skip


def _checked_headers(place: Place, headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError("pass headers as text")
        if name.lower() in _VALIDATORS:
            raise ConfigurationError(f"remove the header {name.lower()}: it is made here")
    Exchange(place, "GET", headers, None, 1)  # raises where a header cannot be sent
    return dict(headers)


class Observed(Protocol):
    """What a monitor answers."""

    @property
    def outcome(self) -> str: ...


class Observing(Protocol):
    """The monitor, as far as it is needed here."""

    @property
    def name(self) -> str: ...

    async def observe(self, source: str, key: Any, state: Any) -> Observed: ...


class Watch:
    """What this process knows of a page: what it was, how often it failed, and when it is due."""

    __slots__ = ("_full_until", "_state", "_validators", "alerted", "due", "failures", "fetch", "seen_by_others")

    def __init__(self, fetch: Fetch, due: float) -> None:
        self.fetch = fetch
        self.due = due
        self.failures = 0
        self.alerted = False
        self.seen_by_others = False
        """Somebody else in the fleet may have observed it since we did."""
        self._validators: dict[str, str] = {}
        self._state: Any = None
        self._full_until = 0.0

    async def look(
        self, monitor: Observing, outgoing: Outgoing, reader: Reader, clock: Callable[[], float], full_after: float
    ) -> str:
        """Ask for it and tell the monitor. Answers what the monitor found.

        Raises PageFailed, and then nothing was observed; and what `observe` raises where the server is away. Cancelled,
        it may or may not have been observed."""
        fetch = self.fetch
        known = self._validators if clock() < self._full_until else {}
        answer = await self._ask(outgoing, known)
        if answer.status == 304 and known:
            if not self.seen_by_others:
                return "unchanged"
            # It is as it was when we saw it. What the others saw since then may be something else.
            state, validators = self._state, known
        else:
            _check_status(answer)
            state = await self._extracted(answer, reader)
            validators = _validators(answer.headers)
            self._full_until = clock() + full_after
        try:
            observed = await monitor.observe(fetch.source, fetch.key, state)
        except InvalidPayload as error:
            raise PageUnreadable(f"choose a part of the page: {error}") from None
        # Only now: had the monitor not learnt of it, the next answer would be "not modified", and the change lost.
        self._validators, self._state, self.seen_by_others = validators, state, False
        return observed.outcome

    async def _ask(self, outgoing: Outgoing, known: Mapping[str, str]) -> Answer:
        try:
            return await outgoing.request(
                "GET", self.fetch.url, headers={**self.fetch.headers, **known}, timeout=self.fetch.timeout
            )
        except (DeliveryFailed, ConfigurationError) as error:
            raise FetchFailed(str(error)) from None

    async def _extracted(self, answer: Answer, reader: Reader) -> Any:
        extract, content_type = self.fetch.extract, answer.headers.get("content-type", "")
        if isinstance(extract, Extract):
            return await reader.read(extract, answer.body, content_type)
        try:
            async with asyncio.timeout(WALL_SECONDS):
                if is_blocking(extract):
                    return await in_thread(lambda: extract(answer.body, content_type))
                found = extract(answer.body, content_type)
                return await found if inspect.isawaitable(found) else found
        except PageFailed:
            raise
        except Exception as error:  # whatever the application's function raises; its text may quote the page
            raise PageUnreadable(f"check the extract function: it raised {type(error).__name__}") from error


def _check_status(answer: Answer) -> None:
    status = answer.status
    if status in (200, 203):
        return
    if status in (301, 302, 303, 307, 308):
        to = _shown(answer.headers.get("location", ""))
        raise FetchFailed(f"use the URL that it redirects to, {to}: redirects are not followed", status=status)
    after = _retry_after(answer.headers) if status in (429, 503) else None
    raise FetchFailed(f"check the page: it answers with status {status}", status=status, after=after)


def _shown(url: str) -> str:
    """Without query and fragment, and without what could move a terminal's cursor."""
    short = re.split(r"[?#]", url)[0]
    return "".join(c for c in short if c.isprintable())[:200] or "another one"


def _validators(headers: Mapping[str, str]) -> dict[str, str]:
    """What to send next time, so that an unchanged page is not sent again."""
    found = {}
    for name, sent in (("etag", "if-none-match"), ("last-modified", "if-modified-since")):
        value = headers.get(name, "").strip()
        if value and len(value) <= 1000 and value.isascii() and value.isprintable():
            found[sent] = value
    return found


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, at most a day. A date is held against the server's own clock, not ours."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return min(float(text), LONGEST_RETRY_AFTER)
    with suppress(TypeError, ValueError):
        wait = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        return min(max(wait, 0.0), LONGEST_RETRY_AFTER)
    return None
