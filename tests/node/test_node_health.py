"""Health, metrics, the description of the API, and the audit log."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from node_running import OPERATOR, NodeHere, good, problem, wait_until
from prometheus_client.parser import text_string_to_metric_families

import holdfast
import holdfast.sync
from holdfast.node import metrics
from holdfast.node.api import OPERATIONS
from holdfast.node.metrics import COUNTED, NAMES
from holdfast.testing import LocalServer

QUICK = {"retry_for": 0.3, "call_timeout": 0.3, "connect_timeout": 0.3, "report": 0.1}


def test_the_process_is_healthy_and_not_ready_while_its_server_is_away():
    """Restarting the node would not mend the server."""
    with LocalServer() as server, NodeHere(server.url, settings=QUICK) as node, node.http() as http:
        assert good(http.get("/healthz")) == {"status": "ok", "version": holdfast.__version__}
        assert good(http.get("/readyz"))["status"] == "ok"
        server.pause()
        assert http.get("/healthz").status_code == 200
        away = http.get("/readyz")
        assert away.status_code == 503
        assert away.json()["status"] == "unavailable"
        failing = http.post("/v1/once/x", json={"id": 1})
        assert failing.status_code in (503, 504), failing.text
        problem(failing, failing.status_code)
        server.resume()
        wait_until(lambda: http.get("/readyz").status_code == 200)
        good(http.post("/v1/once/x", json={"id": 2}))


def test_metrics_can_be_read_and_have_every_name(http: httpx.Client, hf: holdfast.sync.Holdfast):
    hf.buffer("measured").append("u", 1)
    good(http.post("/v1/buffers/measured/messages", json={"user": "v", "data": 1}), 201)
    good(http.get("/v1/runs/measured"))
    good(http.get("/v1/monitors/measured"))

    def read() -> dict:
        answer = http.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    def measured() -> dict | None:
        found = read()
        users = {one.labels["buffer"]: one.value for one in found["holdfast_buffer_users"].samples}
        return found if users.get("measured") == 2 else None

    found = wait_until(measured)
    for name in NAMES:
        assert name.removesuffix("_total") in found, name
        assert found[name.removesuffix("_total")].documentation == NAMES[name]
    events = {one.labels["event"] for one in found["holdfast_fleet_events"].samples}
    assert set(COUNTED) <= events


def test_metrics_in_an_outage_say_so_and_turn_no_counter_back(monkeypatch: pytest.MonkeyPatch):
    def value(text: str, name: str, **labels: str) -> float | None:
        found = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return next((one.value for one in found if one.name == name and labels.items() <= one.labels.items()), None)

    def granted(text: str) -> float | None:
        return value(text, "holdfast_fleet_events_total", event="granted")

    monkeypatch.setattr(metrics, "REACHED", 0.3)
    with (
        LocalServer() as server, NodeHere(server.url, settings={"report": 0.1}, sample=0.5) as node,
        node.http() as http, holdfast.sync.Holdfast(server.url, report=0.1) as hf,
    ):  # fmt: skip
        with hf.lock("a"):
            pass
        # Given a fleet that has counted something
        wait_until(lambda: granted(http.get("/metrics").text) == 1)
        # when its server stands still, expect that to be said, and nothing of before as if it were now
        server.pause()
        for _ in range(2):
            text = http.get("/metrics").text
            assert value(text, "holdfast_up") == 0
            assert granted(text) is None
            assert "holdfast_buffer_users" not in text
        # when it goes on but measuring takes long, expect the last measurement
        server.resume()
        wait_until(lambda: granted(http.get("/metrics").text) == 1)
        monkeypatch.setattr(metrics, "PATIENCE", 0.0)
        node.app.node.sampler._at -= 1.0
        text = http.get("/metrics").text
        assert (value(text, "holdfast_up"), granted(text)) == (1, 1)


def test_a_name_from_outside_cannot_break_the_metrics(http: httpx.Client):
    name = 'x"} 1\nholdfast_fake 1'
    answer = http.post("/v1/buffers/x%22%7D%201%0Aholdfast_fake%201/messages", json={"user": "u", "data": 1})
    if answer.status_code == 201:
        wait_until(lambda: name in [one["name"] for one in http.get("/v1/buffers").json()])

    def read() -> bool:
        families = list(text_string_to_metric_families(http.get("/metrics").text))
        assert "holdfast_fake" not in [family.name for family in families]
        users = next(family for family in families if family.name == "holdfast_buffer_users")
        return answer.status_code != 201 or name in [one.labels["buffer"] for one in users.samples]

    wait_until(read)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/docs.css", "/"])
def test_no_page_names_another_host(http: httpx.Client, path: str):
    text = http.get(path).text
    assert not re.findall(r"https?://(?!127\.0\.0\.1)[^\s'\"<]+", text)
    assert "//cdn" not in text
    assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", text), "a script in the page"
    assert not re.search(r"\son\w+=|style=", text), "what the policy forbids"


def test_the_description_has_every_operation_and_each_has_a_name_of_its_own(http: httpx.Client):
    document = good(http.get("/openapi.json"))
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(one.method, one.path) for one in OPERATIONS}
    ids = [found["operationId"] for item in document["paths"].values() for found in item.values()]
    assert len(set(ids)) == len(ids)
    assert all(found["summary"] for item in document["paths"].values() for found in item.values())
    page = http.get("/docs").text
    assert all(one.path in page for one in OPERATIONS)


# -- audit ------------------------------------------------------------------------------------------------------------


def test_every_operator_action_is_in_the_audit_log_with_who_why_and_what_came_of_it(node: NodeHere):
    with NodeHere(
        node.url, token=OPERATOR, tokens="night=operate+read:night-token-0123456789"
    ) as known, known.http("night-token-0123456789") as http, holdfast.sync.Holdfast(node.url) as hf:  # fmt: skip
        hf.lock("held").acquire()
        hf.sessions("s").save("x", "y")
        hf.buffer("b").append("u", 1)
        for _ in range(5):
            hf.buffer("b").take("u").nack(error="no")
        letter = hf.buffer("b").dead_letters()[0].id
        hf.buffer("b2").append("u", 1)
        for _ in range(5):
            hf.buffer("b2").take("u").nack(error="no")
        other = hf.buffer("b2").dead_letters()[0].id
        hf.monitor("m").observe("web", "page", 1)

        def act(path: str, **body: object) -> None:
            good(http.post(path, json={"reason": f"why {path}", **body}))

        act("/v1/locks/force-release", name="held")
        act("/v1/sessions/s/x/clear")
        act(f"/v1/buffers/b/dead/{letter}/replay")
        act(f"/v1/buffers/b2/dead/{other}/purge")
        act("/v1/monitors/m/forget", source="web", key="page")
        act("/v1/forget", user="u", buffers=["b"], sessions=[])
        log = good(http.get("/v1/audit", params={"limit": 6}))
        assert [one["action"] for one in log] == ["forget", "forget", "purge", "replay", "clear", "force-release"]
        assert {one["by"] for one in log} == {"night"}
        assert all(one["reason"].startswith("why /v1/") for one in log)
        assert [one["outcome"] for one in log] == [
            "1 buffers, 0 sessions, 0 failed", "forgotten", "1 messages", "1 messages", "1 entries", "1 leases ended",
        ]  # fmt: skip
        assert [one["target"] for one in log][-1] == "lock:held"
        assert [one.id for one in hf.fleet.actions(6)] == [one["id"] for one in log]
        page = good(http.get("/v1/audit", params={"limit": 2, "before": log[1]["id"]}))
        assert [one["id"] for one in page] == [one["id"] for one in log[2:4]]


def test_every_operation_that_changes_and_needs_operate_asks_for_a_reason(http: httpx.Client):
    """A subscriber's settings are their own reason."""
    for one in OPERATIONS:
        if one.scope == "operate" and one.method == "POST":
            assert "reason" in one.body.__struct_fields__, one.name
    for reason in ("", "   ", "x" * 1001):
        assert http.post("/v1/locks/force-release", json={"name": "x", "reason": reason}).status_code == 400


