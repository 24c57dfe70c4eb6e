"""Locks over HTTP: held by a token, renewed by the client, respected by the library, and not lost with the node."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from node_running import NodeHere, good, problem, wait_until

import holdfast.sync
from holdfast import NotAcquired


def acquire(http: httpx.Client, name: str, **more: object) -> dict:
    return good(http.post("/v1/locks/acquire", json={"name": name, **more}))


def test_a_lock_over_http_excludes_the_library_and_the_other_way_round(http: httpx.Client, hf: holdfast.sync.Holdfast):
    held = acquire(http, "report", ttl=20)
    assert held["name"] == "report"
    assert 19 < held["seconds"] <= 20
    with pytest.raises(NotAcquired):
        hf.lock("report", wait=0).acquire()
    problem(http.post("/v1/locks/acquire", json={"name": "report"}), 409, "not-acquired")
    mine = {"name": "report", "token": held["token"]}
    assert good(http.post("/v1/locks/release", json=mine)) == {"released": True}
    assert good(http.post("/v1/locks/release", json=mine)) == {"released": False}
    with hf.lock("report", wait=0) as lease:
        assert lease.fence > held["fence"]
        refused = http.post("/v1/locks/acquire", json={"name": "report"})
        assert refused.headers["retry-after"] == "1"
        problem(refused, 409, "not-acquired")


def test_the_client_renews_and_a_lock_that_is_not_renewed_ends(http: httpx.Client, hf: holdfast.sync.Holdfast):
    held = acquire(http, "renewed", ttl=0.4)
    mine = {"name": "renewed", "token": held["token"], "ttl": 0.4}
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:  # for longer than it would last by itself
        assert good(http.post("/v1/locks/renew", json=mine))["seconds"] <= 0.4
        assert hf.inspect("renewed").holders[0].fence == held["fence"]
        time.sleep(0.05)
    wait_until(lambda: not hf.inspect("renewed").held)
    problem(http.post("/v1/locks/renew", json=mine), 409, "lease-lost")
    assert good(http.post("/v1/locks/release", json=mine)) == {"released": False}


def test_a_node_keeps_nothing_alive_for_a_client_that_is_gone(http: httpx.Client, node: NodeHere):
    acquire(http, "left", ttl=0.3)
    assert node.do(_holds(node)) == 0
    later = acquire(http, "left", ttl=0.3, wait=5)
    assert later["fence"] > 0


async def _holds(node: NodeHere) -> int:
    return len(node.app.node.hf._core.holds)


def test_waiting_in_line_is_granted_at_the_release_with_its_full_ttl(http: httpx.Client, hf: holdfast.sync.Holdfast):
    lease = hf.lock("line").acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acquire, http, "line", ttl=60, wait=5)
        wait_until(lambda: hf.inspect("line").waiting)
        assert [one["label"] for one in good(http.get("/v1/locks/line"))["waiters"]] == ["node"]
        lease.release()
        held = waiting.result(10)
    assert held["fence"] > lease.fence
    assert held["seconds"] > 50, "what is handed over in the line is short until it is confirmed"
    assert hf.inspect("line").holders[0].remaining > 50


def test_a_client_that_leaves_stands_in_no_line(http: httpx.Client, hf: holdfast.sync.Holdfast, node: NodeHere):
    """It gave up and tries again: else each attempt that it gave up would get the lock, for nobody."""
    lease = hf.lock("left-line").acquire()
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/locks/acquire", json={"name": "left-line", "wait": 30}, timeout=0.3)
    wait_until(lambda: not hf.inspect("left-line").waiting, within=3, what="the end of a wait that nobody waits for")
    lease.release()
    assert acquire(http, "left-line", wait=1)["fence"] > lease.fence


def test_waiting_ends_with_what_the_node_allows(http: httpx.Client, hf: holdfast.sync.Holdfast, node: NodeHere):
    node.app.node.config, before = _with(node, max_wait=0.2), node.app.node.config
    try:
        with hf.lock("long"):
            started = time.monotonic()
            problem(http.post("/v1/locks/acquire", json={"name": "long", "wait": 3600}), 409, "not-acquired")
            assert time.monotonic() - started < 4
            assert not hf.inspect("long").waiting
    finally:
        node.app.node.config = before


def _with(node: NodeHere, **changes: object):
    import dataclasses

    return dataclasses.replace(node.app.node.config, **changes)


def test_many_at_once_are_granted_one_by_one(node: NodeHere):
    inside, seen, failures = 0, [], []
    guard = threading.Lock()

    def one(_: int) -> None:
        nonlocal inside
        with node.http() as http:
            held = acquire(http, "crowd", ttl=10, wait=5)
            with guard:
                inside += 1
                if inside > 1:
                    failures.append(held)
            seen.append(held["fence"])
            with guard:
                inside -= 1
            good(http.post("/v1/locks/release", json={"name": "crowd", "token": held["token"]}))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(12)))
    assert not failures
    assert len(set(seen)) == 12
    assert sorted(seen) == seen


def test_readers_share_and_a_writer_does_not(http: httpx.Client, hf: holdfast.sync.Holdfast):
    one, two = (acquire(http, "doc", kind="rw", write=False) for _ in range(2))
    problem(http.post("/v1/locks/acquire", json={"name": "doc", "kind": "rw"}), 409, "not-acquired")
    with pytest.raises(NotAcquired):
        hf.rwlock("doc", wait=0).write().acquire()
    for held in (one, two):
        body = {"name": "doc", "kind": "rw", "write": False, "token": held["token"]}
        assert good(http.post("/v1/locks/release", json=body)) == {"released": True}
    assert acquire(http, "doc", kind="rw")["fence"] > two["fence"]
    with pytest.raises(NotAcquired):
        hf.rwlock("doc", wait=0).read().acquire()


def test_permits_of_a_semaphore_are_shared_with_the_library(http: httpx.Client, hf: holdfast.sync.Holdfast):
    held = acquire(http, "seats", kind="sem", permits=3, take=2)
    hf.semaphore("seats", 3, wait=0).acquire()
    problem(http.post("/v1/locks/acquire", json={"name": "seats", "kind": "sem", "permits": 3}), 409)
    info = good(http.get("/v1/locks/seats", params={"kind": "sem"}))
    assert sorted(one["permits"] for one in info["holders"]) == [1, 2]
    body = {"name": "seats", "kind": "sem", "permits": 3, "token": held["token"]}
    assert good(http.post("/v1/locks/release", json=body)) == {"released": True}
    assert http.post("/v1/locks/acquire", json={"name": "s", "kind": "sem", "permits": 1, "take": 2}).status_code == 400


def test_who_holds_a_lock_is_seen_and_ended_with_a_reason(http: httpx.Client, hf: holdfast.sync.Holdfast):
    lease = hf.lock("stuck", renew=False).acquire()
    info = good(http.get("/v1/locks/stuck"))
    assert [(one["fence"], one["label"]) for one in info["holders"]] == [(lease.fence, "library")]
    assert "stuck" in [one["name"] for one in good(http.get("/v1/locks"))]
    body = {"name": "stuck", "reason": "its host burns"}
    assert good(http.post("/v1/locks/force-release", json={**body, "fence": lease.fence + 1})) == {"ended": 0}
    assert hf.inspect("stuck").holders
    assert good(http.post("/v1/locks/force-release", json={**body, "fence": lease.fence})) == {"ended": 1}
    assert not hf.inspect("stuck").holders
    (entry,) = [one for one in good(http.get("/v1/locks/stuck/history")) if one["ended"]]
    assert entry["reason"] == "its host burns"
    assert entry["by"] == "local"
    assert entry["fences"] == [lease.fence]
    assert "stuck" not in [one["name"] for one in good(http.get("/v1/locks"))]


def test_the_list_of_locks_has_pages(http: httpx.Client):
    names = {f"page-{number}" for number in range(7)}
    for name in names:
        acquire(http, name)
    whole = [one["name"] for one in good(http.get("/v1/locks", params={"limit": 1000}))]
    parts = []
    for offset in range(0, len(whole) + 3, 3):
        parts += [one["name"] for one in good(http.get("/v1/locks", params={"limit": 3, "offset": offset}))]
    assert names <= set(parts)
    assert sorted(parts) == sorted(whole)


def test_a_lock_taken_over_http_outlives_its_node_and_works_at_the_next(tmp_path: Path):
    url = f"embedded://{tmp_path}/server"
    with holdfast.sync.Holdfast(url) as hf:
        with NodeHere(url) as first, first.http() as http:
            held = acquire(http, "crossing", ttl=30)
            batch_user = good(http.post("/v1/buffers/b/messages", json={"user": "u", "data": 1}), 201)
            batch = good(http.post("/v1/buffers/b/take", json={"user": "u", "lease": 30}))
            assert batch["messages"][0]["id"] == batch_user["id"]
        assert hf.inspect("crossing").holders, "stopping the node released what its clients hold"
        assert hf.buffer("b").stats("u").held
        with pytest.raises(NotAcquired):
            hf.lock("crossing", wait=0).acquire()
        with NodeHere(url) as second, second.http() as http:
            mine = {"name": "crossing", "token": held["token"], "ttl": 30}
            assert good(http.post("/v1/locks/renew", json=mine))["seconds"] > 25
            assert good(http.post("/v1/locks/release", json=mine)) == {"released": True}
            done = {"user": "u", "token": batch["token"], "fence": batch["fence"]}
            assert good(http.post("/v1/buffers/b/ack", json=done)) == {"left": 0}
        assert hf.lock("crossing", wait=0).acquire().fence > held["fence"]


@pytest.mark.parametrize("token", ["nonsense", "0" * 32, "a" * 100, "x\n", "\u0000", "ü" * 16])
def test_a_token_that_is_none_holds_nothing(http: httpx.Client, hf: holdfast.sync.Holdfast, token: str):
    with hf.lock("guarded"):
        body = {"name": "guarded", "token": token}
        assert http.post("/v1/locks/renew", json=body).status_code in (400, 409, 422)
        release = http.post("/v1/locks/release", json=body)
        assert release.status_code in (400, 422) or release.json() == {"released": False}
        assert hf.inspect("guarded").holders


def test_somebody_who_waits_is_told_when_the_node_ends_and_stands_in_no_line(tmp_path: Path):
    url = f"embedded://{tmp_path}/server"
    with holdfast.sync.Holdfast(url) as hf, hf.lock("busy"):
        node = NodeHere(url).start()
        with node.http() as http, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(http.post, "/v1/locks/acquire", json={"name": "busy", "wait": 30})
            wait_until(lambda: hf.inspect("busy").waiting)
            started = time.monotonic()
            node.stop()
            answer = waiting.result(10)
            assert time.monotonic() - started < 3, "it held up the end of the node"
            problem(answer, 503, "stopping")
            assert answer.headers["retry-after"]
        wait_until(lambda: not hf.inspect("busy").waiting)
