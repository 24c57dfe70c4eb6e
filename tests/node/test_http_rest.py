"""Sessions, once, gates, monitors, the fleet and forgetting a user over HTTP, held against the library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from node_running import NodeHere, good, problem, sqlite, wait_until, working

import holdfast
import holdfast.sync
from holdfast.memory import MonitorStore

WEBHOOK = {"sink": "webhook", "target": "https://hooks.example.org/in", "secret": "never-told-0123"}


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_short_term_memory_is_saved_read_and_cleared(http: httpx.Client, hf: holdfast.sync.Holdfast):
    at = "/v1/sessions/chat/s1"
    saved = good(http.post(at, json={"content": "hello", "user": "u", "ttl": 60}), 201)
    assert saved["count"] == 1
    call = {"content": None, "role": "assistant", "tool_calls": [{"id": "c1"}], "extra": {"model": "m"}}
    good(http.post(at, json=call), 201)
    found = good(http.get(at))
    assert [(one["role"], one["content"]) for one in found["entries"]] == [("user", "hello"), ("assistant", None)]
    assert found["entries"][1]["tool_calls"] == [{"id": "c1"}]
    assert found["entries"][1]["extra"] == {"model": "m"}
    assert found["unreadable"] == 0
    assert [one.content for one in hf.sessions("chat").context("s1")] == ["hello", None]
    assert len(good(http.get(at, params={"limit": 1}))["entries"]) == 1
    assert good(http.get("/v1/sessions/chat", params={"user": "u"})) == ["s1"]
    assert good(http.post(f"{at}/clear", json={"reason": "asked to"})) == {"entries": 2}
    assert hf.sessions("chat").count("s1") == 0
    assert good(http.get(at)) == {"entries": [], "unreadable": 0, "newer": 0}
    problem(http.get("/v1/sessions/chat"), 400, "wrong-parameter")


# -- once, filter, gates ----------------------------------------------------------------------------------------------


def test_each_id_is_new_once_for_http_and_library_together(http: httpx.Client, hf: holdfast.sync.Holdfast):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/once/mail", json={"id": "m-1"}).json()["new"], range(16)))
    assert sorted(answers) == [False] * 15 + [True]
    assert not hf.once("mail", "m-1")
    assert hf.once("mail", 7)
    assert good(http.post("/v1/once/mail/filter", json={"ids": ["m-1", "m-2", 7, 8, "m-2"]})) == {"new": ["m-2", 8]}
    assert good(http.post("/v1/once/mail/forget", json={"ids": ["m-1", "m-9"]})) == {"known": 1}
    assert hf.once("mail", "m-1")
    assert good(http.post("/v1/once/mail", json={"id": "short", "within": 0.001})) == {"new": True}
    wait_until(lambda: http.post("/v1/once/mail", json={"id": "short", "within": 0.001}).json()["new"])


def test_a_gate_lets_changes_through_and_says_why(http: httpx.Client, hf: holdfast.sync.Holdfast):
    def check(state: object, **more: object) -> dict:
        return good(http.post("/v1/gates/price", json={"key": "k", "state": state, **more}))

    assert check({"p": 1}) == {"notify": True, "reason": "first", "previous": None}
    assert check({"p": 1})["reason"] == "unchanged"
    assert check({"p": 2}) == {"notify": True, "reason": "changed", "previous": {"p": 1}}
    assert hf.gate("price").check("k", {"p": 2}).reason == "unchanged"
    other = good(http.post("/v1/gates/price", json={"key": "f", "state": {"p": 1, "noise": 1}, "fields": ["p"]}))
    assert other["reason"] == "first"
    again = good(http.post("/v1/gates/price", json={"key": "f", "state": {"p": 1, "noise": 2}, "fields": ["p"]}))
    assert not again["notify"]


# -- monitors ---------------------------------------------------------------------------------------------------------


def test_what_is_observed_changes_and_is_remembered(http: httpx.Client, hf: holdfast.sync.Holdfast, node: NodeHere):
    def observe(*states: object) -> list[dict]:
        body = {"observations": [{"source": "web", "key": "page", "state": state} for state in states]}
        return good(http.post("/v1/monitors/sites/observe", json=body))

    assert [one["outcome"] for one in observe({"v": 1}, {"v": 1}, {"v": 2})] == ["first", "unchanged", "changed"]
    which = {"source": "web", "key": "page"}
    assert good(http.get("/v1/monitors/sites/thing", params=which)) == {"state": {"v": 2}}
    assert hf.monitor("sites").get("web", "page") == {"v": 2}
    assert good(http.get("/v1/monitors/sites/thing", params={**which, "key": "none"})) == {"state": None}
    changes = good(http.get("/v1/monitors/sites/changes"))
    assert [(one["kind"], one["after"]) for one in changes] == [("changed", {"v": 2}), ("first", {"v": 1})]
    assert len(good(http.get("/v1/monitors/sites/changes", params={"limit": 1}))) == 1
    assert good(http.get("/v1/monitors/sites"))["changes"] == 2
    assert good(http.get("/v1/monitors/sites/history", params=which)) == [], "nobody works on it, so nothing is kept"
    late = {"observations": [{"source": "web", "key": "page", "state": {"v": 0}, "observed_at": 1.0}]}
    assert good(http.post("/v1/monitors/sites/observe", json=late))[0]["outcome"] == "older"
    pair = {"observations": [{"source": "web", "key": ["a", 1], "state": 1}]}
    assert good(http.post("/v1/monitors/sites/observe", json=pair))[0]["outcome"] == "first"
    assert hf.monitor("sites").get("web", ("a", 1)) == 1
    forgotten = {"source": "web", "key": "page", "reason": "moved"}
    assert good(http.post("/v1/monitors/sites/forget", json=forgotten)) == {"done": True}
    assert good(http.post("/v1/monitors/sites/forget", json=forgotten)) == {"done": False}
    assert observe({"v": 3})[0]["outcome"] == "first"


def test_subscribers_are_kept_and_their_secrets_never_answered(http: httpx.Client, node: NodeHere):
    at = "/v1/monitors/told/subscribers"
    assert good(http.put(f"{at}/ops", json={**WEBHOOK, "sources": ["web"], "first": True})) == {"done": True}
    answer = http.get(at)
    (one,) = good(answer)
    assert (one["name"], one["sink"], one["sources"], one["first"]) == ("ops", "webhook", ["web"], True)
    assert "example" not in answer.text
    assert "never-told" not in answer.text
    assert good(http.put(f"{at}/ops", json={**WEBHOOK, "interval": 60}))["done"]
    assert [one["interval"] for one in good(http.get(at))] == [60]
    assert good(http.get("/v1/monitors/told/pushes")) == []
    assert good(http.get("/v1/monitors/told/dead")) == []
    problem(http.post("/v1/monitors/told/dead/1-1/replay", json={"reason": "x"}), 404, "no-letter")
    problem(http.post("/v1/monitors/told/dead/1-1/purge", json={"reason": "x"}), 404, "no-letter")
    assert good(http.post(f"{at}/ops/remove", json={"reason": "gone"})) == {"done": True}
    assert good(http.post(f"{at}/ops/remove", json={"reason": "gone"})) == {"done": False}
    assert good(http.get(at)) == []
    log = http.get("/v1/audit", params={"limit": 1000})
    assert {"subscribe", "unsubscribe"} <= {one["action"] for one in good(log)}
    assert "never-told" not in log.text


def test_history_pushes_and_dead_letters_of_a_monitor_that_is_worked_on(http: httpx.Client, node: NodeHere):
    heard: list[object] = []
    broken = True

    def told(delivery: holdfast.Delivery) -> None:
        if broken:
            raise ValueError("not now")
        heard.extend(change.after for change in delivery.changes)

    store = MonitorStore(node.store).open()
    with holdfast.sync.Holdfast(node.url, sweep=0.2) as worker:
        worker.monitor("live", store=store).subscriber("ops", first=True, retries=0)(told)
        with working(worker):
            wait_until(lambda: good(http.get("/v1/monitors/live/subscribers")))
            body = {"observations": [{"source": "web", "key": "page", "state": {"v": 1}}]}
            good(http.post("/v1/monitors/live/observe", json=body))
            (letter,) = wait_until(lambda: good(http.get("/v1/monitors/live/dead")), within=20)
            assert (letter["subscriber"], letter["changes"]) == ("ops", 1)
            which = {"source": "web", "key": "page"}
            (snapshot,) = wait_until(lambda: good(http.get("/v1/monitors/live/history", params=which)))
            assert (snapshot["kind"], snapshot["state"]) == ("first", {"v": 1})
            broken = False
            at = f"/v1/monitors/live/dead/{letter['id']}"
            assert good(http.post(f"{at}/replay", json={"reason": "mended"})) == {"changes": 1}
            wait_until(lambda: heard == [{"v": 1}], within=20)
            pushes = wait_until(lambda: good(http.get("/v1/monitors/live/pushes", params={"subscriber": "ops"})))
            assert {one["subscriber"] for one in pushes} == {"ops"}
            problem(http.post(f"{at}/replay", json={"reason": "mended"}), 404, "no-letter")
    store.close()


@pytest.mark.parametrize("target", ["http://127.0.0.1/x", "http://169.254.169.254/latest", "file:///etc/passwd"])
def test_a_subscriber_in_a_private_network_is_refused(http: httpx.Client, target: str):
    answer = http.put("/v1/monitors/told/subscribers/inside", json={**WEBHOOK, "target": target})
    assert answer.status_code in (400, 422), answer.text
    assert target not in answer.text, "an address may be a secret"


def test_a_subscriber_may_be_where_the_node_is_told_to_allow(node: NodeHere, tmp_path: Path):
    allowed = {"monitors": {"near": {"allow": ["127.0.0.1"]}}}
    with NodeHere(node.url, sqlite(tmp_path), collections=allowed) as open_hearted, open_hearted.http() as http:
        near = {**WEBHOOK, "target": "http://127.0.0.1:9/x"}
        good(http.put("/v1/monitors/near/subscribers/inside", json=near))
        assert http.put("/v1/monitors/far/subscribers/inside", json=near).status_code == 400


def test_a_node_without_a_store_says_what_is_missing(node: NodeHere):
    with NodeHere(node.url) as bare, bare.http() as http:
        answer = http.put("/v1/monitors/bare/subscribers/ops", json=WEBHOOK)
        assert "store" in problem(answer, 400)["detail"]
        assert "store" in problem(http.get("/v1/monitors/bare/history?source=a&key=b"), 400)["detail"]


# -- the fleet, and forgetting ----------------------------------------------------------------------------------------


def test_the_fleet_is_told_with_what_it_did(http: httpx.Client, node: NodeHere):
    good(http.post("/v1/locks/acquire", json={"name": "counted"}))
    wait_until(lambda: good(http.get("/v1/fleet"))["totals"].get("granted"))
    found = good(http.get("/v1/fleet"))
    assert [one["label"] for one in found["processes"] if one["alive"]] == ["node"]
    series = good(http.get("/v1/fleet/series", params={"seconds": 60}))
    assert series["step"] == 10
    assert sum(slot["counts"].get("granted", 0) for slot in series["slots"]) == found["totals"]["granted"]
    assert good(http.get("/v1/fleet/series", params={"seconds": 7200}))["step"] == 300
    problem(http.get("/v1/fleet/series", params={"seconds": 200_000}), 400)


def test_a_user_is_forgotten_everywhere(http: httpx.Client, hf: holdfast.sync.Holdfast):
    for name in ("left", "right"):
        hf.buffer(name).append("gone", 1)
        hf.buffer(name).append("stays", 1)
    taken = hf.buffer("left").take("gone")
    hf.sessions("talk").save("s-gone", "hello", user="gone")
    body = {"user": "gone", "reason": "asked to be forgotten", "buffers": ["left", "right"], "sessions": ["talk"]}
    done = good(http.post("/v1/forget", json=body))
    assert done["failed"] == {}
    assert done["sessions"] == {"talk": 1}
    assert done["fences"]["left"] > taken.fence
    for name in ("left", "right"):
        assert hf.buffer(name).stats("gone").waiting == 0
        assert hf.buffer(name).stats("gone").in_flight == 0
        assert hf.buffer(name).stats("stays").waiting == 1
    assert hf.sessions("talk").count("s-gone") == 0
    entry = good(http.get("/v1/audit", params={"limit": 1}))[0]
    assert (entry["action"], entry["target"], entry["reason"]) == ("forget", "user:gone", "asked to be forgotten")
    assert entry["outcome"] == "2 buffers, 1 sessions, 0 failed"


def test_without_names_a_user_is_forgotten_in_all_that_the_fleet_uses(http: httpx.Client, hf: holdfast.sync.Holdfast):
    good(http.post("/v1/buffers/known/messages", json={"user": "everywhere", "data": 1}), 201)
    good(http.post("/v1/sessions/known/s", json={"content": 1, "user": "everywhere"}), 201)
    wait_until(lambda: {"known"} <= {one["name"] for one in http.get("/v1/sessions").json()})
    wait_until(lambda: {"known"} <= {one["name"] for one in http.get("/v1/buffers").json()})
    done = good(http.post("/v1/forget", json={"user": "everywhere", "reason": "asked"}))
    assert done["sessions"]["known"] == 1
    assert hf.buffer("known").stats("everywhere").waiting == 0


def test_a_collection_that_cannot_be_is_said_and_the_rest_is_forgotten(http: httpx.Client, hf: holdfast.sync.Holdfast):
    hf.buffer("fine").append("partly", 1)
    body = {"user": "partly", "reason": "asked", "buffers": ["not\nvalid" * 40, "fine"], "sessions": []}
    answer = http.post("/v1/forget", json=body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["failed"]) == 1
    assert hf.buffer("fine").stats("partly").waiting == 0
