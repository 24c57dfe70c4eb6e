"""What is too large, too deep, too many, too slow, unknown or hostile: refused with a reason, and the node lives on."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from node_running import OPERATOR, NodeHere, good, problem, wait_until

import holdfast.sync
from holdfast.node import guard, serve
from holdfast.node.api import OPERATIONS

NFC, NFD = unicodedata.normalize("NFC", "Å"), unicodedata.normalize("NFD", "Å")
HOSTILE = [
    "a/b", "a%2Fb", "..", ".", "../x", "a\nb", "a\x00b", "{x}", "}{", "a b", "a+b", "a?b#c", "*", "%", "%zz", "\\", '"',
    "<script>", "'", NFC, NFD, "日本語", "👩‍👩‍👧", "\u202eab",
    "~a", "a:b", "stop-all", "take", "a;b=c", "a//b", "/", "x" * 512,
]  # fmt: skip


def raw(node: NodeHere, sent: bytes, *, wait: float = 5.0) -> bytes:
    """What the node answers to these bytes, until it closes or has no more."""
    host, port = node.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as line:
        line.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionResetError):  # it does not read what it does not want
            while b"}" not in found and (part := line.recv(65536)):
                found += part
        return found


def quoted(text: str) -> str:
    """For a path; dots too, which clients take for directories."""
    return quote(text, safe="").replace(".", "%2E")


def lives(http: httpx.Client) -> None:
    good(http.get("/healthz"))
    good(http.post("/v1/once/alive", json={"id": "x"}))


# -- size, depth, time ------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_by_its_length(node: NodeHere, http: httpx.Client):
    head = b"POST /v1/buffers/big/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    answer = raw(node, head + b"content-length: 67108864\r\n\r\n{")  # 64 MiB, of which none is waited for
    assert b"413" in answer.splitlines()[0]
    assert b"body-too-large" in answer
    lives(http)


def test_a_body_without_a_length_is_refused_when_it_becomes_too_large(http: httpx.Client):
    def endless() -> Iterator[bytes]:
        yield b'{"user": "u", "data": "'
        for _ in range(64):  # more than the node takes: what follows is thrown away as it comes
            yield b"x" * 1_048_576

    with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it may hang up while we are still sending
        answer = http.post("/v1/buffers/big/messages", content=endless(), headers={"content-type": "application/json"})
        problem(answer, 413, "body-too-large")
    lives(http)
    assert good(http.get("/v1/buffers/big"))["users"] == 0


@pytest.mark.parametrize("length", [b"-1", b"x", b"1, 2", b"9" * 40])
def test_a_length_that_is_none_is_refused(node: NodeHere, http: httpx.Client, length: bytes):
    head = b"POST /v1/once/s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: "
    answer = raw(node, head + length + b"\r\n\r\n{}")
    assert answer.split()[1] in (b"400", b"413")
    lives(http)


@pytest.mark.parametrize("shape", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_a_body_that_is_too_deep_is_refused(http: httpx.Client, shape: str):
    body = '{"user":"u","data":' + shape + "}"
    answer = http.post("/v1/buffers/deep/messages", content=body, headers={"content-type": "application/json"})
    assert problem(answer, answer.status_code)["status"] in (400, 422)
    lives(http)


def test_data_as_deep_as_it_may_be_is_stored_and_a_little_deeper_is_not(http: httpx.Client, hf: holdfast.sync.Holdfast):
    def nested(depth: int) -> httpx.Response:
        body = f'{{"user":"u","data":{"[" * depth}{"]" * depth}}}'
        return http.post("/v1/buffers/nest/messages", content=body, headers={"content-type": "application/json"})

    good(nested(50), 201)
    deep = nested(900)
    assert deep.status_code in (400, 422), deep.text
    assert hf.buffer("nest").stats("u").waiting == 1


def test_a_body_that_does_not_come_is_given_up(node: NodeHere, http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "SLOW_BODY", 0.2)
    head = (
        b"POST /v1/once/s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n"
    )
    answer = raw(node, head + b'{"id"')
    assert b"408" in answer.splitlines()[0]
    assert b"slow-body" in answer
    lives(http)


def test_a_body_that_drips_is_given_up(node: NodeHere, http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "SLOW_BODY", 0.5)
    head = b"POST /v1/once/s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    host, port = node.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=0.05) as line:
        line.sendall(head + b"content-length: 1000\r\n\r\n{")
        answer = b""
        for _ in range(200):  # never half a second without a byte
            with contextlib.suppress(TimeoutError):
                answer = line.recv(65536)
                break
            line.sendall(b" ")
    assert b" 408 " in answer.splitlines()[0]
    lives(http)


def test_who_hangs_up_in_the_middle_of_a_body_is_no_error(
    node: NodeHere, http: httpx.Client, caplog: pytest.LogCaptureFixture
):
    host, port = node.address.removeprefix("http://").split(":")
    head = b"POST /v1/once/s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection((host, int(port))) as line:
        line.sendall(head + b"content-length: 1000\r\n\r\n{")
    lives(http)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_who_does_not_read_is_hung_up_on(node: NodeHere, http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "SLOW_READER", 0.2)
    address = re.search(r'href="(/static/[^"]+app.css)"', http.get("/").text)
    assert address
    before = _connections(node)
    host, port = node.address.removeprefix("http://").split(":")
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((host, int(port)))
        line.settimeout(10)
        # Given somebody who asks for more than fits between the two, and reads none of it
        with contextlib.suppress(TimeoutError):
            line.sendall(f"GET {address[1]} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() * 1000)
        # expect the end, before all of it was answered
        wait_until(lambda: _connections(node) <= before)
    lives(http)


def _connections(node: NodeHere) -> int:
    """That the node has."""
    port = f":{int(node.address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


def test_a_form_to_sign_in_is_small(node: NodeHere):
    with NodeHere(node.url, token=OPERATOR) as guarded, guarded.http() as http:
        answer = http.post("/login", data={"token": "x" * 100_000})
        problem(answer, 413, "body-too-large")


def test_a_head_that_does_not_come_is_hung_up_on(node: NodeHere, http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serve, "SLOW_HEAD", 0.2)
    whole = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    host, port = node.address.removeprefix("http://").split(":")
    # Nothing; half of one; half of a second one
    for before, sent in ((b"", b""), (b"", whole[:20]), (whole, whole[:20])):
        with socket.create_connection((host, int(port)), timeout=10) as line:
            if before:
                line.sendall(before)
                assert b"200 OK" in line.recv(65536)
            line.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                while line.recv(65536):
                    pass
    # and one who has asked is not
    monkeypatch.setattr(serve, "SLOW_HEAD", 0.05)
    with node.http() as client, holdfast.sync.Holdfast(node.url) as hf, hf.lock("late"):
        problem(client.post("/v1/locks/acquire", json={"name": "late", "wait": 0.3}), 409)
    lives(http)


def test_a_slow_body_does_not_hold_up_others(node: NodeHere, http: httpx.Client):
    host, port = node.address.removeprefix("http://").split(":")
    head = (
        b"POST /v1/once/s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n"
    )
    lines = [socket.create_connection((host, int(port))) for _ in range(20)]
    try:
        for line in lines:
            line.sendall(head)
        lives(http)
    finally:
        for line in lines:
            line.close()


@pytest.mark.parametrize(
    "body",
    ["", "{", "nonsense", "NaN", '{"id": NaN}', '{"id": Infinity}', '{"id": 1e400}', '{"id": "\\ud800"}', "\ufeff{}",
     '{"id": "x"} trailing', '{"id": null}', '{"id": true}', '{"id": 1.5}', '{"id": 99999999999999999999}', "[]"],
)  # fmt: skip
def test_poisoned_json_is_refused(http: httpx.Client, body: str):
    answer = http.post("/v1/once/poison", content=body.encode(), headers={"content-type": "application/json"})
    problem(answer, 400, "wrong-body")


def test_bytes_that_are_no_text_are_refused(http: httpx.Client):
    answer = http.post("/v1/once/poison", content=b'{"id": "\xff"}', headers={"content-type": "application/json"})
    problem(answer, 400, "wrong-body")


def test_numbers_come_back_as_they_were_sent(http: httpx.Client):
    body = '{"user":"u","data":[9007199254740993,18446744073709551615,-9223372036854775808,0.1,1e300]}'
    good(http.post("/v1/buffers/exact/messages", content=body, headers={"content-type": "application/json"}), 201)
    (found,) = good(http.get("/v1/buffers/exact/users/u/messages"))
    assert found["data"] == [9007199254740993, 18446744073709551615, -9223372036854775808, 0.1, 1e300]


# -- pages and parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1/locks?limit=0", "/v1/locks?limit=1001", "/v1/locks?limit=x", "/v1/locks?limit=-1",
     "/v1/locks?offset=10001", "/v1/buffers/b/users?by=nobody", "/v1/buffers/b/users?offset=1001",
     "/v1/audit?before=1", "/v1/audit?before=%2B", "/v1/fleet/series?seconds=0", "/v1/runs/r?state=odd",
     "/v1/locks?unknown=1", "/v1/fleet?limit=1", "/v1/locks?limit=", "/v1/monitors/m/thing?source=a",
     "/v1/runs/r/x/wait?timeout=3601"],
)  # fmt: skip
def test_parameters_that_cannot_work_are_refused(http: httpx.Client, path: str):
    assert problem(http.get(path), 400)["type"].endswith(("wrong-parameter", "unknown-parameter"))


def test_unknown_fields_of_any_body_are_refused(http: httpx.Client):
    """A field that is misspelt would be left out without a word."""
    for one in OPERATIONS:
        if one.method in ("POST", "PUT"):
            path = one.path.replace("{", "").replace("}", "")
            answer = http.request(one.method, path, json={"never_a_field": 1})
            detail = problem(answer, 400, "wrong-body")["detail"]
            assert "never_a_field" in detail or "missing required" in detail, one.name


def test_other_types_of_bodies_are_refused(http: httpx.Client, hf: holdfast.sync.Holdfast):
    body = json.dumps({"user": "u", "data": 1})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"):
        headers = {"content-type": kind} if kind else {}
        problem(http.post("/v1/buffers/typed/messages", content=body, headers=headers), 415, "not-json")
    assert hf.buffer("typed").totals().users == 0
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    good(http.post("/v1/buffers/typed/messages", content=body, headers=headers), 201)


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "PUT", "TRACE", "OPTIONS", "FOO"])
def test_other_methods_are_refused_with_those_that_are_allowed(http: httpx.Client, method: str):
    answer = http.request(method, "/v1/locks/acquire")
    problem(answer, 405)
    assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


def test_what_is_not_there_is_a_problem_too(http: httpx.Client):
    for path in ("/v1", "/v1/nothing", "/v1/buffers/a/b/c/d", "/nothing", "/v1/locks/a/b"):
        problem(http.get(path), 404)


# -- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", HOSTILE)
def test_hostile_ids_are_one_to_one_in_paths_and_bodies(http: httpx.Client, hf: holdfast.sync.Holdfast, user: str):
    good(http.post("/v1/buffers/hostile/messages", json={"user": user, "data": user}), 201)
    at = f"/v1/buffers/hostile/users/{quoted(user)}"
    assert good(http.get(at))["waiting"] == 1
    assert [one["data"] for one in good(http.get(f"{at}/messages"))] == [user]
    assert [one.data for one in hf.buffer("hostile").peek(user)] == [user]
    batch = good(http.post("/v1/buffers/hostile/take", json={"user": user}))
    assert batch["user"] == user

    held = good(http.post("/v1/locks/acquire", json={"name": user}))
    info = good(http.get(f"/v1/locks/{quoted(user)}"))
    assert info["name"] == user
    assert [one["fence"] for one in info["holders"]] == [held["fence"]]
    assert hf.inspect(user).held
    assert good(http.get(f"/v1/locks/{quoted(user)}/history")) == []

    run = good(http.post("/v1/runs/hostile", json={"id": user}), 201)
    assert run["id"] == user
    assert good(http.get(f"/v1/runs/hostile/{quoted(user)}"))["id"] == user
    ended = good(http.post(f"/v1/runs/hostile/{quoted(user)}/stop", json={"reason": "x"}))
    assert ended["state"] == "stopped"

    good(http.post(f"/v1/sessions/hostile/{quoted(user)}", json={"content": user, "user": user}), 201)
    assert good(http.get("/v1/sessions/hostile", params={"user": user})) == [user]


def test_hostile_ids_do_not_meet_each_other(http: httpx.Client, hf: holdfast.sync.Holdfast):
    """After the tests above each of them has what it had, and no more."""
    names = {user: quoted(user) for user in HOSTILE}
    for user in HOSTILE:
        good(http.post("/v1/buffers/apart/messages", json={"user": user, "data": user}), 201)
    for user, path in names.items():
        assert [one["data"] for one in good(http.get(f"/v1/buffers/apart/users/{path}/messages"))] == [user]
    assert hf.buffer("apart").totals().users == len(HOSTILE)


@pytest.mark.parametrize("name", ["a/b", "..", "a\nb", "{x}", "日本語", NFC, NFD, "%2F", "a b", "x" * 64, "{a}b"])
def test_hostile_names_of_collections(http: httpx.Client, hf: holdfast.sync.Holdfast, name: str):
    at = quoted(name)
    answer = http.post(f"/v1/buffers/{at}/messages", json={"user": "u", "data": name})
    if answer.status_code == 201:
        assert [one.data for one in hf.buffer(name).peek("u")] == [name]
        assert good(http.get(f"/v1/buffers/{at}"))["users"] == 1
    else:
        problem(answer, answer.status_code)
        assert answer.status_code in (400, 422)
    once = http.post(f"/v1/once/{at}", json={"id": "x"})
    assert once.status_code in (200, 400, 422)
    if once.status_code == 200:
        assert not hf.once(name, "x")


def test_ids_that_are_too_long_or_no_text_are_refused(http: httpx.Client):
    for path in (f"/v1/locks/{'x' * 513}", f"/v1/locks/{quote('ü' * 257)}", "/v1/locks/%ff", "/v1/locks/%ed%a0%80"):
        problem(http.get(path), 422, "invalid-id")
    problem(http.post("/v1/locks/acquire", json={"name": "ü" * 257}), 422, "invalid-id")
    problem(http.post("/v1/locks/acquire", json={"name": "x" * 513}), 400, "wrong-body")
    problem(http.get(f"/v1/locks/{'x' * 40_000}"), 422, "invalid-id")


def test_a_path_that_is_far_too_long_is_refused(node: NodeHere, http: httpx.Client):
    answer = raw(node, b"GET /v1/locks/" + b"x" * 200_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    assert b"400" in answer.splitlines()[0] if answer else True
    lives(http)


def test_names_from_outside_do_not_fill_the_memory(node: NodeHere, http: httpx.Client):
    from holdfast.node import state

    for number in range(8):
        good(http.get(f"/v1/buffers/many-{number}"))
    before, state.KNOWN = state.KNOWN, 5
    try:
        for number in range(8, 20):
            good(http.get(f"/v1/buffers/many-{number}"))
        assert len(node.app.node._known) <= 5
    finally:
        state.KNOWN = before


def test_an_answer_does_not_wait_for_nagle(http: httpx.Client):
    """Head and body are two writes: with Nagle's algorithm the second waits for a delayed acknowledgement."""
    quickest = min(http.get("/healthz").elapsed.total_seconds() for _ in range(20))
    assert quickest < 0.03, "each answer took 40 ms"
