"""Runs over HTTP: started there, executed by the library, stopped from anywhere, their events read without a gap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from node_running import NodeHere, good, problem, read_events, wait_until, working

import holdfast.sync
from holdfast import RunActive

GO: dict[str, threading.Event] = {}


def handler(run: holdfast.sync.ActiveRun) -> object:
    """Emits what it is asked to; after the first half it waits for a word of the test."""
    number = run.input["events"]
    for at in range(number):
        if at == number // 2 and run.id in GO:
            while not GO[run.id].wait(0.01):
                if run.stopping:
                    return "not reached"
        run.emit({"n": at})
    if run.input.get("fails"):
        raise ValueError("a secret of the handler")
    return {"events": number}


@pytest.fixture(scope="module")
def worker(node: NodeHere) -> Iterator[None]:
    with holdfast.sync.Holdfast(node.url, name="worker") as client:
        client.runner(client.runs("agent"))(handler)
        with working(client):
            yield


def start(http: httpx.Client, run_id: str, events: int = 4, **more: object) -> dict:
    body = {"id": run_id, "input": {"events": events, **more}}
    return good(http.post("/v1/runs/agent", json=body), 201)


def test_a_run_is_started_executed_and_waited_for(worker: None, http: httpx.Client, hf: holdfast.sync.Holdfast):
    started = start(http, "one")
    assert started["id"] == "one"
    assert started["state"] in ("queued", "running")
    ended = good(http.get("/v1/runs/agent/one/wait", params={"timeout": 20}))
    assert ended["state"] == "completed"
    assert ended["result"] == {"events": 4}
    assert ended["input"] == {"events": 4}
    assert hf.runs("agent").get("one").result == {"events": 4}
    assert start(http, "one")["state"] == "completed", "the same id again is the same run"
    changed = {"id": "one", "input": {"events": 5}}
    problem(http.post("/v1/runs/agent", json=changed), 422, "run-mismatch")
    made = good(http.post("/v1/runs/agent", json={"input": {"events": 1}}), 201)
    assert len(made["id"]) == 16


def test_waiting_for_a_run_that_takes_longer_answers_it_as_it_is(worker: None, http: httpx.Client):
    GO["patient"] = threading.Event()
    start(http, "patient")
    got = good(http.get("/v1/runs/agent/patient/wait", params={"timeout": 0.05}))
    assert got["state"] in ("queued", "running")
    GO["patient"].set()
    assert good(http.get("/v1/runs/agent/patient/wait"))["state"] == "completed"


def test_a_run_is_stopped_and_says_why(worker: None, http: httpx.Client, hf: holdfast.sync.Holdfast):
    GO["stop-me"] = threading.Event()
    start(http, "stop-me")
    wait_until(lambda: hf.runs("agent").get("stop-me").state == "running")
    stopping = good(http.post("/v1/runs/agent/stop-me/stop", json={"reason": "enough"}))
    assert stopping["stop_reason"] == "enough"
    ended = good(http.get("/v1/runs/agent/stop-me/wait", params={"timeout": 20}))
    assert (ended["state"], ended["stop_reason"]) == ("stopped", "enough")
    again = good(http.post("/v1/runs/agent/stop-me/stop", json={"reason": "once more"}))
    assert again["stop_reason"] == "enough", "the first reason stays"
    problem(http.post("/v1/runs/agent/nobody/stop", json={"reason": "x"}), 404, "run-gone")
    problem(http.get("/v1/runs/agent/nobody"), 404, "run-gone")
    problem(http.get("/v1/runs/agent/nobody/wait"), 404, "run-gone")
    problem(http.get("/v1/runs/agent/nobody/events"), 404)


def test_one_run_of_a_key_at_a_time_and_all_of_them_stopped(http: httpx.Client, hf: holdfast.sync.Holdfast):
    def begin(run_id: str, **more: object) -> httpx.Response:
        return http.post("/v1/runs/quiet", json={"id": run_id, "key": "user-7", **more})

    good(begin("a"), 201)
    busy = problem(begin("b"), 409, "run-active")
    assert busy["run"] == {"id": "a", "state": "queued"}
    with pytest.raises(RunActive):
        hf.runs("quiet").start("c", key="user-7")
    assert good(begin("d", conflict="queue"), 201)["waits"]
    assert good(begin("e", conflict="join"), 201)["id"] == "a"
    listed = good(http.get("/v1/runs/quiet", params={"key": "user-7"}))
    assert {one["id"] for one in listed["runs"]} == {"a", "d"}
    assert listed["totals"]["queued"] == 2
    assert all(one["input"] is None for one in listed["runs"])
    assert good(http.post("/v1/runs/quiet/stop-all", json={"key": "user-7", "reason": "away"})) == {"runs": 2}
    assert {hf.runs("quiet").get(one).state for one in ("a", "d")} == {"stopped"}
    assert len(good(http.get("/v1/runs/quiet", params={"state": "stopped", "limit": 1}))["runs"]) == 1


def test_events_are_streamed_in_order_to_the_end(worker: None, http: httpx.Client):
    start(http, "stream", 30)
    with http.stream("GET", "/v1/runs/agent/stream/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-content-type-options"] == "nosniff"
        events = list(read_events(answer.iter_lines()))
    assert [event["data"]["n"] for event in events if event["event"] == "data"] == list(range(30))
    assert events[-1]["event"] == "end"
    assert events[-1]["data"]["state"] == "completed"
    seen = http.get("/v1/runs/agent/stream/events", headers={"last-event-id": events[-1]["id"]})
    assert seen.status_code == 204


def test_a_stream_resumes_after_every_event_by_header_and_by_parameter(worker: None, http: httpx.Client):
    start(http, "resume", 6)
    good(http.get("/v1/runs/agent/resume/wait"))
    whole = _all(http, "resume", {})
    for at, event in enumerate(whole[:-1]):
        assert _all(http, "resume", {"last-event-id": event["id"]}) == whole[at + 1 :]
    after = http.get("/v1/runs/agent/resume/events", params={"after": whole[3]["id"]})
    assert list(read_events(iter(after.text.split("\n")))) == whole[4:]
    both = http.get(
        "/v1/runs/agent/resume/events", params={"after": whole[0]["id"]}, headers={"last-event-id": whole[3]["id"]}
    )
    assert list(read_events(iter(both.text.split("\n")))) == whole[4:], "the header wins"
    problem(http.get("/v1/runs/agent/resume/events", headers={"last-event-id": "nonsense"}), 400)
    problem(http.get("/v1/runs/agent/resume/events", params={"after": "9" * 50}), 400)
    problem(http.get("/v1/runs/agent/gone/events", headers={"last-event-id": "1-1"}), 410)


def _all(http: httpx.Client, run_id: str, headers: dict[str, str]) -> list[dict]:
    text = http.get(f"/v1/runs/agent/{run_id}/events", headers=headers).text
    return list(read_events(iter(text.split("\n"))))


def test_of_a_handlers_error_only_the_type_is_streamed(worker: None, http: httpx.Client):
    start(http, "fails", 1, fails=True)
    good(http.get("/v1/runs/agent/fails/wait"))
    end = _all(http, "fails", {})[-1]
    assert end["data"]["state"] == "failed"
    assert "secret" not in str(end)


def test_a_reader_that_leaves_ends_the_reading_and_not_the_run(worker: None, http: httpx.Client, node: NodeHere):
    GO["left"] = threading.Event()
    start(http, "left")
    with http.stream("GET", "/v1/runs/agent/left/events") as answer:
        events = read_events(answer.iter_lines())
        next(events)
        assert node.app.node.streams == 1
    wait_until(lambda: node.app.node.streams == 0)
    GO["left"].set()
    assert good(http.get("/v1/runs/agent/left/wait"))["state"] == "completed"


def test_the_head_of_a_stream_alone_is_refused_and_does_not_block_the_connection(http: httpx.Client, node: NodeHere):
    good(http.post("/v1/runs/headless", json={"id": "r"}), 201)
    assert http.head("/v1/runs/headless/r/events").status_code == 405
    assert http.head("/v1/runs/headless/r").status_code == 200
    good(http.get("/healthz"))
    assert node.app.node.streams == 0


def test_a_stream_ends_cleanly_with_its_node_and_goes_on_at_the_next(tmp_path: Path):
    """Nothing is missed and nothing comes twice, whatever node it is read from."""
    url = f"embedded://{tmp_path}/server"
    GO["moving"] = threading.Event()
    with holdfast.sync.Holdfast(url, name="worker") as client:
        client.runner(client.runs("agent"))(handler)
        with working(client):
            first = NodeHere(url).start()
            with first.http() as http:
                start(http, "moving", 10)
                with http.stream("GET", "/v1/runs/agent/moving/events") as answer:
                    events = read_events(answer.iter_lines())
                    seen = []
                    while len([one for one in seen if one["event"] == "data"]) < 5:
                        seen.append(next(events))
                    stopping = threading.Thread(target=first.stop)
                    stopping.start()
                    seen += list(events)  # no error: it ends as a stream should
                    stopping.join()
            GO["moving"].set()
            with NodeHere(url) as second, second.http() as http:
                seen += _all(http, "moving", {"last-event-id": seen[-1]["id"]})
    assert [one["data"]["n"] for one in seen if one["event"] == "data"] == list(range(10))
    assert seen[-1]["event"] == "end"
    assert len({one["id"] for one in seen}) == len(seen)


def test_more_streams_than_allowed_are_told_to_come_later(worker: None, node: NodeHere):
    GO["many"] = threading.Event()
    with NodeHere(node.url, max_streams=1) as small, small.http() as http:
        start(http, "many")
        with http.stream("GET", "/v1/runs/agent/many/events") as answer:
            events = read_events(answer.iter_lines())
            next(events)
            second = http.get("/v1/runs/agent/many/events")
            problem(second, 503, "too-many-streams")
            assert int(second.headers["retry-after"]) > 0
            good(http.get("/v1/runs/agent/many"))
        wait_until(lambda: small.app.node.streams == 0)
        GO["many"].set()
        assert _all(http, "many", {})[-1]["event"] == "end"
