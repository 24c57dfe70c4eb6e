"""Sinks: what a receiver is sent, which of its answers is a delivery, and that nothing shows a secret."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from http_endpoint import (
    Endpoint,
    answers,
    breaks_off,
    drips,
    drops,
    floods,
    hangs,
    redirects,
)

from holdfast.errors import ConfigurationError
from holdfast.monitor import outgoing as outgoing_module
from holdfast.monitor.outgoing import Outgoing
from holdfast.monitor.record import Change, Delivery, DeliveryFailed, Subscriber
from holdfast.monitor.shapes import summary
from holdfast.monitor.sinks import Apprise, Call, DingTalk, InvalidSignature, Slack, Webhook, make_sink, verify
from support.conditions import until

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # Apprise imports it

AT = 1_700_000_000.75
SECRET = "T0KEN-hunter2"
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HOSTILE = (
    "**b** _i_ `c` [click](http://evil.example) <!channel> &amp; <http://e.example|x> @all\n# head\r\n> q\u2028\u202e"
)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.fixture
async def outgoing() -> AsyncIterator[Outgoing]:
    async with Outgoing(allow=["127.0.0.1"], timeout=5) as made:
        yield made


def change(key: Any = ("venue A", "19:00"), before: Any = None, after: Any = None, **other: Any) -> Change:
    before = {"price": 80, "status": "open"} if before is None else before
    after = {"price": 90, "status": "open"} if after is None else after
    made = Change("1-0", "venues", "site", key, "changed", before, after, 1_699_999_999.5, 1_700_000_000.25)
    return replace(made, **other)


def delivery(*changes: Change, **other: Any) -> Delivery:
    made = Delivery("dlv-1", "venues", "ops", changes or (change(),), 1, AT)
    return replace(made, **other)


MANY = tuple(change(f"key {number}", {"v": "x" * 70}, {"v": "y" * 70}) for number in range(1000))


# -- webhook ----------------------------------------------------------------------------------------------------------


async def test_a_webhook_is_json_with_an_id(endpoint: Endpoint, outgoing: Outgoing) -> None:
    sink = Webhook(endpoint.url("/hook?a=b"), outgoing=outgoing)

    detail = await sink.send(delivery())

    assert detail == "HTTP 200"
    (got,) = endpoint.requests
    assert (got.method, got.path) == ("POST", "/hook?a=b")
    assert got.headers["content-type"] == "application/json"
    assert got.headers["idempotency-key"] == got.headers["webhook-id"] == "dlv-1"
    assert got.headers["holdfast-attempt"] == "1"
    assert "webhook-signature" not in got.headers
    assert got.json == {
        "id": "dlv-1",
        "monitor": "venues",
        "subscriber": "ops",
        "changes": [
            {
                "id": "1-0",
                "source": "site",
                "key": ["venue A", "19:00"],
                "kind": "changed",
                "before": {"price": 80, "status": "open"},
                "after": {"price": 90, "status": "open"},
                "fields": ["price"],
                "observed_at": 1_699_999_999.5,
                "at": 1_700_000_000.25,
            }
        ],
    }


async def test_a_repeat_has_the_same_body(endpoint: Endpoint, outgoing: Outgoing) -> None:
    sink = Webhook(endpoint.url(), WHSEC, outgoing=outgoing)

    await sink.send(delivery())
    await sink.send(delivery(attempt=2, at=AT + 60))

    first, second = endpoint.requests
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert [got.headers["holdfast-attempt"] for got in endpoint.requests] == ["1", "2"]
    assert [got.headers["webhook-timestamp"] for got in endpoint.requests] == ["1700000000", "1700000060"]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


@pytest.mark.parametrize(
    ("secret", "key"), [(WHSEC, base64.b64decode(WHSEC[6:])), ("grün", "grün".encode()), ("a b", b"a b")]
)
async def test_the_signature_can_be_computed_by_others(
    endpoint: Endpoint, outgoing: Outgoing, secret: str, key: bytes
) -> None:
    await Webhook(endpoint.url(), secret, outgoing=outgoing).send(delivery())

    (got,) = endpoint.requests
    signed = b".".join([got.headers["webhook-id"].encode(), got.headers["webhook-timestamp"].encode(), got.body])
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{digest}"
    verify(secret, got.headers, got.body, now=AT)


PUBLISHED = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
"""The example of the scheme's own documentation."""
BODY = b'{"test": 2432232314}'


