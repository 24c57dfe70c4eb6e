"""`holdfast up` as people run it: what it prints, how it drains, and what it survives."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import httpx
from node_process import APP, Up, running_in
from node_running import good, read_events, wait_until


def test_it_says_where_it_is_drains_and_leaves_nothing(tmp_path: Path):
    """A handler that runs finishes, a stream ends whole and goes on at the next node, and no process is left."""
    (tmp_path / "upapp.py").write_text(APP)
    with Up(tmp_path, "--app", "upapp:hf", HOLDFAST_DRAIN="2") as up:
        up.ready()
        assert [line.split()[0] for line in up.said[up.said.index("Try") + 1 :]][:2] == ["curl", "curl"]
        with up.http() as http:
            assert good(http.get("/readyz"))["status"] == "ok"
            good(http.post("/v1/buffers/work/messages", json={"user": "u", "data": {"name": "slow", "waits": 1}}), 201)
            good(http.post("/v1/runs/agent", json={"id": "r"}), 201)
            wait_until((tmp_path / "slow.begun").exists, within=20)
            with http.stream("GET", "/v1/runs/agent/r/events") as answer:
                events, seen = read_events(answer.iter_lines()), []
                while len([one for one in seen if one["event"] == "data"]) < 3:
                    seen.append(next(events))
                reader = threading.Thread(target=lambda: seen.extend(events))
                reader.start()
                up.term()
                reader.join(20)  # an error in it would fail the test: it ended as a stream should
                assert not reader.is_alive()
        assert up.process.poll() is None, "it did not wait for its handler"
        assert not (tmp_path / "slow.done").exists()
        (tmp_path / "slow.go").touch()
        assert up.code() == 0
        assert (tmp_path / "slow.done").exists(), "the handler was cut off"
        assert up.said[-1] == "stopped"
        assert not [line for line in up.said if "Traceback" in line or "ERROR" in line], up.said
    wait_until(lambda: not running_in(tmp_path), within=10, what="the end of every process")

    (tmp_path / "agent.go").touch()
    with Up(tmp_path, "--app", "upapp:hf") as up:
        up.ready()
        with up.http() as http:
            totals = good(http.get("/v1/buffers/work"))
            assert totals["users"] == 0, "what the handler finished came again"
            rest = http.get("/v1/runs/agent/r/events", headers={"last-event-id": seen[-1]["id"]}).text
            seen += read_events(iter(rest.split("\n")))
            numbers = [one["data"]["n"] for one in seen if one["event"] == "data"]
            assert list(dict.fromkeys(numbers)) == list(range(6))
            assert seen[-1]["data"]["state"] == "completed"
            assert len({one["id"] for one in seen}) == len(seen)

            # A handler that takes its process with it: that is started again, and so is the batch.
            good(http.post("/v1/buffers/work/messages", json={"user": "c", "data": {"name": "crash"}}), 201)
            wait_until((tmp_path / "crash.done").exists, within=40, what="the second attempt")
            assert [line for line in up.said if "starting it again" in line]

            # The embedded server, killed without a word, comes back with what it had.
            good(http.post("/v1/buffers/kept/messages", json={"user": "u", "data": "kept"}), 201)
            os.kill(_server(tmp_path), signal.SIGKILL)
            wait_until(lambda: http.get("/readyz").status_code == 200, within=20)
            good(http.post("/v1/buffers/kept/messages", json={"user": "u", "data": "new"}), 201)
            found = [one["data"] for one in good(http.get("/v1/buffers/kept/users/u/messages"))]
            assert found == ["kept", "new"]
        up.term(signal.SIGINT)
        assert up.code() == 0
    wait_until(lambda: not running_in(tmp_path), within=10, what="the end of every process")


def _server(directory: Path) -> int:
    for pid in running_in(directory):
        try:
            if "valkey-server" in os.readlink(f"/proc/{pid}/exe") or "valkey" in Path(f"/proc/{pid}/comm").read_text():
                return pid
        except OSError:
            continue
    raise AssertionError("no server runs")


def test_asked_twice_it_ends_at_once(tmp_path: Path):
    (tmp_path / "upapp.py").write_text(APP)
    with Up(tmp_path, "--app", "upapp:hf", HOLDFAST_DRAIN="600") as up:
        up.ready()
        with up.http() as http:
            good(http.post("/v1/buffers/work/messages", json={"user": "u", "data": {"name": "never", "waits": 1}}), 201)
            wait_until((tmp_path / "never.begun").exists, within=20)
            up.term()
            wait_until(lambda: _refuses(up), what="that it stops")
        assert up.process.poll() is None, "it does not wait for its handler"
        up.term(signal.SIGINT)
        assert up.code(within=10) == 0
        wait_until(lambda: not running_in(tmp_path), within=10, what="the end of its workers")
        assert not (tmp_path / "never.done").exists()


def _refuses(up: Up) -> bool:
    try:
        httpx.get(f"{up.address}/readyz", verify=False)
    except httpx.TransportError:
        return True
    return False
