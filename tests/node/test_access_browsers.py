"""Browsers: no other site may act through one, and a cookie is worth no more than its token.

What is looked at changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.cookies import SimpleCookie

import httpx
import pytest
from node_running import OPERATOR, NodeHere, good, problem, sqlite
from starlette.routing import Mount, Route

import holdfast.sync
from holdfast.node.api import OPERATIONS
from holdfast.node.guard import HEADERS

LOOKED_AT = {
    "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs.css", "/login", "/static/{digest}/{name}", "/",
}  # fmt: skip
READER = "reader-token-0123456789"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHere]:
    directory = tmp_path_factory.mktemp("signed")
    with NodeHere(
        f"embedded://{directory}/s", sqlite(directory), token=OPERATOR, tokens=f"reader=read:{READER}"
    ) as made:
        yield made


def login(node: NodeHere, token: str = OPERATOR, **form: str) -> httpx.Response:
    node.app.node.access._buckets.clear()
    with node.http() as http:
        return http.post("/login", data={"token": token, **form})


def cookie_of(answer: httpx.Response) -> str:
    return SimpleCookie(answer.headers["set-cookie"])["holdfast_session"].value


# -- other sites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"},
        {"origin": "null"}, {"origin": "http://127.0.0.1"}, {"origin": "http://127.0.0.1.evil.example"},
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}, {"sec-fetch-site": "nonsense"},
    ],
)  # fmt: skip
def test_what_another_site_sends_is_refused_and_changes_nothing(
    http: httpx.Client, hf: holdfast.sync.Holdfast, headers: dict[str, str]
):
    lease = hf.lock("wanted").acquire()
    for path, body in (
        ("/v1/buffers/csrf/messages", {"user": "u", "data": 1}),
        ("/v1/locks/force-release", {"name": "wanted", "reason": "because"}),
        ("/v1/forget", {"user": "u", "reason": "because"}),
    ):
        problem(http.post(path, json=body, headers=headers), 403, "cross-site")
    assert http.post("/login", data={"token": "x"}, headers=headers).status_code == 403
    assert http.post("/logout", headers=headers).status_code == 403
    assert hf.buffer("csrf").totals().users == 0
    assert hf.inspect("wanted").held
    lease.release()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_of_an_old_browser_that_says_nothing_is_refused_by_its_type(
    http: httpx.Client, hf: holdfast.sync.Holdfast, kind: str
):
    body = b'{"user":"u","data":1,"x":"="}'
    problem(http.post("/v1/buffers/forms/messages", content=body, headers={"content-type": kind}), 415, "not-json")
    assert hf.buffer("forms").totals().users == 0


def test_our_own_pages_and_programs_are_let_through(node: NodeHere, http: httpx.Client):
    for headers in (
        {}, {"sec-fetch-site": "same-origin", "origin": node.address}, {"sec-fetch-site": "none"},
        {"origin": node.address},
    ):  # fmt: skip
        good(http.post("/v1/once/own", json={"id": 1}, headers=headers))


# -- looking changes nothing ------------------------------------------------------------------------------------------


def _gets(routes: list, prefix: str = "") -> Iterator[str]:
    for route in routes:
        if isinstance(route, Mount):
            yield from _gets(list(route.routes), prefix + route.path)
        elif isinstance(route, Route) and (route.methods is None or "GET" in route.methods):
            yield prefix + route.path


def test_no_get_changes_anything(node: NodeHere, http: httpx.Client, hf: holdfast.sync.Holdfast):
    """Every address that can be looked at is looked at, signed in; nothing but counters of looking may differ."""
    hf.buffer("still").append("user", {"n": 1})
    hf.runs("still").start("run")
    hf.runs("still").stop("run", "so that waiting for it ends")
    hf.sessions("still").save("session", "text", user="user")
    lease = hf.lock("name").acquire()
    before = _state(hf)
    starlette = node.app._app._app
    paths = [*_gets(starlette.routes), *(one.path for one in OPERATIONS if one.method == "GET")]
    assert set(paths) >= LOOKED_AT
    names = {"buffer": "still", "user": "user", "collection": "still", "run": "run", "session": "session"}
    for path in paths:
        filled = re.sub(r"{(\w+)(:\w+)?}", lambda found: names.get(found[1], "name"), path)
        with http.stream("GET", filled, headers={"accept": "text/html"}) as answer:
            assert answer.status_code < 500, (filled, answer.status_code)
    assert _state(hf) == before
    lease.release()


def _state(hf: holdfast.sync.Holdfast) -> list:
    stats = hf.buffer("still").stats("user")
    return [
        stats.waiting, stats.in_flight, [one.id for one in hf.buffer("still").peek("user")],
        hf.runs("still").get("run").state, hf.sessions("still").count("session"),
        [one.fence for one in hf.inspect("name").holders], [one.id for one in hf.fleet.actions()],
        hf.buffer("still").totals().counts,
    ]  # fmt: skip


# -- headers ----------------------------------------------------------------------------------------------------------


def test_every_answer_keeps_browsers_careful(node: NodeHere, signed: NodeHere, http: httpx.Client):
    with signed.http() as nobody:
        answers = [
            http.get("/"), http.get("/v1/fleet"), http.get("/v1/nothing"), http.get("/healthz"), http.get("/metrics"),
            http.get("/docs"), http.get("/docs.css"), http.get("/openapi.json"), http.get("/v1/locks?limit=x"),
            http.delete("/v1/locks"), http.post("/v1/once/x", content=b"{"), http.get("/nothing"),
            http.get("/v1/fleet", headers={"host": "evil.example"}), nobody.get("/v1/fleet"),
            nobody.get("/", headers={"accept": "text/html"}), nobody.get("/login"), nobody.post("/login", data={}),
            http.post("/v1/once/x", json={}, headers={"sec-fetch-site": "cross-site"}), http.options("/v1/locks"),
            http.post("/v1/once/x", content=b"x" * 5_000_000), http.head("/v1/fleet"), http.get("/v1/fleet/"),
        ]  # fmt: skip
    for answer in answers:
        for name, value in HEADERS.items():
            if name == "cache-control":
                assert "no-" in answer.headers[name] or "immutable" in answer.headers[name], answer.request.url
            else:
                assert answer.headers.get(name) == value, (answer.request.method, answer.request.url, name)
        assert "server" not in answer.headers
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_an_unexpected_error_tells_nothing_and_is_logged_once(
    node: NodeHere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def broken(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(type(node.app.node.hf.fleet), "totals", broken)
    with node.http() as http:
        answer = http.get("/v1/fleet")
        assert http.get("/healthz").status_code == 200, "the connection lives on"
    assert "hunter2" not in answer.text
    problem(answer, 500, "error")
    assert len([one for one in caplog.records if one.levelname == "ERROR"]) == 1
    assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]


# -- signing in -------------------------------------------------------------------------------------------------------


def test_a_browser_is_sent_to_sign_in_and_a_program_is_not(signed: NodeHere):
    with signed.http() as http:
        page = http.get("/locks?q=1", headers={"accept": "text/html"})
        assert page.status_code == 303
        assert page.headers["location"] == "/login?next=%2Flocks%3Fq%3D1"
        problem(http.get("/v1/fleet"), 401, "no-token")
        assert http.get("/login").status_code == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_sites_and_does_what_its_token_may(signed: NodeHere):
    answer = login(signed, OPERATOR, next="/locks")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/locks"
    morsel = SimpleCookie(answer.headers["set-cookie"])["holdfast_session"]
    assert morsel["httponly"]
    assert morsel["samesite"] == "strict"
    assert morsel["path"] == "/"
    assert OPERATOR not in answer.headers["set-cookie"]
    with signed.http() as http:
        headers = {"cookie": f"holdfast_session={morsel.value}"}
        good(http.get("/v1/fleet", headers=headers))
        good(http.post("/v1/once/cookie", json={"id": 1}, headers=headers))
        problem(http.post("/v1/once/cookie", json={"id": 2}, headers={**headers, "sec-fetch-site": "cross-site"}), 403)
        weaker = {"cookie": f"holdfast_session={cookie_of(login(signed, READER))}"}
        good(http.get("/v1/fleet", headers=weaker))
        problem(http.post("/v1/once/cookie", json={"id": 3}, headers=weaker), 403, "not-allowed")


def test_a_cookie_is_worthless_when_the_token_changes_or_it_is_tampered_with(signed: NodeHere):
    value = cookie_of(login(signed))
    name, _, mark = value.partition(".")
    with signed.http() as http:
        for wrong in (f"reader.{mark}", f"{name}.{mark[:-1]}0", f"{name}.", "", "x", f"{value}x", "a" * 5000):
            signed.app.node.access._buckets.clear()
            problem(http.get("/v1/fleet", headers={"cookie": f"holdfast_session={wrong}"}), 401)
    with NodeHere(signed.url, token="another-token-0123456789") as changed, changed.http() as http:
        problem(http.get("/v1/fleet", headers={"cookie": f"holdfast_session={value}"}), 401, "no-token")


def test_a_wrong_token_gets_no_cookie(signed: NodeHere):
    answer = login(signed, "wrong-token-0123456789", next="/locks")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?wrong=1&next=%2Flocks"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "away",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "evil",
     "/\t/evil.example", "/\n/evil.example", " //evil.example", "http:evil.example", "///evil.example", ""],
)  # fmt: skip
def test_signing_in_leads_to_no_other_site(signed: NodeHere, away: str):
    where = login(signed, OPERATOR, next=away).headers["location"]
    assert where == "/" or (where.startswith("/%") and not re.search(r"[\s\\]", where)), where
    wrong = login(signed, "wrong-token-0123456789", next=away).headers["location"]
    assert wrong.startswith("/login?wrong=1&next=%2F")


def test_signing_out_takes_the_cookie_away(signed: NodeHere):
    with signed.http() as http:
        answer = http.post("/logout")
    assert answer.status_code == 303
    assert SimpleCookie(answer.headers["set-cookie"])["holdfast_session"]["max-age"] == "0"


def test_cookies_of_others_do_not_get_in_the_way(signed: NodeHere):
    value = cookie_of(login(signed))
    with signed.http() as http:
        for cookies in (f"a=b; holdfast_session={value}; c=d", f'theme="dark"; holdfast_session={value}'):
            good(http.get("/v1/fleet", headers={"cookie": cookies}))
