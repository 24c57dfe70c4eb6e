"""Addresses and forms that nobody meant: an answer that says what is wrong, and never a failure of the node."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from dashboard_house import HOSTILE, House, furnish

from holdfast.node.dashboard import routes
from holdfast.node.dashboard.text import token

ODD = (
    "", " ", "x", "0", "-1", "9" * 20, "NaN", "[", "[]", "[1]", "[null]", '["a"]', '[["a"]]', '"\\ud800"',
    '{"a": 1e999}', "\x00", "\n", "\u202e", "a" * 600, "~", "~a", "~////", "%", "..", "null", "1-1", "1763210000000-0",
    "3.17", "64.1", "rw", "<b>", *map(token, HOSTILE),
)  # fmt: skip
NAMES = ("waiting", "agent", "chat", "venues", "sour", *ODD)
QUERIES = (
    "page", "span", "sort", "order", "state", "key", "stuck", "subscriber", "action", "before", "name", "kind", "user",
    "run", "session", "source", "field", "limit", "count", "fence", "dialog", "buffer", "runs", "monitor", "thing",
    "next",
)  # fmt: skip
FIELDS = (
    "reason",
    "typed",
    "buffer",
    "user",
    "data",
    "runs",
    "run",
    "key",
    "input",
    "monitor",
    "source",
    "state",
    "now",
)
REQUESTS = 300


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("odd"), work=False) as made:
        made.ask(furnish(made.hf))
        yield made


@pytest.mark.parametrize("number", range(2))
def test_nothing_that_is_sent_makes_the_node_fail(house: House, number: int) -> None:
    draw = random.Random(number)
    asked = [route for route in routes() if "static" not in route.path and "log" not in route.path]
    seen = set()
    with httpx.Client(headers={"Accept": "text/html"}, timeout=30) as client:
        for _ in range(REQUESTS // 2):
            # given an address made of odd parts, and a form with odd fields
            route = draw.choice(asked)
            path = re.sub(r"{\w+}", lambda _: quote(draw.choice(NAMES), safe="") or "x", route.path)
            query = {name: draw.choice(ODD) for name in draw.sample(QUERIES, draw.randint(0, 6))}
            method = draw.choice(sorted(route.methods - {"HEAD"}))
            form = {name: draw.choice(NAMES) for name in FIELDS if draw.random() < 0.8}

            # when it is sent
            answer = client.request(method, house.base + path, params=query, data=form if method == "POST" else None)

            # expect an answer, which is no failure
            assert answer.status_code < 500, (method, path, query, form)
            seen.add(answer.status_code)
    assert {200, 400, 404} <= seen


def test_no_page_scans_the_server(house: House) -> None:
    # given what the server was asked until now
    server = house.server.client()
    server.config_resetstat()

    # when every page is opened, with its lists and its second pages
    with httpx.Client(headers={"Accept": "text/html"}, timeout=30) as client:
        for path in (
            "/", "/locks", "/locks?page=2", "/buffers", "/buffers/waiting", "/buffers/waiting?order=largest&page=2",
            "/buffers/waiting/users/user-01", "/runs", "/runs/agent", "/runs/agent?state=queued&page=2", "/sessions",
            "/sessions/chat/users/user-01", "/monitors", "/monitors/venues", "/audit", "/try",
        ):  # fmt: skip
            assert client.get(house.base + path).status_code == 200, path

    # expect only look-ups: nothing that walks through keys, or through a collection of any size
    used = {name.removeprefix("cmdstat_") for name in server.info("commandstats")}
    assert "evalsha" in used or "fcall" in used
    assert not used & {"keys", "scan", "sscan", "hscan", "zscan", "smembers", "hkeys", "hvals"}
    server.close()
