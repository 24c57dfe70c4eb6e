"""Where changes are told: webhooks, Slack, DingTalk, what Apprise knows, and functions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, quote_plus

from holdfast.engine.calling import in_thread, is_blocking
from holdfast.errors import ConfigurationError
from holdfast.monitor.addresses import literal
from holdfast.monitor.outgoing import Answer, Outgoing, Place, parse
from holdfast.monitor.record import Delivery, DeliveryFailed, Handler, Sink, Subscriber
from holdfast.monitor.shapes import as_json, for_apprise, for_dingtalk, for_slack
from holdfast.monitor.signing import InvalidSignature, key_of, sign, verify

__all__ = ["Apprise", "Call", "DingTalk", "InvalidSignature", "Slack", "Webhook", "make_sink", "verify"]

LONGEST_PAUSE = 3600.0
"""A receiver that asks for more than this is asked again after it."""
_ENOUGH = 65_536
_MOST_TEXT = 20_000
_WORD = re.compile(rb"[a-z_]{1,40}")
_TOO_FAST = 130101


class Webhook:
    """Signed JSON by POST.

    The same delivery has the same body and the same `Idempotency-Key` each time, and a higher `Holdfast-Attempt`. With
    a secret it is signed after the Standard Webhooks scheme; `verify` checks that. Delivered is what is answered with
    2xx. All else is tried again, as endpoints answer anything while they are redeployed, but for 410 (gone) and 413
    (too large). 429 and 503 may say when, with Retry-After. A redirect is not followed, and so is a failure."""

    def __init__(self, url: str, secret: str = "", *, outgoing: Outgoing, timeout: float | None = None) -> None:
        self._place = outgoing.check(url)
        self._url = url
        self._key = key_of(secret) if secret else b""
        self._outgoing = outgoing
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"Webhook({str(self._place)!r})"

    async def send(self, delivery: Delivery) -> str:
        """Cancelled, the receiver may have acted. A repeat tells it so, by its id."""
        body = as_json(delivery)
        name, stamp = quote(delivery.id, safe="!#$%&'()*+,-./:;<=>?@[]^_`{|}~"), int(delivery.at)
        headers = {
            "content-type": "application/json",
            "idempotency-key": name,
            "webhook-id": name,
            "webhook-timestamp": str(stamp),
            "holdfast-attempt": str(delivery.attempt),
        }
        if self._key:
            headers["webhook-signature"] = sign(self._key, name, stamp, body)
        answer = await self._outgoing.request(
            "POST", self._url, headers=headers, content=body, timeout=self._timeout, enough=_ENOUGH
        )
        return accepted(self._place, answer, delivery)


class Slack:
    """A message by Slack's incoming webhook. What was observed is shown as text: no mentions, no formatting."""

    def __init__(self, url: str, *, outgoing: Outgoing, timeout: float | None = None) -> None:
        self._place = outgoing.check(url)
        self._url = url
        self._outgoing = outgoing
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"Slack({str(self._place)!r})"

    async def send(self, delivery: Delivery) -> str:
        """Cancelled, the message may have appeared, and a repeat appears as another one: Slack knows no ids."""
        answer = await self._outgoing.request(
            "POST", self._url, headers={"content-type": "application/json"}, content=for_slack(delivery),
            timeout=self._timeout, enough=_ENOUGH,
        )  # fmt: skip
        # Slack says what was wrong in one word, such as invalid_payload.
        word = answer.body.decode() if _WORD.fullmatch(answer.body) else ""
        return accepted(self._place, answer, delivery, word)


class DingTalk:
    """A markdown message by DingTalk's custom robot. The secret is that of its security setting "sign".

    With the setting "keywords" instead, take a word of the monitor's name: it is in every title."""

    def __init__(self, url: str, secret: str = "", *, outgoing: Outgoing, timeout: float | None = None) -> None:
        self._place = outgoing.check(url)
        self._url = url
        self._secret = secret
        self._outgoing = outgoing
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"DingTalk({str(self._place)!r})"

    async def send(self, delivery: Delivery) -> str:
        """Cancelled, the message may have appeared, and a repeat appears as another one: DingTalk knows no ids."""
        answer = await self._outgoing.request(
            "POST", self._signed(delivery.at), headers={"content-type": "application/json"},
            content=for_dingtalk(delivery), timeout=self._timeout,
        )  # fmt: skip
        accepted(self._place, answer, delivery)
        code = None
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            code = json.loads(answer.body)["errcode"]
        if code == 0 and code is not False:
            return "errcode 0"
        shown = code if isinstance(code, int) else "none"
        raise DeliveryFailed(
            f"check the robot at {self._place}: it answered errcode {shown}, where 0 is delivered",
            after=60.0 if code == _TOO_FAST else None, operation="dingtalk",
        )  # fmt: skip

    def _signed(self, at: float) -> str:
        if not self._secret:
            return self._url
        stamp = int(at * 1000)
        digest = hmac.digest(self._secret.encode(), f"{stamp}\n{self._secret}".encode(), hashlib.sha256)
        url = self._url.partition("#")[0]
        join = "&" if "?" in url else "?"
        return f"{url}{join}timestamp={stamp}&sign={quote_plus(base64.b64encode(digest))}"


