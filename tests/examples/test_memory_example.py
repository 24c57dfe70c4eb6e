"""examples/memory_service as a reader would run it: a web process and workers, driven over HTTP, one of them killed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
from example_processes import Processes

from holdfast.testing import LocalServer


class Service:
    """The example at work, and what the tests ask of it."""

    def __init__(self, processes: Processes, web: httpx.Client, uploads: Path) -> None:
        self.processes = processes
        self.web = web
        self.uploads = uploads

    def say(self, user: str, text: str, *pending: str, **headers: str) -> dict[str, Any]:
        reply = self.web.post(f"/users/{user}/messages", json={"text": text, "pending": pending}, headers=headers)
        assert reply.status_code == 202, reply.text
        return dict(reply.json())

    def flush(self, user: str) -> bool:
        return bool(self.web.post(f"/users/{user}/flush").json()["waiting"])

    def recall(self, user: str, **query: str) -> list[str]:
        return [one["text"] for one in self.web.get(f"/users/{user}/memory", params=query).json()]

    def until(self, condition: Any, what: str) -> Any:
        return self.processes.until(condition, what)

    def absorbed(self, user: str) -> None:
        """Each agent keeps its own, one after the other: all of them have."""
        nothing = {"waiting": 0, "in_flight": 0}
        self.until(lambda: self.web.get(f"/users/{user}").json() == nothing, "all that was said in memory")


def files(home: Path) -> dict[str, object]:
    return {"MEMORY_DB": f"sqlite:///{home}/memory.db", "MEMORY_UPLOADS": home / "uploads", "MEMORY_QUIET": 0.5}


def test_all_of_it_in_one_process(tmp_path: Path) -> None:
    # One test, because the process takes longer to start than everything here to check.
    with (
        Processes("memory_service", tmp_path, "embedded:", **files(tmp_path)) as processes,
        httpx.Client(base_url=processes.web("app.py", "--port", "0"), timeout=20) as web,
    ):
        service = Service(processes, web, tmp_path / "uploads")
        what_was_said_is_remembered_in_three_ways(service)
        a_message_that_is_sent_again_is_there_once(service)
        a_message_waits_for_its_upload(service)
        a_user_who_is_forgotten_is_gone(service)


def what_was_said_is_remembered_in_three_ways(service: Service) -> None:
    service.say("ann", "I like green tea. Yesterday it rained.")
    service.say("ann", "To make it, you need water. First boil it, then wait a minute.")
    # after a while of silence
    service.until(lambda: len(service.recall("ann", kind="procedural")) == 2, "what was said in memory")
    service.absorbed("ann")
    assert service.recall("ann", kind="semantic") == ["I like green tea."]
    assert service.recall("ann", q="rained", kind="episodic") == ["I like green tea. Yesterday it rained."]
    assert service.recall("bob") == []


def a_message_that_is_sent_again_is_there_once(service: Service) -> None:
    first = service.say("carl", "I live in Lisbon.", **{"Idempotency-Key": "1"})
    assert service.say("carl", "I live in Lisbon.", **{"Idempotency-Key": "1"}) == first
    assert service.say("carla", "I live in Porto.", **{"Idempotency-Key": "1"}) != first, "another user's key"
    service.flush("carl")
    service.absorbed("carl")
    assert service.recall("carl", kind="episodic") == ["I live in Lisbon."]


def a_message_waits_for_its_upload(service: Service) -> None:
    # Given a message whose photo is under way, and one after it
    message = service.say("dora", "My cat is called Ada.", "photo", "voice")["id"]
    service.say("dora", "I have two dogs.")
    service.flush("dora")
    assert service.web.get("/users/dora").json() == {"waiting": 2, "in_flight": 0}
    # when the photo has come and the voice will not
    path = f"/users/dora/messages/{message}/attachments"
    reply = service.web.put(f"{path}/photo", content=b"a picture", headers={"Content-Type": "image/png"})
    digest = hashlib.sha256(b"a picture").hexdigest()
    assert reply.json() == {"file": digest, "bytes": 9, "type": "image/png"}
    assert service.web.delete(f"{path}/voice").json() == {"known": True}
    # expect both in memory, in order, the first with its photo, which is on the disk
    service.absorbed("dora")
    assert len(service.recall("dora", kind="episodic")) == 2
    entry = service.web.get("/users/dora/memory", params={"q": "cat", "kind": "episodic"}).json()[0]
    assert entry["text"] == "My cat is called Ada. [photo]"
    assert entry["data"]["attachments"] == {"photo": reply.json()}
    assert (service.uploads / digest).read_bytes() == b"a picture"
    # and what comes too late, or for nobody, to be refused
    assert service.web.put(f"{path}/voice", content=b"late").status_code == 404
    assert service.web.put(f"/users/dora/messages/{'0' * 20}/attachments/x", content=b"").status_code == 404
    assert service.web.put(f"{path}/photo", content=b"x" * 10_000_001).status_code == 413


def a_user_who_is_forgotten_is_gone(service: Service) -> None:
    service.say("eve", "I hate mornings.")
    service.flush("eve")
    service.absorbed("eve")
    assert service.web.delete("/users/eve").json() == {"memories": 2}
    assert service.recall("eve") == []
    assert service.web.get("/users/eve").json() == {"waiting": 0, "in_flight": 0}


def test_when_a_worker_is_killed_another_finishes_and_nothing_is_there_twice(tmp_path: Path) -> None:
    # Given a web process, and a worker whose agents take their time
    env = {**files(tmp_path), "MEMORY_PACE": 1}
    with LocalServer() as server, Processes("memory_service", tmp_path, server.url, **env) as processes:
        address = processes.web("app.py", "--port", "0", "--no-workers")
        first = processes.worker("service:hf")
        with httpx.Client(base_url=address, timeout=20) as web:
            service = Service(processes, web, tmp_path)
            for name in ("Ada", "Ben", "Cleo", "Dan", "Elle"):
                service.say("ann", f"I have a cat called {name}.")
            # when it is killed after one agent was done with the batch and before the others were
            service.until(lambda: len(service.recall("ann", kind="episodic")) == 5, "the first agent")
            first.kill()
            assert service.recall("ann", kind="semantic") == []
            assert service.web.get("/users/ann").json()["in_flight"] == 5
            # expect another one to do the rest, and only that
            processes.worker("service:hf")
            service.until(lambda: service.web.get("/users/ann").json()["in_flight"] == 0, "an acknowledged batch")
            assert len(service.recall("ann", kind="semantic")) == 5
            assert len(service.recall("ann", kind="episodic")) == 5