def test_an_action_that_fails_is_in_the_log_with_its_failure(http: httpx.Client, node: NodeHere):
    missing = http.post("/v1/monitors/m/dead/1-1/replay", json={"reason": "try"})
    problem(missing, 404, "no-letter")
    entry = good(http.get("/v1/audit", params={"limit": 1}))[0]
    assert (entry["action"], entry["reason"], entry["outcome"]) == ("replay", "try", "0 changes")


@pytest.mark.parametrize("ours", [True, False])
def test_an_error_in_an_action_is_its_outcome(
    http: httpx.Client, node: NodeHere, monkeypatch: pytest.MonkeyPatch, ours: bool
):
    async def broken(*_: object, **__: object) -> int:
        raise holdfast.Unavailable("try again: it is away") if ours else RuntimeError("the password is hunter2")

    monkeypatch.setattr(node.app.node.hf, "force_release", broken)
    answer = http.post("/v1/locks/force-release", json={"name": "x", "reason": f"fails {ours}"})
    problem(answer, 503 if ours else 500)
    entry = good(http.get("/v1/audit", params={"limit": 1}))[0]
    assert entry["reason"] == f"fails {ours}"
    assert entry["outcome"] == ("failed: try again: it is away" if ours else "failed: RuntimeError")


def test_what_is_not_allowed_is_not_done_and_not_in_the_log(tmp_path: Path):
    tokens = "reader=read:reader-token-0123456789"
    with (
        NodeHere(f"embedded://{tmp_path}/s", token=OPERATOR, tokens=tokens) as node,
        node.http("reader-token-0123456789") as http,
    ):
        problem(http.post("/v1/forget", json={"user": "u", "reason": "r"}), 403, "not-allowed")
        assert good(http.get("/v1/audit")) == []


def test_a_server_that_does_not_let_the_node_in_is_not_the_callers_mistake():
    """400 says never to send it again, and the message would be lost."""
    with LocalServer() as server:
        server.call("ACL", "SETUSER", "node", "on", ">secret", "~*", "&*", "+@all")
        url = f"redis://node:secret@{server.host}:{server.port}"
        with NodeHere(url, settings=QUICK) as node, node.http() as http:
            body = {"user": "u", "data": 1}
            good(http.post("/v1/buffers/b/messages", json=body), 201)
            server.call("ACL", "SETUSER", "node", "-evalsha", "-eval")
            problem(http.post("/v1/buffers/b/messages", json=body), 503, "not-permitted")
            server.call("ACL", "SETUSER", "node", "+@all", "resetpass", ">other")
            server.call("CLIENT", "KILL", "USER", "node")
            problem(wait_until(lambda: _refused(http, body)), 503, "not-permitted")
            server.call("ACL", "SETUSER", "node", ">secret")
            wait_until(lambda: http.post("/v1/buffers/b/messages", json=body).status_code == 201)


def _refused(http: httpx.Client, body: dict) -> httpx.Response | None:
    """After the connection was cut it may first not be known whether it was done."""
    answer = http.post("/v1/buffers/b/messages", json=body)
    return answer if answer.status_code != 504 else None
