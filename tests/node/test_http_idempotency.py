"""Idempotency keys: the same key is the same answer, and the work is done once, also when both come at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from node_running import NodeHere, good, problem, wait_until

import holdfast.sync
from holdfast import Buffer, Indeterminate
from holdfast.node import serve
from holdfast.node.api import OPERATIONS

KEYS = (f"key-{number}" for number in count())


def keyed(http: httpx.Client, path: str, body: dict, key: str) -> httpx.Response:
    return http.post(path, json=body, headers={"idempotency-key": key})


def test_the_same_key_answers_the_same_and_is_done_once(http: httpx.Client, hf: holdfast.sync.Holdfast):
    key, body = next(KEYS), {"user": "u", "data": 1}
    first = keyed(http, "/v1/buffers/keyed/messages", body, key)
    again = keyed(http, "/v1/buffers/keyed/messages", body, key)
    good(first, 201)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["content-type"] == first.headers["content-type"] == "application/json"
    assert hf.buffer("keyed").stats("u").waiting == 1
    good(keyed(http, "/v1/buffers/keyed/messages", body, next(KEYS)), 201)
    assert hf.buffer("keyed").stats("u").waiting == 2


def test_many_at_once_with_one_key_are_one(node: NodeHere, hf: holdfast.sync.Holdfast):
    key, body = next(KEYS), {"user": "u", "data": 1}
    with node.http() as http, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: keyed(http, "/v1/buffers/crowd/messages", body, key).text, range(16)))
    assert len(set(answers)) == 1
    assert hf.buffer("crowd").stats("u").waiting == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/buffers/other/messages", {"user": "u", "data": 2}),
        ("/v1/buffers/another/messages", {"user": "u", "data": 1}),
        ("/v1/buffers/other/pairs", {"user": "u", "said": 1, "answered": 1}),
    ],
)
def test_a_key_that_was_used_with_another_request_is_refused(
    http: httpx.Client, hf: holdfast.sync.Holdfast, path: str, body: dict
):
    key = next(KEYS)
    good(keyed(http, "/v1/buffers/other/messages", {"user": "u", "data": 1}, key), 201)
    before = hf.buffer("other").stats("u").waiting
    problem(keyed(http, path, body, key), 422, "key-mismatch")
    assert hf.buffer("other").stats("u").waiting == before


@pytest.mark.parametrize(("one", "other"), [("a%3Fx", "a%3Fy"), ("a%23x", "a%23y"), ("a%2Ffilter", "a%2ffilte")])
def test_ids_that_look_alike_when_decoded_are_told_apart(http: httpx.Client, one: str, other: str):
    key = next(KEYS)
    assert good(keyed(http, f"/v1/once/{one}", {"id": 1}, key)) == {"new": True}
    problem(keyed(http, f"/v1/once/{other}", {"id": 1}, key), 422, "key-mismatch")


def test_what_failed_is_tried_again_with_the_same_key(http: httpx.Client, hf: holdfast.sync.Holdfast):
    key = next(KEYS)
    hf.runs("busy").start("first", key="k")
    body = {"id": "second", "key": "k"}
    problem(keyed(http, "/v1/runs/busy", body, key), 409, "run-active")
    hf.runs("busy").stop("first", "out of the way")
    started = good(keyed(http, "/v1/runs/busy", body, key), 201)
    hf.runs("busy").stop("second", "so that it is another one now")
    assert good(keyed(http, "/v1/runs/busy", body, key), 201) == started, "the first answer, and not a new one"

    key = next(KEYS)
    missing = "/v1/monitors/keyed/dead/1-1/replay"
    for _ in range(2):
        problem(keyed(http, missing, {"reason": "x"}, key), 404, "no-letter")


def test_a_key_that_cannot_be_one_is_refused(http: httpx.Client, hf: holdfast.sync.Holdfast):
    body = {"user": "u", "data": 1}
    for key in ("", "x" * 256):
        problem(keyed(http, "/v1/buffers/badkey/messages", body, key), 400)
    assert hf.buffer("badkey").totals().users == 0
    good(keyed(http, "/v1/buffers/badkey/messages", body, "x" * 255), 201)


def test_an_answer_without_a_body_is_repeated_as_such(http: httpx.Client):
    """Operations that may answer nothing take no key, so there is no 204 to repeat; this holds for what will be."""
    assert not [one.name for one in OPERATIONS if one.repeatable and (one.empty or one.answer is None)]


def test_every_post_takes_a_key_or_is_safe_to_repeat():
    """Taking answers a token, which is not stored; renewing and forgetting are the same twice, and what could not be
    forgotten must not be answered from memory."""
    without = {one.name for one in OPERATIONS if one.method == "POST" and not one.repeatable}
    assert without == {"buffers_take", "buffers_renew", "locks_acquire", "locks_renew", "fleet_forget"}


def test_the_same_body_in_other_words_is_the_same(http: httpx.Client, hf: holdfast.sync.Holdfast):
    at, headers = "/v1/buffers/words/messages", {"idempotency-key": "words", "content-type": "application/json"}
    sent = ['{"user":"u","data":{"a":1,"b":[2]}}', '{ "data": {"b": [2], "a": 1}, "user": "\\u0075" }']
    first, again = (good(http.post(at, content=text, headers=headers), 201) for text in sent)
    assert first == again
    problem(http.post(at, content='{"user":"u","data":{"a":1,"b":[3]}}', headers=headers), 422)
    assert hf.buffer("words").stats("u").waiting == 1


def test_an_answer_that_is_too_large_to_keep_is_given_once(http: httpx.Client, hf: holdfast.sync.Holdfast):
    ids = [f"{number:0400}" for number in range(3000)]
    first = keyed(http, "/v1/once/large/filter", {"ids": ids}, "large")
    assert len(good(first)["new"]) == 3000
    problem(keyed(http, "/v1/once/large/filter", {"ids": ids}, "large"), 409, "answer-not-kept")
    assert hf.filter_new("large", ids) == []


def test_no_operation_that_answers_a_token_stores_it():
    for one in OPERATIONS:
        assert not (one.repeatable and "token" in getattr(one.answer, "__struct_fields__", ())), one.name


def test_a_key_that_is_tried_again_at_the_next_node_is_done_once(tmp_path: Path):
    """The node is stopped in the middle of many requests; whoever got no answer asks the next one again."""
    url = f"embedded://{tmp_path}/server"
    wide = {"capacity": 1000}
    nodes = [NodeHere(url, settings=wide).start()]

    def send(number: int) -> None:
        for _ in range(200):
            try:
                with nodes[-1].http() as http:
                    answer = keyed(http, "/v1/buffers/moved/messages", {"user": "u", "data": number}, f"m-{number}")
                if answer.status_code == 201:
                    return
                assert answer.status_code == 503, answer.text
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError("no answer")

    with holdfast.sync.Holdfast(url, capacity=1000) as hf:
        for round_ in range(4):
            with ThreadPoolExecutor(8) as pool:
                sending = [pool.submit(send, round_ * 40 + number) for number in range(40)]
                wait_until(lambda sending=sending: any(one.done() for one in sending))
                nodes[-1].stop()
                nodes.append(NodeHere(url, settings=wide).start())
                for one in sending:
                    one.result()
        nodes[-1].stop()
        found = sorted(message.data for message in hf.buffer("moved", capacity=1000).peek("u", 1000))
    assert found == list(range(160)), "something was done twice, or not at all"


def test_what_may_have_been_done_is_not_done_again_with_the_same_key(
    http: httpx.Client, hf: holdfast.sync.Holdfast, monkeypatch: pytest.MonkeyPatch
):
    real = Buffer.append

    async def lost(self: Buffer, *args: Any, **more: Any) -> Any:
        await real(self, *args, **more)
        raise Indeterminate("find out whether it happened")

    with monkeypatch.context() as patched:
        patched.setattr(Buffer, "append", lost)
        problem(keyed(http, "/v1/buffers/unknown/messages", {"user": "u", "data": 1}, "unknown"), 504, "indeterminate")
    problem(keyed(http, "/v1/buffers/unknown/messages", {"user": "u", "data": 1}, "unknown"), 504, "indeterminate")
    assert hf.buffer("unknown").stats("u").waiting == 1


def test_what_has_begun_goes_on_to_its_end_when_the_node_is_stopped(
    node: NodeHere, http: httpx.Client, hf: holdfast.sync.Holdfast, monkeypatch: pytest.MonkeyPatch
):
    """Cut in the middle it would give its key back, and the next node would do it again."""
    real, begun = Buffer.append, threading.Event()

    async def slow(self: Buffer, *args: Any, **more: Any) -> Any:
        found = await real(self, *args, **more)
        begun.set()
        await asyncio.sleep(1.5)
        return found

    monkeypatch.setattr(serve, "LEAVE", 1)
    body = {"user": "u", "data": 1}
    with monkeypatch.context() as patched, ThreadPoolExecutor() as threads:
        patched.setattr(Buffer, "append", slow)
        # Given a node that ends sooner than a request that has begun
        with NodeHere(node.url) as stopped, stopped.http() as other:
            other.timeout = httpx.Timeout(3)
            asking = threads.submit(keyed, other, "/v1/buffers/begun/messages", body, "begun")
            assert begun.wait(10)
        with contextlib.suppress(httpx.HTTPError):
            asking.result()
    # expect the next one to know what came of it
    assert good(keyed(http, "/v1/buffers/begun/messages", body, "begun"), 201)["length"] == 1
    assert hf.buffer("begun").stats("u").waiting == 1
