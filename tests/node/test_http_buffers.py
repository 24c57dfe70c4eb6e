"""Buffers over HTTP: what was appended there is in the library, and a batch that was taken there is nobody else's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from node_running import NodeHere, good, problem, wait_until

import holdfast.sync
from holdfast import NotAcquired


def test_a_message_sent_over_http_is_taken_and_acknowledged_there(http: httpx.Client, hf: holdfast.sync.Holdfast):
    appended = good(http.post("/v1/buffers/one/messages", json={"user": "u", "data": {"text": "hello"}}), 201)
    assert appended["ids"] == [appended["id"]]
    assert appended["length"] == 1
    assert appended["dropped"] == {}
    assert [message.data for message in hf.buffer("one").peek("u")] == [{"text": "hello"}]

    batch = good(http.post("/v1/buffers/one/take", json={"user": "u", "lease": 30}))
    assert [message["data"] for message in batch["messages"]] == [{"text": "hello"}]
    assert batch["messages"][0]["id"] == appended["id"]
    assert 29 < batch["seconds"] <= 30
    assert batch["attempt"] == 1
    with pytest.raises(NotAcquired):  # the library respects it
        hf.buffer("one").take("u")

    done = {"user": "u", "token": batch["token"], "fence": batch["fence"]}
    assert good(http.post("/v1/buffers/one/ack", json=done)) == {"left": 0}
    assert good(http.post("/v1/buffers/one/ack", json=done)) == {"left": 0}, "safe to repeat"
    stats = hf.buffer("one").stats("u")
    assert (stats.waiting, stats.in_flight) == (0, 0)
    assert hf.buffer("one").totals().counts["absorbed"] == 1


def test_several_messages_in_one_step_and_some_of_them_acknowledged(http: httpx.Client, hf: holdfast.sync.Holdfast):
    ids = good(http.post("/v1/buffers/part/messages", json={"user": "u", "items": [1, 2, 3]}), 201)["ids"]
    batch = good(http.post("/v1/buffers/part/take", json={"user": "u"}))
    held = {"user": "u", "token": batch["token"], "fence": batch["fence"]}
    assert good(http.post("/v1/buffers/part/ack", json={**held, "ids": ids[:2]})) == {"left": 1}
    stats = good(http.get("/v1/buffers/part/users/u"))
    assert stats["in_flight"] == 1
    assert stats["held"]
    assert good(http.post("/v1/buffers/part/nack", json={"user": "u", "token": batch["token"]})) == {"dead": False}
    again = good(http.post("/v1/buffers/part/take", json={"user": "u"}))
    assert [message["data"] for message in again["messages"]] == [3]
    assert again["id"] == batch["id"]
    assert again["fence"] > batch["fence"]
    problem(http.post("/v1/buffers/part/ack", json=held), 409, "lease-lost")
    assert hf.buffer("part").stats("u").in_flight == 1, "a stale ack removed a message"


def test_a_batch_lasts_while_it_is_renewed_and_is_handed_out_again_after(
    http: httpx.Client, hf: holdfast.sync.Holdfast
):
    good(http.post("/v1/buffers/lease/messages", json={"user": "u", "data": 1}), 201)
    batch = good(http.post("/v1/buffers/lease/take", json={"user": "u", "lease": 0.2}))
    held = {"user": "u", "token": batch["token"]}
    until = good(http.post("/v1/buffers/lease/renew", json={**held, "lease": 60}))
    assert 59 < until["seconds"] <= 60
    assert hf.buffer("lease").stats("u").free_in > 50
    good(http.post("/v1/buffers/lease/renew", json={**held, "lease": 0.05}))
    again = wait_until(lambda: _taken(http, "lease"))
    assert again["attempt"] == 2
    problem(http.post("/v1/buffers/lease/renew", json=held), 409, "lease-lost")
    problem(http.post("/v1/buffers/lease/nack", json=held), 409, "lease-lost")


def _taken(http: httpx.Client, name: str) -> dict | None:
    answer = http.post(f"/v1/buffers/{name}/take", json={"user": "u"})
    return answer.json() if answer.status_code == 200 else None


def test_whoever_waits_longest_is_taken_and_nobody_is_204(http: httpx.Client):
    for user in ("first", "second"):
        good(http.post("/v1/buffers/any/messages", json={"user": user, "data": user}), 201)
    users = [good(http.post("/v1/buffers/any/take", json={}))["user"] for _ in range(2)]
    assert users == ["first", "second"]
    assert http.post("/v1/buffers/any/take", json={}).status_code == 204
    assert http.post("/v1/buffers/any/take", json={}).content == b""
    problem(http.post("/v1/buffers/any/take", json={"user": "first"}), 409, "not-acquired")
    assert http.post("/v1/buffers/any/take", json={"user": "nobody"}).status_code == 204


def test_a_batch_that_was_given_back_or_left_is_found_by_whoever_takes_next(http: httpx.Client):
    """Not only by those who ask for its user: workers do not know whose it was."""
    good(http.post("/v1/buffers/again/messages", json={"user": "u", "data": 1}), 201)
    batch = good(http.post("/v1/buffers/again/take", json={}))
    good(http.post("/v1/buffers/again/nack", json={"user": "u", "token": batch["token"]}))
    second = good(http.post("/v1/buffers/again/take", json={"lease": 0.1}))
    assert second["id"] == batch["id"]
    third = wait_until(lambda: _anybody(http, "again"), within=5, what="a batch that its worker left")
    assert (third["id"], third["attempt"]) == (batch["id"], 3)


@pytest.mark.parametrize("user", [None, "u"])
def test_who_takes_may_wait_for_something(node: NodeHere, hf: holdfast.sync.Holdfast, user: str | None):
    buffer, body = hf.buffer(f"wait-{user}"), {"user": user, "wait": 5}
    with node.http() as http, ThreadPoolExecutor() as threads:
        # Given nothing, expect to wait no longer than was asked for
        began = time.monotonic()
        assert http.post(f"/v1/buffers/{buffer.name}/take", json={**body, "wait": 0.3}).status_code == 204
        assert time.monotonic() - began > 0.25
        # when something comes meanwhile, expect it
        asking = threads.submit(http.post, f"/v1/buffers/{buffer.name}/take", json=body)
        time.sleep(0.3)  # it waits by now; if not, it finds it at once
        buffer.append("u", "came late")
        assert [one["data"] for one in good(asking.result())["messages"]] == ["came late"]


def test_who_leaves_while_waiting_takes_nothing(node: NodeHere, hf: holdfast.sync.Holdfast):
    buffer = hf.buffer("left")
    with node.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/buffers/left/take", json={"wait": 5}, timeout=0.3)
    buffer.append("u", 1)
    batch = buffer.take("u")
    assert batch is not None
    batch.ack()


def _anybody(http: httpx.Client, name: str) -> dict | None:
    answer = http.post(f"/v1/buffers/{name}/take", json={})
    return answer.json() if answer.status_code == 200 else None


def test_a_batch_that_always_fails_goes_to_the_dead_letters_and_comes_back(
    http: httpx.Client, hf: holdfast.sync.Holdfast
):
    good(http.post("/v1/buffers/sour/messages", json={"user": "u", "data": {"n": 7}}), 201)
    for attempt in range(1, 6):
        batch = good(http.post("/v1/buffers/sour/take", json={"user": "u"}))
        assert batch["attempt"] == attempt
        back = good(http.post("/v1/buffers/sour/nack", json={"user": "u", "token": batch["token"], "error": "sour"}))
        assert back == {"dead": attempt == 5}
    (letter,) = good(http.get("/v1/buffers/sour/dead"))
    assert (letter["user"], letter["error"], letter["attempts"], letter["count"]) == ("u", "sour", 5, 1)
    assert letter["messages"] == [], "messages are not in the list: it needs the scope read only"
    at = f"/v1/buffers/sour/dead/{letter['id']}"
    assert [message["data"] for message in good(http.get(at))["messages"]] == [{"n": 7}]
    assert good(http.post(f"{at}/replay", json={"reason": "mended"})) == {"messages": 1}
    problem(http.post(f"{at}/replay", json={"reason": "mended"}), 404, "no-letter")
    problem(http.get(at), 404, "no-letter")
    again = good(http.post("/v1/buffers/sour/take", json={"user": "u"}))
    assert again["attempt"] == 1
    hf.buffer("sour").forget("u")


def test_a_dead_letter_can_be_thrown_away(http: httpx.Client, hf: holdfast.sync.Holdfast):
    hf.buffer("waste").append("u", 1)
    for _ in range(5):
        hf.buffer("waste").take("u").nack(error="no")
    (letter,) = good(http.get("/v1/buffers/waste/dead"))
    assert good(http.post(f"/v1/buffers/waste/dead/{letter['id']}/purge", json={"reason": "useless"}))["messages"] == 1
    assert hf.buffer("waste").dead_letters() == []
    assert http.get("/v1/buffers/waste/dead/nonsense").status_code in (400, 404, 422)


def test_attachments_come_later_and_pairs_go_with_the_messages(http: httpx.Client, hf: holdfast.sync.Holdfast):
    body = {"user": "u", "data": "with a file", "pending": {"file": 600}}
    message = good(http.post("/v1/buffers/files/messages", json=body), 201)["id"]
    assert http.post("/v1/buffers/files/take", json={"user": "u"}).status_code == 204, "it is not complete"
    given = {"user": "u", "message": message, "name": "file", "data": {"size": 3}}
    assert good(http.post("/v1/buffers/files/attachments", json=given)) == {"in_time": True}
    problem(http.post("/v1/buffers/files/attachments", json={**given, "message": "1-1"}), 422, "invalid-id")
    assert good(http.post("/v1/buffers/files/pairs", json={"user": "u", "said": "hi", "answered": "yes"}))["pairs"] == 1
    batch = good(http.post("/v1/buffers/files/take", json={"user": "u"}))
    assert batch["messages"][0]["attachments"] == {"file": {"size": 3}}
    assert [(pair["user"], pair["assistant"]) for pair in batch["pairs"]] == [("hi", "yes")]
    good(http.post("/v1/buffers/files/ack", json={"user": "u", "token": batch["token"], "fence": batch["fence"]}))
    assert good(http.post("/v1/buffers/files/attachments", json=given)) == {"in_time": False}, "it is absorbed"

    failed = good(http.post("/v1/buffers/fails/messages", json=body), 201)["id"]
    gone = {"user": "u", "message": failed, "name": "file", "failed": True}
    assert good(http.post("/v1/buffers/fails/attachments", json=gone)) == {"in_time": True}
    assert good(http.post("/v1/buffers/fails/take", json={"user": "u"}))["messages"][0]["data"] == "with a file"


def test_numbers_of_a_buffer_and_of_its_users(http: httpx.Client, hf: holdfast.sync.Holdfast):
    buffer = hf.buffer("numbers")
    for user, count in (("small", 3), ("large", 70), ("middle", 20)):
        buffer.extend(user, range(count))
        wait_until(lambda user=user: buffer.stats(user).age > 0.01)
    totals = good(http.get("/v1/buffers/numbers"))
    assert totals["users"] == 3
    assert totals["oldest"] > 0
    largest = good(http.get("/v1/buffers/numbers/users", params={"by": "largest"}))
    assert [one["user"] for one in largest] == ["large", "middle"], "those with 16 and more"
    oldest = good(http.get("/v1/buffers/numbers/users", params={"by": "oldest", "limit": 2}))
    assert [one["user"] for one in oldest] == ["small", "large"]
    rest = good(http.get("/v1/buffers/numbers/users", params={"limit": 2, "offset": 2}))
    assert [(one["user"], one["waiting"]) for one in rest] == [("middle", 20)]
    assert len(good(http.get("/v1/buffers/numbers/users/large/messages", params={"limit": 7}))) == 7
    stats = good(http.get("/v1/buffers/numbers/users/large"))
    assert (stats["waiting"], stats["in_flight"], stats["held"]) == (70, 0, False)
    assert good(http.post("/v1/buffers/numbers/flush", json={"user": "large"})) == {"flushed": True}
    assert good(http.post("/v1/buffers/numbers/flush", json={"user": "nobody"})) == {"flushed": False}


def test_what_is_too_much_is_dropped_and_said(http: httpx.Client):
    first = good(http.post("/v1/buffers/full/messages", json={"user": "u", "items": list(range(100))}), 201)
    assert first["length"] == 100
    more = good(http.post("/v1/buffers/full/messages", json={"user": "u", "data": "newest"}), 201)
    assert more["dropped"] == {"capacity": 1}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"user": "u"}, 400), ({"user": "u", "data": 1, "items": [1]}, 400), ({"user": "", "data": 1}, 400),
        ({"data": 1}, 400), ({"user": "u", "items": []}, 400), ({"user": 7, "data": 1}, 400),
        ({"user": "u", "data": 1, "surprise": 1}, 400), ({"user": "u", "items": [1], "pending": {"f": 1}}, 400),
        ({"user": "u", "data": "x" * 1_100_000}, 413), ([], 400), ("text", 400), (None, 415),
        ({"user": "ü" * 300, "data": 1}, 422),
    ],
)  # fmt: skip
def test_a_body_that_cannot_work_is_refused_and_stores_nothing(
    http: httpx.Client, hf: holdfast.sync.Holdfast, body: object, status: int
):
    problem(http.post("/v1/buffers/refused/messages", json=body), status)
    assert hf.buffer("refused").totals().users == 0


def test_the_fleet_knows_the_buffers_that_were_named_over_http(http: httpx.Client, node: NodeHere):
    good(http.post("/v1/buffers/named/messages", json={"user": "u", "data": 1}), 201)
    wait_until(lambda: "named" in [one["name"] for one in http.get("/v1/buffers").json()])