def test_the_published_example_is_verified() -> None:
    verify(WHSEC, PUBLISHED, BODY, now=1614265330)
    verify(WHSEC, {name.title(): value for name, value in PUBLISHED.items()}, BODY.decode(), now=1614265330 + 300)
    rotated = {**PUBLISHED, "webhook-signature": f"v1,AAAA {PUBLISHED['webhook-signature']} v2,xyz"}
    verify(WHSEC, rotated, BODY, now=1614265330 - 300)


@pytest.mark.parametrize(
    ("headers", "body", "now"),
    [
        ({}, BODY + b" ", 1614265330),
        ({}, BODY, 1614265330 + 301),
        ({}, BODY, 1614265330 - 301),
        ({"webhook-id": "msg_other"}, BODY, 1614265330),
        ({"webhook-id": ""}, BODY, 1614265330),
        ({"webhook-id": "\ud800"}, BODY, 1614265330),
        ({"webhook-timestamp": "1614265331"}, BODY, 1614265330),
        ({"webhook-timestamp": "soon"}, BODY, 1614265330),
        ({"webhook-timestamp": "٣"}, BODY, 3),
        ({"webhook-signature": ""}, BODY, 1614265330),
        ({"webhook-signature": "v1,"}, BODY, 1614265330),
        ({"webhook-signature": "v1,AAAA v1,BBBB"}, BODY, 1614265330),
        ({"webhook-signature": "é\ud800"}, BODY, 1614265330),
        ({"webhook-signature": PUBLISHED["webhook-signature"].replace("v1", "v2")}, BODY, 1614265330),
    ],
)
def test_what_was_not_signed_so_is_refused(headers: dict[str, str], body: bytes, now: float) -> None:
    with pytest.raises(InvalidSignature, match="drop this request"):
        verify(WHSEC, {**PUBLISHED, **headers}, body, now=now)


def test_another_secret_is_refused_and_none_is_an_error() -> None:
    with pytest.raises(InvalidSignature):
        verify("another", PUBLISHED, BODY, now=1614265330)
    with pytest.raises(ConfigurationError):
        verify("", PUBLISHED, BODY, now=1614265330)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_!!!", "whsec_a"])
async def test_a_secret_that_is_no_base64_is_refused(outgoing: Outgoing, secret: str) -> None:
    with pytest.raises(ConfigurationError, match="whsec_"):
        Webhook("https://host.example/", secret, outgoing=outgoing)


async def test_states_that_json_lacks(endpoint: Endpoint, outgoing: Outgoing) -> None:
    odd = {"raw": b"\x00\xff", "deep": [{"raw": b"a"}], "big": 10**30, "text": "ü\u2028", "none": None}
    worse = {"nan": float("nan"), b"k": 1, 7: b"b", "half": "\ud800"}

    await Webhook(endpoint.url(), outgoing=outgoing).send(delivery(change("k", odd, worse), id="ü 1"))

    (got,) = endpoint.requests
    told = got.json["changes"][0]
    assert told["before"] == {
        "raw": {"$bytes": "AP8="}, "deep": [{"raw": {"$bytes": "YQ=="}}], "big": 10**30, "text": "ü\u2028",
        "none": None,
    }  # fmt: skip
    assert told["after"] == {"nan": "nan", "aw==": 1, "7": {"$bytes": "Yg=="}, "half": "\ud800"}
    assert (got.json["id"], got.headers["webhook-id"]) == ("ü 1", "%C3%BC%201")


# -- which answer is a delivery ---------------------------------------------------------------------------------------


def webhook(url: str, out: Outgoing, timeout: float = 5) -> Webhook:
    return Webhook(url, "secret", outgoing=out, timeout=timeout)