class Apprise:
    """One of the services that Apprise knows, by its URL. Needs the extra `apprise`.

    Apprise connects by itself. Where the URL names a host, its addresses are looked at before each message, but what
    it then connects to is not in our hands: let only those write such subscribers whom you trust."""

    def __init__(self, url: str, *, outgoing: Outgoing, timeout: float | None = None) -> None:
        try:
            import apprise
        except ImportError:
            raise ConfigurationError("pip install '.[apprise]' in Holdfast's clone to tell through Apprise") from None
        self._scheme = url.partition(":")[0] if re.match(r"[a-z0-9]{1,20}://", url) else ""
        # By `instantiate`, as `add` would take a list of URLs apart: a failure of one repeats all.
        service = apprise.Apprise.instantiate(url) if self._scheme else None
        if service is None:
            raise ConfigurationError("pass a URL that Apprise knows, such as mailto://… or ntfy://…")
        service.redirects = False
        self._service: Any = service
        self._text = apprise.NotifyFormat.TEXT
        self._app = apprise.Apprise()
        self._app.add(service)
        self._outgoing = outgoing
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"Apprise('{self._scheme}://')"

    async def send(self, delivery: Delivery) -> str:
        """Cancelled or out of time, it goes on in its thread, and the message may appear."""
        await self._look()
        service = self._service
        title, text = for_apprise(delivery, min(service.body_maxlen, _MOST_TEXT), titled=service.title_maxlen > 0)
        told = await within(
            self._timeout or self._outgoing.timeout,
            in_thread(lambda: self._app.notify(body=text, title=title, body_format=self._text)),
            f"check {self._scheme}://",
        )
        if not told:
            raise DeliveryFailed(f"check {self._scheme}://: Apprise could not tell it", operation="apprise")
        return "told"

    async def _look(self) -> None:
        """In many URLs what stands for the host is a token, which a resolver must not see."""
        service = self._service
        sure = all("{host}" in template for template in service.templates)
        for name in {service.host, getattr(service, "smtp_host", None)} - {None, ""}:
            if sure or name == "localhost" or literal(name.strip("[]")) is not None:
                await self._outgoing.check_host(name)


class Call:
    """A function of the program: a coroutine function, or a plain one, which runs in a thread of its own.

    It is called with the Delivery. What it returns is not used; what it raises is a failure."""

    def __init__(self, function: Handler, *, name: str = "", timeout: float = 10.0) -> None:
        if not callable(function):
            raise ConfigurationError("pass a function that takes a Delivery")
        self._function = function
        self._name = name or getattr(function, "__name__", type(function).__name__)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"Call({self._name!r})"

    async def send(self, delivery: Delivery) -> str:
        """Out of time or cancelled, a coroutine function is cancelled, and a plain one goes on in its thread."""
        await within(self._timeout, self._called(delivery), f"check the function {self._name}")
        return "called"

    async def _called(self, delivery: Delivery) -> None:
        function = self._function
        result = await in_thread(lambda: function(delivery)) if is_blocking(function) else function(delivery)
        if inspect.isawaitable(result):  # also of a plain function, such as a lambda, that made a coroutine
            await result


async def within(seconds: float, work: Any, what: str) -> Any:
    """Its result, or DeliveryFailed after so many seconds. A TimeoutError of its own is its own."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
    raise DeliveryFailed(f"{what}: it was not done within {seconds:.3g} s", elapsed=seconds)


def accepted(place: Place, answer: Answer, delivery: Delivery, word: str = "") -> str:
    """A short text if the answer is 2xx; else DeliveryFailed."""
    status = answer.status
    if 200 <= status < 300:
        return f"HTTP {status}"
    if 300 <= status < 400:
        where = "another path"
        with suppress(ConfigurationError):
            where = str(parse(answer.headers.get("location", "")))
        raise DeliveryFailed(
            f"change the URL: {place} answered HTTP {status} and points to {where}, which is not followed",
            operation="deliver",
        )
    raise DeliveryFailed(
        f"check {place}: it answered HTTP {status}{word and ', '}{word}",
        retry=status not in (410, 413), after=_pause(answer, delivery), operation="deliver",
    )  # fmt: skip


def _pause(answer: Answer, delivery: Delivery) -> float | None:
    """Seconds that it asks for. A date is held against the receiver's own clock, where it tells, else against ours."""
    if answer.status not in (408, 425, 429, 500, 502, 503, 504):
        return None
    text = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return min(float(text), LONGEST_PAUSE)
    with suppress(TypeError, ValueError, OverflowError):
        until, now = parsedate_to_datetime(text).timestamp(), delivery.at
        with suppress(TypeError, ValueError, OverflowError):
            now = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        return min(max(until - now, 0.0), LONGEST_PAUSE)
    return None


def make_call(subscriber: Subscriber, calls: Mapping[str, Handler]) -> Sink:
    """The function that is meant. Raises ConfigurationError if this process does not have it."""
    if subscriber.target not in calls:
        raise ConfigurationError(f"register a function with the name {subscriber.target!r} with the monitor here")
    return Call(calls[subscriber.target], name=subscriber.target, timeout=subscriber.timeout)


def make_sink(subscriber: Subscriber, *, outgoing: Outgoing, calls: Mapping[str, Handler]) -> Sink:
    """What tells this subscriber. Raises ConfigurationError for what can never work; connects to nothing."""
    target, timeout = subscriber.target, subscriber.timeout
    match subscriber.sink:
        case "webhook":
            return Webhook(target, subscriber.secret, outgoing=outgoing, timeout=timeout)
        case "slack":
            return Slack(target, outgoing=outgoing, timeout=timeout)
        case "dingtalk":
            return DingTalk(target, subscriber.secret, outgoing=outgoing, timeout=timeout)
        case "apprise":
            return Apprise(target, outgoing=outgoing, timeout=timeout)
        case "call":
            return make_call(subscriber, calls)
    raise ConfigurationError(
        f"set the sink of {subscriber.name!r} to webhook, slack, dingtalk, apprise or call, not {subscriber.sink!r}"
    )
