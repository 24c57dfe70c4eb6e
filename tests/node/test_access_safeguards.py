"""Each safeguard, taken away, lets through what it is there to refuse: so its tests can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from node_running import OPERATOR, NodeHere

from holdfast.node import access, guard
from holdfast.node.api import operation

BODY = {"user": "u", "data": 1}


def cross_site(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/buffers/s/messages", json=BODY, headers={"sec-fetch-site": "cross-site"})


def rebound(http: httpx.Client) -> httpx.Response:
    return http.get("/v1/fleet", headers={"host": "evil.example"})


def large(http: httpx.Client) -> httpx.Response:
    def pieces() -> Iterator[bytes]:
        yield b'{"user":"u","data":1}'
        for _ in range(5):
            yield b" " * 1_048_576

    return http.post("/v1/buffers/s/messages", content=pieces(), headers={"content-type": "application/json"})


def form(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/buffers/s/messages", content=b'{"user":"u","data":1}', headers={"content-type": "text/plain"})


OFF: dict[Callable[[httpx.Client], httpx.Response], tuple[int, object, str, object]] = {
    cross_site: (403, guard, "_same_site", lambda *_: None),
    rebound: (403, access.Access, "_from_here", lambda *_: True),
    large: (413, guard, "_bounded", lambda receive, most: receive),
    form: (415, operation, "JSON", "text/plain"),
}


@pytest.mark.parametrize("attack", OFF)
def test_without_its_safeguard_it_gets_through(
    node: NodeHere, monkeypatch: pytest.MonkeyPatch, attack: Callable[[httpx.Client], httpx.Response]
):
    status, owner, name, value = OFF[attack]
    with node.http() as http:
        assert attack(http).status_code == status
        monkeypatch.setattr(owner, name, value)
        assert attack(http).status_code in (200, 201)


def test_without_a_limit_on_guesses_a_right_one_is_told_at_once(node: NodeHere, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "GUESSES", 0.5)
    with NodeHere(node.url, token=OPERATOR) as guarded, guarded.http() as http:

        def guess() -> int:
            for number in range(30):
                http.get("/v1/fleet", headers={"authorization": f"Bearer guess-{number:016}"})
            return http.get("/v1/fleet", headers={"authorization": f"Bearer {OPERATOR}"}).status_code

        assert guess() == 429
        monkeypatch.setattr(access.Access, "_limit", lambda *_, **__: None)
        assert guess() == 200