def slack(url: str, out: Outgoing, timeout: float = 5) -> Slack:
    return Slack(url, outgoing=out, timeout=timeout)


def dingtalk(url: str, out: Outgoing, timeout: float = 5) -> DingTalk:
    return DingTalk(url, "secret", outgoing=out, timeout=timeout)


Make = Callable[..., Any]
OVER_HTTP = pytest.mark.parametrize("make", [webhook, slack, dingtalk])


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_2xx_is_delivered(endpoint: Endpoint, outgoing: Outgoing, status: int) -> None:
    endpoint.always(answers(status))

    assert await webhook(endpoint.url(), outgoing).send(delivery()) == f"HTTP {status}"


@OVER_HTTP
@pytest.mark.parametrize(
    ("status", "retry"),
    [(400, True), (401, True), (404, True), (408, True), (410, False), (413, False), (425, True), (429, True),
     (500, True), (503, True), (304, True)],
)  # fmt: skip
async def test_other_answers_are_failures(
    endpoint: Endpoint, outgoing: Outgoing, make: Make, status: int, retry: bool
) -> None:
    endpoint.always(answers(status))

    with pytest.raises(DeliveryFailed, match=f"HTTP {status}") as failed:
        await make(endpoint.url(), outgoing).send(delivery())

    assert (failed.value.retry, failed.value.after) == (retry, None)


@OVER_HTTP
async def test_a_redirect_is_a_failure_that_says_where_to(endpoint: Endpoint, outgoing: Outgoing, make: Make) -> None:
    endpoint.next(redirects(f"https://new.example/{SECRET}"), redirects(f"/{SECRET}", 307), redirects("http://[", 308))

    for where in (r"https://new\.example", "another path", "another path"):
        with pytest.raises(DeliveryFailed, match=f"change the URL.*points to {where}") as failed:
            await make(endpoint.url(), outgoing).send(delivery())
        assert failed.value.retry
        assert SECRET not in str(failed.value)
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("status", "headers", "after"),
    [
        (429, {"Retry_After": "7"}, 7.0),
        (503, {"Retry_After": "1.5"}, 1.5),
        (429, {"Retry_After": "999999"}, 3600.0),
        (503, {"Retry_After": "Tue, 14 Nov 2023 22:14:20 GMT"}, 59.25),
        (503, {"Retry_After": "Tue, 14 Nov 2023 22:14:20 GMT", "Date": "Tue, 14 Nov 2023 22:14:00 GMT"}, 20.0),
        (503, {"Retry_After": "Mon, 13 Nov 2023 22:14:20 GMT"}, 0.0),
        (429, {"Retry_After": "soon"}, None),
        (429, {"Retry_After": "-1"}, None),
        (404, {"Retry_After": "7"}, None),
    ],
)
async def test_a_receiver_says_when(
    endpoint: Endpoint, outgoing: Outgoing, status: int, headers: dict[str, str], after: float | None
) -> None:
    endpoint.always(answers(status, **headers))

    with pytest.raises(DeliveryFailed) as failed:
        await webhook(endpoint.url(), outgoing).send(delivery())

    assert failed.value.after == after


@pytest.mark.parametrize("make", [webhook, slack])
@pytest.mark.parametrize("behaviour", [breaks_off(200), floods(200), drips(200)], ids=["breaks", "floods", "drips"])
async def test_what_was_accepted_is_not_told_again_for_a_bad_body(
    endpoint: Endpoint, outgoing: Outgoing, make: Make, behaviour: Any
) -> None:
    endpoint.next(behaviour)

    assert await make(endpoint.url(), outgoing, 0.5).send(delivery()) == "HTTP 200"


