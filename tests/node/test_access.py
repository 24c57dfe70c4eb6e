"""Who may do what: loopback without a token, tokens with scopes, and nobody else; nothing tells a token."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from node_running import OPERATOR, NodeHere, good, problem, sqlite

from holdfast import ConfigurationError
from holdfast.node.access import Access, Bucket, new_token, tokens_of
from holdfast.node.api import OPERATIONS
from holdfast.node.serve import serve
from holdfast.settings import NodeSettings

READER, WRITER, OPERATING = "reader-token-0123456789", "writer-token-0123456789", "operate-token-0123456789"
TOKENS = f"reader=read:{READER} writer=write:{WRITER} ops=operate:{OPERATING}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeHere]:
    """A node with a token for everything, and one for each scope."""
    directory = tmp_path_factory.mktemp("guarded")
    with NodeHere(f"embedded://{directory}/s", sqlite(directory), token=OPERATOR, tokens=TOKENS) as made:
        yield made


# -- scopes -----------------------------------------------------------------------------------------------------------


def test_without_a_token_nothing_but_health_is_answered(guarded: NodeHere):
    with guarded.http() as http:
        for one in OPERATIONS:
            problem(http.request(one.method, one.path.replace("{", "").replace("}", ""), json={}), 401, "no-token")
        for path in ("/metrics", "/openapi.json", "/docs"):
            problem(http.get(path), 401, "no-token")
        assert http.get("/healthz").status_code == 200
        assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize(("token", "scope"), [(READER, "read"), (WRITER, "write"), (OPERATING, "operate")])
def test_each_scope_opens_its_own_operations_and_no_others(guarded: NodeHere, token: str, scope: str):
    with guarded.http(token) as http:
        for one in OPERATIONS:
            answer = http.request(one.method, one.path.replace("{", "").replace("}", ""), json={"never": 1})
            if one.scope == scope:
                assert answer.status_code not in (401, 403), one.name
            else:
                assert problem(answer, 403, "not-allowed")["detail"].startswith("use a token with the scope"), one.name
        assert http.get("/metrics").status_code == (200 if scope == "read" else 403)
        assert http.get("/docs").status_code == (200 if scope == "read" else 403)


def test_a_token_for_everything_does_everything(guarded: NodeHere):
    with guarded.http(OPERATOR) as http:
        good(http.get("/v1/fleet"))
        good(http.post("/v1/once/s", json={"id": 1}))
        good(http.post("/v1/locks/force-release", json={"name": "x", "reason": "y"}))


@pytest.mark.parametrize(
    "header",
    [f"Bearer {OPERATOR}x", f"Bearer {OPERATOR[:-1]}", f"Basic {OPERATOR}", OPERATOR, "Bearer",
     f"Token {OPERATOR}", f"Bearer {OPERATOR.upper()}", "Bearer ÿþ",
     f'Bearer "{OPERATOR}"', f"Bearer {OPERATOR},{READER}"],
)  # fmt: skip
def test_what_is_nearly_the_token_is_not(guarded: NodeHere, header: str):
    guarded.app.node.access._buckets.clear()
    with guarded.http() as http:
        problem(http.get("/v1/fleet", headers={"authorization": header.encode("latin-1")}), 401, "no-token")
        problem(http.get("/v1/fleet", params={"token": OPERATOR}), 401)  # never in an address, where logs keep it


def test_every_token_is_compared_in_constant_time(guarded: NodeHere, monkeypatch: pytest.MonkeyPatch):
    """Whichever fits, all are compared, and never by ==, which ends at the first difference."""
    compared: list[bytes] = []
    real = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return real(one, other)

    monkeypatch.setattr("holdfast.node.access.hmac.compare_digest", watched)
    for token in (OPERATOR, READER, OPERATING, "wrong-token-0123456789"):
        compared.clear()
        with guarded.http(token) as http:
            http.get("/v1/fleet")
        assert compared == [one.digest for one in guarded.app.node.access.tokens]
    compared.clear()
    with guarded.http() as http:
        http.get("/v1/fleet", headers={"cookie": "holdfast_session=operator.nonsense"})
    assert len(compared) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"token": "short"}, "at least 16"), ({"token": "x" * 15}, "at least 16"), ({"token": "ü" * 20}, "ASCII"),
        ({"tokens": "reader=read"}, "name=scope"), ({"tokens": "=read:0123456789abcdef"}, "name=scope"),
        ({"tokens": "a=admin:0123456789abcdef"}, "name=scope"), ({"tokens": "a=:0123456789abcdef"}, "name=scope"),
        ({"tokens": "a=read:0123456789abcdef a=write:fedcba9876543210"}, "of its own"),
        ({"tokens": "a=read:0123456789abcdef b=write:0123456789abcdef"}, "of its own"),
        ({"token": "0123456789abcdef", "tokens": "b=read:0123456789abcdef"}, "of its own"),
        ({"token": "0123456789abcdef", "tokens": "operator=read:fedcba9876543210"}, "of its own"),
    ],
)  # fmt: skip
def test_tokens_that_cannot_be_are_refused_and_not_quoted(options: dict[str, str], says: str):
    with pytest.raises(ConfigurationError, match=says) as caught:
        tokens_of(NodeSettings(**options))
    for secret in ("short", "x" * 15, "0123456789abcdef", "fedcba9876543210"):
        assert secret not in str(caught.value)


def test_new_tokens_are_long_and_different():
    assert len({new_token() for _ in range(100)}) == 100
    assert min(len(new_token()) for _ in range(100)) >= 32


# -- loopback ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "10.0.0.1", "example.org", ""])
async def test_any_address_but_loopback_needs_a_token(host: str, tmp_path: Path):
    bare = NodeSettings(host=host, data=str(tmp_path), port=0)
    with pytest.raises(ConfigurationError, match="--new-token"):
        await serve(bare, supervise=None, told=None)  # type: ignore[arg-type]  # it does not come to that
    assert not list(tmp_path.iterdir()), "something was started first"
    Access(NodeSettings(token="0123456789abcdef")).check_bind(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host: str):
    Access(NodeSettings()).check_bind(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:127.0.0.1",
     "0.0.0.0", "192.168.0.1", "", "[::1].evil.example", "/etc"],
)  # fmt: skip
def test_a_page_under_another_name_is_refused_without_tokens(http: httpx.Client, host: str):
    """DNS rebinding: the browser takes evil.example for us, and says so in Host."""
    problem(http.get("/v1/fleet", headers={"host": host}), 403, "not-from-here")
    problem(http.post("/v1/once/s", json={"id": "rebound"}, headers={"host": host}), 403, "not-from-here")
    for path in ("/", "/locks", "/metrics", "/openapi.json", "/docs"):
        assert http.get(path, headers={"host": host}).status_code == 403, path


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]", "[::1]:8420", "127.0.0.2:80"])
def test_names_of_loopback_are_answered(http: httpx.Client, host: str):
    good(http.get("/v1/fleet", headers={"host": host}))


def test_further_names_can_be_allowed(node: NodeHere):
    with NodeHere(node.url, hosts="holdfast.internal other") as named, named.http() as http:
        good(http.get("/v1/fleet", headers={"host": "Holdfast.internal:8420"}))
        problem(http.get("/v1/fleet", headers={"host": "evil.example"}), 403, "not-from-here")


def test_somebody_from_another_machine_is_refused_without_tokens(http: httpx.Client):
    """As a proxy on this machine passes them on: loopback is not where they come from."""
    answer = http.get("/v1/fleet", headers={"x-forwarded-for": "203.0.113.9"})
    problem(answer, 403, "not-from-here")


@pytest.mark.parametrize("header", ["via", "forwarded", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"])
def test_what_came_through_a_proxy_is_not_from_here(http: httpx.Client, header: str):
    problem(http.get("/v1/fleet", headers={header: "127.0.0.1"}), 403, "not-from-here")


def test_a_very_low_rate_lets_something_through(node: NodeHere):
    with NodeHere(node.url, rate=0.2) as slow, slow.http() as http:
        good(http.get("/v1/fleet"))
        problem(http.get("/v1/fleet"), 429, "too-many-requests")


# -- how much ---------------------------------------------------------------------------------------------------------


def test_each_caller_has_a_rate_of_its_own(node: NodeHere):
    with NodeHere(node.url, token=OPERATOR, tokens=TOKENS, rate=2.0) as slow:
        with slow.http(READER) as http:
            answers = [http.get("/v1/fleet") for _ in range(8)]
            refused = [one for one in answers if one.status_code == 429]
            assert len(refused) >= 2
            assert [one.status_code for one in answers[:4]] == [200] * 4, "twice the rate at once"
            problem(refused[0], 429, "too-many-requests")
            assert int(refused[0].headers["retry-after"]) >= 1
        with slow.http(OPERATOR) as http:
            good(http.get("/v1/fleet"))  # another caller is not held up


def test_a_bucket_gives_its_rate_over_time_and_twice_at_once():
    bucket = Bucket(5.0, 10.0, 0.0)
    assert [bucket.take(0.0, 1) for _ in range(10)] == [0.0] * 10
    assert bucket.take(0.0, 1) == pytest.approx(0.2)
    assert bucket.take(0.2, 1) == 0.0
    assert sum(bucket.take(0.2 + number / 100, 1) == 0.0 for number in range(1, 1001)) in (49, 50)
    assert sum(bucket.take(1000.0, 1) == 0.0 for _ in range(100)) == 10, "rest is not saved up"


def test_guessing_tokens_is_slowed_also_when_the_guess_is_right(guarded: NodeHere, monkeypatch: pytest.MonkeyPatch):
    """If only wrong ones were counted, the answer to a right one would come through at any speed."""
    access = guarded.app.node.access
    monkeypatch.setattr("holdfast.node.access.GUESSES", 0.5)  # not so many that a slow machine does not reach it
    with guarded.http() as http:
        for way in ("token", "session"):
            access._buckets.clear()
            access._welcome.clear()
            codes = [http.get("/v1/fleet", headers=_credentials(way, f"guess-{n:016}", access)).status_code
                     for n in range(30)]  # fmt: skip
            assert 401 in codes
            assert codes[-1] == 429
            right = http.get("/v1/fleet", headers=_credentials(way, OPERATOR, access))
            problem(right, 429, "too-many-requests")
            assert http.get("/healthz").status_code == 200
            access._buckets.clear()
            good(http.get("/v1/fleet", headers=_credentials(way, OPERATOR, access)))


def test_who_got_in_before_is_not_slowed_by_others_who_guess(guarded: NodeHere, monkeypatch: pytest.MonkeyPatch):
    """Behind a proxy all have one address."""
    access = guarded.app.node.access
    access._buckets.clear()
    monkeypatch.setattr("holdfast.node.access.GUESSES", 0.5)
    with guarded.http() as http:
        for way in ("token", "session"):
            good(http.get("/v1/fleet", headers=_credentials(way, OPERATOR, access)))
            codes = {http.get("/v1/fleet", headers=_credentials(way, f"guess-{n:016}", access)).status_code
                     for n in range(30)}  # fmt: skip
            assert 429 in codes
            good(http.get("/v1/fleet", headers=_credentials(way, OPERATOR, access)))
        # and where they come from does not fill the memory
        for number in range(20_000):
            access._welcome.add((f"peer {number}", "operator"))
        good(http.get("/v1/fleet", headers=_credentials("token", OPERATOR, access)))
        http.get("/v1/fleet", headers=_credentials("token", READER, access))
        assert len(access._welcome) < 20_000
    access._welcome.clear()


def test_what_is_much_work_counts_for_more(node: NodeHere):
    with NodeHere(node.url, rate=15.0) as slow, slow.http() as http:
        codes = [http.get("/v1/fleet/series", params={"seconds": 60}).status_code for _ in range(4)]
        assert (codes[0], codes[-1]) == (200, 429)


def _credentials(way: str, token: str, access: Access) -> dict[str, str]:
    if way == "token":
        return {"authorization": f"Bearer {token}"}
    (made,) = tokens_of(NodeSettings(token=token))  # anybody can work out the cookie of a token that is guessed
    return {"cookie": f"holdfast_session={made.session}"}


def test_the_form_is_slowed_too(guarded: NodeHere, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.node.access.GUESSES", 0.5)
    guarded.app.node.access._buckets.clear()
    with guarded.http() as http:
        codes = [http.post("/login", data={"token": f"guess-{n:016}"}).status_code for n in range(30)]
    assert codes[0] == 303
    assert codes[-1] == 429
    guarded.app.node.access._buckets.clear()


def test_callers_from_everywhere_do_not_fill_the_memory():
    access = Access(NodeSettings(token=OPERATOR))
    for number in range(20_000):
        with contextlib.suppress(Exception):
            access._limit(f"peer {number}", 5.0)
    assert len(access._buckets) <= 4096


# -- nothing tells a token --------------------------------------------------------------------------------------------


def test_no_token_in_what_is_shown_logged_or_answered(guarded: NodeHere, caplog: pytest.LogCaptureFixture):
    guarded.app.node.access._buckets.clear()
    caplog.set_level(logging.DEBUG)
    secrets = (OPERATOR, READER, WRITER, OPERATING, "wrong-token-0123456789")
    shown = []
    for token in secrets:
        with guarded.http(token) as http:
            for path in (
                "/v1/fleet",
                "/v1/nothing",
                "/v1/locks?limit=x",
                "/metrics",
                "/docs",
                "/openapi.json",
                "/audit",
            ):
                answer = http.get(path)
                shown += [answer.text, str(answer.headers)]
            shown.append(http.post("/v1/forget", json={"user": "u", "reason": "r"}).text)
    access, config = guarded.app.node.access, guarded.app.node.config
    shown += [repr(access.tokens), repr(config), str(config), repr(vars(access)), caplog.text]
    for secret in secrets:
        assert not [text for text in shown if secret in text], f"{secret} is shown"
