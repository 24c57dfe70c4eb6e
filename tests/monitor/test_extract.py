"""What counts of a page: selectors, charsets, and pages that were made to keep a reader busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import ConfigurationError
from holdfast.monitor import extract as extracting
from holdfast.monitor import reader as reading
from holdfast.monitor.extract import NothingFound, make_extract
from holdfast.monitor.page import PageUnreadable
from holdfast.monitor.reader import Reader
from support.conditions import until

HTML = "text/html; charset=utf-8"
JSON = "application/json"
SHOP = """<!doctype html><html><head><title>Shop</title><style>p {color: red}</style></head><body>
 <h1>Tea</h1><script>var price = 1;</script><template><p>later</p></template><noscript>Use a browser</noscript>
 <p class=price>12<b>.50</b>\n &euro;</p><p class=price>13</p><p class=empty> </p><div>a<div>b</div>c<br>d</div>
 <!-- a comment --><a id=next href=/2>Next</a><a>No way</a></body></html>"""
DATA = {"items": [{"name": "tea", "price": 12.5}, {"name": "cup", "price": 3}], "note": None, "left": [], "big": 10**30}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"css": "h1"}, "Tea"),
        ({"css": "p.price"}, ["12.50 €", "13"]),
        ({"css": "p"}, ["12.50 €", "13", ""]),
        ({"css": "script"}, "var price = 1;"),
        ({"css": "#next::attr(href)"}, "/2"),
        ({"css": "a::attr( HREF )"}, "/2"),
        ({"css": "p.price", "regex": r"\d+"}, ["12", "50", "13"]),
        ({"css": "p.price", "regex": r"(\d+)\.(\d+)"}, ["12", "50"]),
        ({"css": "p.price", "regex": r"(?P<euro>\d+)\.(?P<cent>\d+)"}, {"euro": "12", "cent": "50"}),
        ({"css": "h1, #next", "regex": "^N(.*)t$"}, "ex"),
        ({}, "Tea 12.50 € 13 a b c d NextNo way"),
        ({"regex": r"Tea (\S+)"}, "12.50"),
        ({"text": True, "regex": r"var price = (\d)"}, "1"),
        ({"css": "p.none", "empty_ok": True}, None),
        ({"css": "p.empty", "empty_ok": True}, ""),
    ],
    ids=str,
)
def test_html(options: dict[str, Any], found: Any) -> None:
    assert make_extract(**options)(SHOP.encode(), HTML) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"json": "$.items[0].price"}, 12.5),
        ({"json": "$.items[*].price"}, [12.5, 3]),
        ({"json": "$.items[?@.price > 5].name"}, "tea"),
        ({"json": "items"}, DATA["items"]),
        ({"json": "$.note"}, None),
        ({"json": "$.left"}, []),
        ({"json": "$.big"}, 10**30),
        ({"json": "$.items[0]", "regex": '"price": ([0-9.]+)'}, "12.5"),
        ({"json": "$.none", "empty_ok": True}, None),
        ({}, DATA),
        ({"regex": r'"name": "(\w+)"'}, ["tea", "cup"]),
    ],
    ids=str,
)
def test_json(options: dict[str, Any], found: Any) -> None:
    assert make_extract(**options)(json.dumps(DATA).encode(), JSON) == found


def test_json_that_is_only_text() -> None:
    assert make_extract(json="$")(b'"{}"', JSON) == "{}"


@pytest.mark.parametrize(
    ("options", "body", "kind"),
    [
        ({"css": "p.none"}, SHOP, HTML),
        ({"css": "p.empty"}, SHOP, HTML),
        ({"css": "h1::attr(href)"}, SHOP, HTML),
        ({"css": "h1", "regex": "Coffee"}, SHOP, HTML),
        ({"json": "$.none"}, json.dumps(DATA), JSON),
        ({"json": "$.items[*].name", "regex": "x"}, json.dumps(DATA), JSON),
        ({}, "<script>render()</script>", HTML),
        ({}, " \n", "text/plain"),
        ({}, "", "image/png"),
    ],
    ids=str,
)
def test_nothing_found_is_a_failure_and_no_change(options: dict[str, Any], body: str, kind: str) -> None:
    with pytest.raises(NothingFound, match=r"^check "):
        make_extract(**options)(body.encode(), kind)


@pytest.mark.parametrize(
    ("body", "kind", "found"),
    [
        ("é€".encode(), "text/plain; charset=utf-8", "é€"),
        ("é€".encode("cp1252"), "text/plain; charset=ISO-8859-1", "é€"),
        ("é".encode("iso8859-15"), 'text/plain; charset="iso-8859-15"', "é"),
        ("日本".encode("shift_jis"), "text/plain; charset=Shift_JIS", "日本"),
        ("汉字".encode("gb18030"), "text/plain; charset=gb2312", "汉字"),
        ("日本".encode("euc-jp"), "text/html", "日本"),
        ("é".encode(), "text/html", "é"),
        ("é".encode("cp1252"), "text/html", "é"),
        (b"\xef\xbb\xbf\xc3\xa9", "text/plain; charset=latin-1", "é"),
        (b"\xff\xfe" + "é".encode("utf-16-le"), "text/plain", "é"),
        (b"\xe9\xff", "text/plain; charset=utf-8", "\ufffd\ufffd"),
        ("é".encode(), "text/plain; charset=zlib", "é"),
        ("é".encode(), "text/plain; charset=unicode_escape", "é"),
        ("é".encode(), "text/plain; charset=no-such-thing", "é"),
    ],
    ids=str,
)
def test_charsets(body: bytes, kind: str, found: str) -> None:
    if found == "日本" and kind == "text/html":
        body = b'<html><head><meta http-equiv="Content-Type" content="text/html; charset=EUC-JP"></head>' + body
    assert make_extract()(body, kind) == found


def test_a_meta_that_names_a_wider_charset_is_not_in_it() -> None:
    assert make_extract(css="p")(b'<meta charset="utf-16"><p>a\xc3\xa9</p>', "text/html") == "aé"


@pytest.mark.parametrize(
    ("body", "kind", "found"),
    [
        (b"a\r\nb\n", "text/plain", "a\nb"),
        (b"<a>1</a>", "application/xml", "<a>1</a>"),
        (b"<!DOCTYPE html><p>a", "", "a"),
        (b"plain", "", "plain"),
        (b'{"a": 1}', "application/problem+json; charset=utf-8", {"a": 1}),
        (b"\x89PNG\x00", "image/png", "sha256:a6a1b3d05a6e64b4a3e0f0a7d2f6d5a7"),
        (b"\x89PNG\x00", "", "sha256:"),
    ],
    ids=str,
)
def test_without_a_filter_the_type_decides(body: bytes, kind: str, found: Any) -> None:
    got = make_extract()(body, kind)
    if isinstance(found, str) and found.startswith("sha256:"):
        assert got.startswith("sha256:")
        assert got != make_extract()(body + b"x", kind)
    else:
        assert got == found


@pytest.mark.parametrize(
    ("options", "body", "kind", "word"),
    [
        ({}, b"{", JSON, "no JSON"),
        ({"json": "$"}, b"<p>", HTML, "no JSON"),
        ({}, b"[NaN]", JSON, "no JSON"),
        ({}, b"[1e999]", JSON, "no JSON value"),
        ({}, b'["\\ud800"]', JSON, "no JSON value"),
        ({}, b"[" * 100_000, JSON, "no JSON"),
        ({}, b"9" * 10_000, JSON, "no JSON"),
        ({}, b"\xff\xff", JSON, "no JSON"),
        ({"json": "$..a"}, b'{"a":' * 500 + b"1" + b"}" * 500, JSON, "JSONPath"),
        ({"css": "p"}, b"<p>a" * 1001, HTML, "more than 1000"),
        ({"regex": "a"}, b"a" * 1001, "text/plain", "more than 1000"),
        ({}, b"a" * (extracting.MOST_BYTES + 1), "text/plain", "bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_read_says_why(options: dict[str, Any], body: bytes, kind: str, word: str) -> None:
    with pytest.raises(PageUnreadable, match=word):
        make_extract(**options)(body, kind)


@pytest.mark.parametrize(
    "options",
    [
        {"css": "p["}, {"css": ""}, {"css": " "}, {"css": "p::before"}, {"css": 3}, {"css": "p" * 2001},
        {"json": "$["}, {"json": ""}, {"regex": "("}, {"regex": "a" * 2001}, {"css": "p", "json": "$"},
        {"css": "p", "text": True}, {"json": "$", "text": True},
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_can_never_match_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_extract(**options)


def test_a_page_deeper_than_calls_can_be() -> None:
    page = b"<b>" * 400 + b"<p>x" + b"<i>" * 3000 + b"y"

    assert make_extract(css="p")(page, HTML)[0] == "x"


# -- in a process of its own ------------------------------------------------------------------------------------------


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    made = Reader(seconds=0.3)
    yield made
    await made.close()


def pid(reader: Reader) -> int:
    assert reader._process is not None
    return reader._process.pid


async def test_a_reader_answers_as_the_extraction_does(reader: Reader) -> None:
    prices = make_extract(css="p.price")

    assert await reader.read(prices, SHOP.encode(), HTML) == ["12.50 €", "13"]
    first = pid(reader)
    assert await reader.read(make_extract(json="$.big"), json.dumps(DATA).encode(), JSON) == 10**30
    with pytest.raises(NothingFound, match=r"check css 'p\.price': nothing"):
        await reader.read(prices, b"<p>", HTML)
    with pytest.raises(PageUnreadable, match="no JSON"):
        await reader.read(make_extract(json="$"), b"<p>", HTML)
    assert pid(reader) == first


HOSTILE: list[tuple[str, dict[str, Any], Callable[[], bytes], str]] = [
    ("depth", {"css": "p"}, lambda: b"<div>" * 200_000, HTML),
    ("selector", {"css": "i div div p"}, lambda: b"<div>" * 3000 + b"<p>x", HTML),
    ("regex", {"regex": "(a+)+$"}, lambda: b"a" * 50 + b"!", "text/plain"),
    ("jsonpath", {"json": '$[?search(@, "(a+)+$")]'}, lambda: json.dumps(["a" * 50 + "!"]).encode(), JSON),
]


class Pulse:
    """A thread that must go on, as the one that renews leases. `longest` is how long it stood still."""

    def __enter__(self) -> Self:
        self.longest, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        return self

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.01):
            self.longest, last = max(self.longest, time.monotonic() - last), time.monotonic()
        self.longest = max(self.longest, time.monotonic() - last)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize(("options", "page", "kind"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
async def test_a_page_made_to_keep_a_reader_busy_keeps_nobody_busy(
    reader: Reader, options: dict[str, Any], page: Callable[[], bytes], kind: str
) -> None:
    with Pulse() as pulse, pytest.raises(PageUnreadable, match=r"takes over 0\.3 s to read"):
        await reader.read(make_extract(**options), page(), kind)

    assert pulse.longest < 3
    assert await reader.read(make_extract(css="h1"), SHOP.encode(), HTML) == "Tea"


async def test_in_a_thread_such_a_page_stops_the_whole_process() -> None:
    """Why there is a process: a much smaller page than the ones above, in a thread of this one."""
    extract, page = make_extract(css="i div div p"), b"<div>" * 800 + b"<p>x"

    with Pulse() as pulse, pytest.raises(NothingFound):
        await asyncio.to_thread(extract, page, HTML)

    assert pulse.longest > 0.2


async def test_a_page_that_needs_too_much_memory_fails_alone() -> None:
    # Given an expression that makes a hundred megabytes of a page of a hundred kilobytes
    many = make_extract(regex="(?=(a{100000}))")
    reader = Reader(seconds=10, memory=100 << 20)

    with pytest.raises(PageUnreadable, match="too much memory"):
        await reader.read(many, b"a" * 100_990, "text/plain")
    assert await reader.read(make_extract(css="h1"), SHOP.encode(), HTML) == "Tea"
    await reader.close()


async def test_a_reader_that_died_is_replaced(reader: Reader) -> None:
    await reader.read(make_extract(css="h1"), SHOP.encode(), HTML)
    os.kill(pid(reader), signal.SIGKILL)
    await until(lambda: reader._process.returncode is not None)

    assert await reader.read(make_extract(css="h1"), SHOP.encode(), HTML) == "Tea"


async def test_cancelled_it_ends_its_process() -> None:
    reader = Reader(seconds=20)
    task = asyncio.create_task(reader.read(make_extract(regex="(a+)+$"), b"a" * 50 + b"!", "text/plain"))
    await until(lambda: reader._process is not None)
    child = pid(reader)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


async def test_it_is_ended_where_nobody_asks_any_more(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a reader that is at work when its parent's patience ends
    monkeypatch.setattr(reading, "WALL_SECONDS", 0.05)
    with pytest.raises(PageUnreadable, match="ended with -9"):
        await reader.read(make_extract(regex="(a+)+$"), b"a" * 50 + b"!", "text/plain")


async def test_it_sees_nothing_of_our_environment(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "redis://:hunter2@127.0.0.1")
    await reader.read(make_extract(), b"a", "text/plain")

    assert b"hunter2" not in Path(f"/proc/{pid(reader)}/environ").read_bytes()