@OVER_HTTP
@pytest.mark.parametrize("behaviour", [drops, hangs], ids=["drops", "hangs"])
async def test_no_answer_is_a_failure(endpoint: Endpoint, outgoing: Outgoing, make: Make, behaviour: Any) -> None:
    endpoint.next(behaviour)

    with pytest.raises(DeliveryFailed) as failed:
        await make(endpoint.url(), outgoing, 0.2).send(delivery())

    assert failed.value.retry
    assert len(endpoint.requests) == 1


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (change(), "venue A 19:00: price 80 → 90"),
        (change("a", {"p": 1, "q": "x"}, {"p": 2, "q": "", "r": None}), 'a: p 1 → 2, q x → "", r none → none'),
        (change(7, {"p": 1}, {}), "7: p 1 → none"),
        (change("a", "open", "closed"), "a: open → closed"),
        (change("a", False, True), "a: false → true"),
        (change("a", [1], [1, {"b": 2}]), 'a: [1] → [1,{"b":2}]'),
        (change("a", b"abc", b"ab"), "a: 3 bytes → 2 bytes"),
        (change("a", 0, {"p": 1, "s": "open"}, kind="first"), "a: new, p 1, s open"),
        (change("a", 1, 2, kind="settled"), "a: 1 → 2 (settled)"),
        (change("a", {"p": 1}, {"p": 1}, kind="settled"), "a: p 1 (settled)"),
        (change("a", "x\n\n\ty", "\x1b[31mz\u202e"), "a: x y → [31mz"),
        (change("a", "x" * 100, "y"), "a: " + "x" * 79 + "… → y"),
    ],
)
def test_a_change_in_words(told: Change, line: str) -> None:
    assert summary(delivery(told)) == ("venues: 1 change", [line])


def test_lines_are_single_and_short() -> None:
    title, lines = summary(
        delivery(change(HOSTILE * 50, HOSTILE, {HOSTILE: HOSTILE * 50}), change("b"), monitor="a\nb")
    )

    assert title == "a b: 2 changes"
    for line in lines:
        assert line.isprintable()
        assert len(line) <= 500


def test_several_sources_are_named() -> None:
    _, lines = summary(delivery(change("a", 1, 2), change("a", 1, 3, source="other")))

    assert lines == ["site · a: 1 → 2", "other · a: 1 → 3"]


# -- Slack ------------------------------------------------------------------------------------------------------------


async def test_slack_gets_blocks_of_text(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.always(answers(200, "ok"))

    assert await slack(endpoint.url("/services/T/B/x"), outgoing).send(delivery()) == "HTTP 200"

    (got,) = endpoint.bodies
    assert got["text"] == "venues: 1 change"
    assert [block["text"]["text"] for block in got["blocks"]] == ["venues: 1 change", "venue A 19:00: price 80 → 90"]
    assert all(block["type"] == "section" and block["text"]["type"] == "plain_text" for block in got["blocks"])


async def test_slack_has_no_markup_in_what_was_observed(endpoint: Endpoint, outgoing: Outgoing) -> None:
    await slack(endpoint.url(), outgoing).send(delivery(change(HOSTILE, HOSTILE, HOSTILE, source="<!here>")))

    (got,) = endpoint.bodies
    for text in [got["text"], *(block["text"]["text"] for block in got["blocks"])]:
        assert "<" not in text
        assert ">" not in text
        assert "\n" not in text
    assert "&lt;!channel&gt;" in got["blocks"][1]["text"]["text"]
    assert "&amp;amp;" in got["blocks"][1]["text"]["text"]


@pytest.mark.parametrize("changes", [MANY, tuple(change("&" * 80, "&" * 80, "<" * 80) for _ in range(300))])
async def test_slack_is_not_sent_more_than_it_takes(
    endpoint: Endpoint, outgoing: Outgoing, changes: tuple[Change, ...]
) -> None:
    await slack(endpoint.url(), outgoing).send(delivery(*changes))

    (got,) = endpoint.bodies
    texts = [block["text"]["text"] for block in got["blocks"]]
    assert len(texts) <= 50
    assert all(0 < len(text) <= 3000 for text in texts)
    shown = sum(text.count(" → ") for text in texts)
    assert shown > 5
    assert texts[-1].endswith(f"… and {len(changes) - shown} more changes")


async def test_slack_says_what_was_wrong(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.next(answers(400, "invalid_payload"), answers(404, f"no {SECRET}"), answers(429, Retry_After="3"))

    for told, after in ((r"HTTP 400, invalid_payload", None), (r"HTTP 404 \(", None), (r"HTTP 429", 3.0)):
        with pytest.raises(DeliveryFailed, match=told) as failed:
            await slack(endpoint.url(), outgoing).send(delivery())
        assert failed.value.after == after
        assert SECRET not in str(failed.value)


# -- DingTalk ---------------------------------------------------------------------------------------------------------


async def test_dingtalk_gets_markdown_and_a_signed_query(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.always(answers(200, {"errcode": 0, "errmsg": "ok"}))
    sink = DingTalk(endpoint.url("/robot/send?access_token=abc"), "SECabc", outgoing=outgoing)

    assert await sink.send(delivery()) == "errcode 0"

    (got,) = endpoint.requests
    query = parse_qs(urlsplit(got.path).query, strict_parsing=True)
    stamp = "1700000000750"
    digest = hmac.new(b"SECabc", f"{stamp}\nSECabc".encode(), hashlib.sha256).digest()
    assert query == {"access_token": ["abc"], "timestamp": [stamp], "sign": [base64.b64encode(digest).decode()]}
    assert got.json == {
        "msgtype": "markdown",
        "markdown": {"title": "venues: 1 change", "text": "#### venues: 1 change\n\n- venue A 19:00: price 80 → 90"},
    }


async def test_dingtalk_without_a_secret_is_not_signed(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.always(answers(200, {"errcode": 0}))

    await DingTalk(endpoint.url("/send?access_token=abc"), outgoing=outgoing).send(delivery())

    assert endpoint.requests[0].path == "/send?access_token=abc"


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ({"errcode": 310000, "errmsg": "keywords not in content"}, None),
        ({"errcode": 130101, "errmsg": "send too fast"}, 60.0),
        ({"errcode": False}, None),
        ({"errcode": "0"}, None),
        ({}, None),
        ([], None),
        (0, None),
        ("nonsense", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
async def test_dingtalk_answers_200_for_everything(
    endpoint: Endpoint, outgoing: Outgoing, body: Any, after: float | None
) -> None:
    endpoint.always(answers(200, body))

    with pytest.raises(DeliveryFailed, match="errcode") as failed:
        await dingtalk(endpoint.url(), outgoing).send(delivery())

    assert (failed.value.retry, failed.value.after) == (True, after)


async def test_dingtalk_has_no_markup_in_what_was_observed(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.always(answers(200, {"errcode": 0}))

    await dingtalk(endpoint.url(), outgoing).send(delivery(change(HOSTILE, HOSTILE, HOSTILE), monitor="a_b\n[c]"))

    text = endpoint.bodies[0]["markdown"]["text"]
    title, empty, item = text.split("\n")
    assert (title.startswith("#### a"), empty) == (True, "")
    for mark in "[]*_`<>@#|~\\":
        assert mark not in title.removeprefix("#### ") + item


async def test_dingtalk_is_not_sent_more_than_it_takes(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.always(answers(200, {"errcode": 0}))
    for changes in (MANY, tuple(change("价" * 80, "格" * 80, '"' * 80) for _ in range(300))):
        await dingtalk(endpoint.url(), outgoing).send(delivery(*changes, monitor="监" * 200))

        got = endpoint.requests[-1]
        text = got.json["markdown"]["text"]
        assert 15_000 < len(got.body) <= 20_000
        assert text.endswith(f"… and {len(changes) - text.count(' → ')} more changes")


# -- Apprise ----------------------------------------------------------------------------------------------------------


def apprise_url(endpoint: Endpoint, more: str = "") -> str:
    return endpoint.url("/hook").replace("http:", "json:") + more


async def test_apprise_tells(endpoint: Endpoint, outgoing: Outgoing) -> None:
    sink = Apprise(apprise_url(endpoint), outgoing=outgoing)

    assert await sink.send(delivery(change(), change("b", 1, HOSTILE))) == "told"

    (got,) = endpoint.bodies
    assert got["title"] == "venues: 2 changes"
    first, second = got["message"].split("\n")
    assert first == "venue A 19:00: price 80 → 90"
    assert second.startswith("b: 1 → **b** _i_")


async def test_apprise_is_not_sent_more_than_it_takes(endpoint: Endpoint, outgoing: Outgoing) -> None:
    sink = Apprise(apprise_url(endpoint), outgoing=outgoing)

    for most, titles in ((5000, 250), (5000, 0), (140, 250), (140, 0)):
        sink._service.body_maxlen = most
        sink._service.title_maxlen = titles
        await sink.send(delivery(*MANY))
        text = endpoint.bodies[-1]["message"]
        assert ("venues: 1000 changes" in text) is (titles == 0)
        assert len(text) <= most
        assert text.endswith(f"… and {1000 - text.count('key ')} more changes")


async def test_apprise_that_failed_or_hangs(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.next(answers(500), redirects(endpoint.url("/other")), hangs)

    for told, timeout in (("could not tell it", 5), ("could not tell it", 5), (r"within 0\.3 s", 0.3)):
        with pytest.raises(DeliveryFailed, match=told) as failed:
            await Apprise(apprise_url(endpoint), outgoing=outgoing, timeout=timeout).send(delivery())
        assert failed.value.retry
    assert len(endpoint.requests) == 3
    endpoint.release.set()
    await until(lambda: not [one for one in threading.enumerate() if one.name == "holdfast-handler"], what="no threads")


@pytest.mark.parametrize("url", ["", "nonsense", "nobody://host", "json://", "json://a, json://b", "http://host/"])
async def test_what_apprise_does_not_know_is_refused(outgoing: Outgoing, url: str) -> None:
    with pytest.raises(ConfigurationError):
        Apprise(url, outgoing=outgoing)


async def test_apprise_is_kept_from_private_addresses(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        if host == "nobody.example":
            raise OSError
        return ["127.0.0.1"]

    monkeypatch.setattr(outgoing_module, "resolve", resolver)
    async with Outgoing() as strict:
        for host in ("127.0.0.1", "localhost", "hooks.example"):
            with pytest.raises(DeliveryFailed, match="into allow") as refused:
                await Apprise(f"json://{host}:{endpoint.port}/", outgoing=strict).send(delivery())
            assert refused.value.retry is False
        # a name without an address is left to Apprise, which does not find it either
        with pytest.raises(DeliveryFailed, match="could not tell"):
            await Apprise("json://nobody.example/", outgoing=strict).send(delivery())
        # what is no host, but a secret in its place, is not asked for
        await Apprise(f"ntfy://{SECRET}", outgoing=strict)._look()
    assert endpoint.connections == 0
    assert SECRET.lower() not in str(asked).lower()


async def test_apprise_that_is_not_installed(outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)

    with pytest.raises(ConfigurationError, match=r"pip install '.\[apprise\]'"):
        Apprise("json://host/", outgoing=outgoing)


async def test_http_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)

    with pytest.raises(ConfigurationError, match=r"pip install '.\[monitor\]'"):
        Outgoing()


# -- functions --------------------------------------------------------------------------------------------------------


async def test_functions_of_all_kinds_are_called() -> None:
    seen: list[tuple[Delivery, bool]] = []

    def note(got: Delivery) -> object:
        seen.append((got, threading.current_thread() is threading.main_thread()))
        return "not used"

    async def coroutine(got: Delivery) -> object:
        return note(got)

    class Callee:
        async def __call__(self, got: Delivery) -> None:
            note(got)

    told = delivery()
    for function in (note, coroutine, Callee(), functools.partial(coroutine), lambda got: coroutine(got)):
        assert await Call(function).send(told) == "called"

    assert [got for got, _ in seen] == [told] * 5
    # plain functions in a thread, as they may block
    assert [in_loop for _, in_loop in seen] == [False, True, True, True, True]


async def test_what_a_function_raises_is_a_failure() -> None:
    def plain(got: Delivery) -> None:
        raise KeyError("plain")

    async def coroutine(got: Delivery) -> None:
        raise DeliveryFailed("stop", retry=False, after=5)

    async def late(got: Delivery) -> None:
        raise TimeoutError("its own")

    with pytest.raises(KeyError):
        await Call(plain).send(delivery())
    with pytest.raises(DeliveryFailed, match="stop") as failed:
        await Call(coroutine).send(delivery())
    assert (failed.value.retry, failed.value.after) == (False, 5)
    with pytest.raises(TimeoutError, match="its own"):
        await Call(late).send(delivery())


async def test_a_function_that_takes_too_long() -> None:
    cancelled = asyncio.Event()
    release = threading.Event()

    async def coroutine(got: Delivery) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    for function in (coroutine, lambda got: release.wait(10)):
        with pytest.raises(DeliveryFailed, match=r"not done within 0\.05 s") as failed:
            await Call(function, timeout=0.05).send(delivery())
        assert failed.value.retry
    assert cancelled.is_set()
    release.set()
    await until(lambda: not [one for one in threading.enumerate() if one.name == "holdfast-handler"], what="no threads")


# -- made from a subscriber -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "target", "kind"),
    [
        ("webhook", "https://host.example/h", Webhook),
        ("slack", "https://host.example/h", Slack),
        ("dingtalk", "https://host.example/h", DingTalk),
        ("apprise", "json://host.example/h", Apprise),
        ("call", "note", Call),
    ],
)
async def test_each_sink_is_made(outgoing: Outgoing, sink: str, target: str, kind: type) -> None:
    made = make_sink(Subscriber("ops", sink, target, "s"), outgoing=outgoing, calls={"note": print})

    assert type(made) is kind


@pytest.mark.parametrize(
    ("sink", "target", "told"),
    [
        ("email", "x", r"set the sink of 'ops' to webhook, .*not 'email'"),
        ("call", "other", "register a function with the name 'other'"),
        ("webhook", "nonsense", "pass a URL"),
        ("slack", "https://10.0.0.1/", "allow"),
        ("dingtalk", "https://u:p@host.example/", "remove user and password"),
        ("apprise", "nobody://x", "Apprise"),
    ],
)
async def test_what_can_never_work_is_refused(outgoing: Outgoing, sink: str, target: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make_sink(Subscriber("ops", sink, target), outgoing=outgoing, calls={"note": print})


async def test_the_subscribers_timeout_holds(endpoint: Endpoint, outgoing: Outgoing) -> None:
    endpoint.next(hangs)
    made = make_sink(Subscriber("ops", "webhook", endpoint.url(), timeout=0.1), outgoing=outgoing, calls={})

    with pytest.raises(DeliveryFailed, match=r"within 0\.1 s"):
        await made.send(delivery())


async def test_nothing_shows_a_secret(endpoint: Endpoint, outgoing: Outgoing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = endpoint.url(f"/services/{SECRET}?access_token={SECRET}")
    shown: list[str] = []
    for sink in (
        Webhook(url, SECRET, outgoing=outgoing),
        Slack(url, outgoing=outgoing),
        DingTalk(url, SECRET, outgoing=outgoing),
        Apprise(apprise_url(endpoint, f"/{SECRET}").replace("//", f"//me:{SECRET}@"), outgoing=outgoing),
    ):
        endpoint.next(answers(500, SECRET), drops, redirects(f"http://127.0.0.1/{SECRET}"), answers(200, SECRET))
        for _ in range(3):
            with pytest.raises(DeliveryFailed) as failed:
                await sink.send(delivery())
            shown += [str(failed.value), repr(failed.value), repr(failed.value.__cause__ or failed.value.__context__)]
        shown.append(repr(sink))
        endpoint.always(answers(200))
    # Apprise's own client tells paths when it is asked for every detail.
    details = ("urllib3", "apprise")
    logged = [one.getMessage() for one in caplog.records if one.levelno > 10 or not one.name.startswith(details)]

    assert repr(Webhook(url, SECRET, outgoing=outgoing)) == f"Webhook('http://127.0.0.1:{endpoint.port}')"
    assert not [text for text in (*shown, *logged) if SECRET in text]
