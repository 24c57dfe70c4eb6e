"""examples/chat as a reader would run it: started as processes, driven over HTTP, killed; and its page of the docs."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from example_processes import Processes

from adapters.sse import Sent, all_of, reading
from holdfast.testing import LocalServer
from support.conditions import until

ROOT = Path(__file__).parents[2]
CHAT = ROOT / "examples" / "chat"
WORDS = 100


def chat_processes(home: Path, url: str) -> Processes:
    env = {"CHAT_PACE": 0.01, "CHAT_WORDS": WORDS, "CHAT_MEMORY": f"sqlite:///{home}/chat.db", "CHAT_QUIET": 0.5}
    return Processes("chat", home, url, **env)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All in one process, with the server that comes with it."""
    with chat_processes(tmp_path_factory.mktemp("chat"), "embedded:") as processes:
        yield processes.web("app.py", "--port", "0")


@pytest.fixture
async def chat(together: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=together, timeout=20) as client:
        yield client


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def whole_answer(prompt: str) -> str:
    model, said = load(CHAT / "model.py"), []
    model.LENGTH = WORDS
    while (word := model.follow(prompt, said)) is not None:
        said.append(word)
    return "".join(word + " " for word in said)


def order(event_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in event_id.split("-"))


def as_the_page_shows_it(events: list[Sent]) -> str:
    pieces: list[tuple[str, str]] = []
    for event in events:
        if event.kind == "data":
            pieces.append((event.id, event.data["text"]))
        elif event.kind == "resumed":
            pieces = [piece for piece in pieces if order(piece[0]) <= order(event.data["after"])]
    return "".join(text for _, text in pieces)


async def ask(chat: httpx.AsyncClient, name: str, prompt: str = "Why does kelp stay?") -> dict[str, Any]:
    reply = await chat.post(f"/chats/{name}/runs", json={"prompt": prompt})
    assert reply.status_code == 202, reply.text
    return reply.json()


async def some(chat: httpx.AsyncClient, path: str, count: int, **options: Any) -> list[Sent]:
    found: list[Sent] = []
    async with reading(chat, path, **options) as events:
        while len(found) < count:
            event = await anext(events)
            found += [event] if event.id else []
    return found


async def test_pressed_twice_one_answer_comes(chat: httpx.AsyncClient) -> None:
    first, second = await ask(chat, "twice", "one"), await ask(chat, "twice", "two")
    assert second["id"] == first["id"]
    assert second["prompt"] == "one"
    other = await ask(chat, "another chat", "three")
    assert other["id"] != first["id"]
    events = await all_of(chat, f"/runs/{first['id']}/events")
    assert as_the_page_shows_it(events) == whole_answer("one")
    assert events[-1].data == {"state": "completed", "reason": "", "result": {"words": len(events) - 1}}
    third = await ask(chat, "twice", "two")
    assert third["id"] != first["id"]
    await chat.post(f"/runs/{third['id']}/stop", json={})


async def test_a_stop_ends_it_and_what_was_said_stays(chat: httpx.AsyncClient) -> None:
    run = await ask(chat, "stop")
    path = f"/runs/{run['id']}"
    await some(chat, f"{path}/events", 3)
    reply = await chat.post(f"{path}/stop", json={"reason": "enough"})
    assert reply.json()["state"] in ("stopping", "stopped")
    events = await all_of(chat, f"{path}/events")
    assert events[-1].data == {"state": "stopped", "reason": "enough", "result": None}
    assert whole_answer("Why does kelp stay?").startswith(as_the_page_shows_it(events))
    assert len(events) < WORDS
    assert (await chat.get(path)).json()["state"] == "stopped"


async def test_who_reloads_goes_on_where_it_was(chat: httpx.AsyncClient) -> None:
    run = await ask(chat, "reload")
    path = f"/runs/{run['id']}/events"
    seen = await some(chat, path, 10)
    seen += await some(chat, path, 10, headers={"Last-Event-ID": seen[-1].id})
    seen += await all_of(chat, f"{path}?after={seen[-1].id}")
    assert as_the_page_shows_it(seen) == whole_answer("Why does kelp stay?")
    assert (await chat.get(path, headers={"Last-Event-ID": seen[-1].id})).status_code == 204


async def test_what_was_said_is_shown_to_the_model_and_remembered(chat: httpx.AsyncClient) -> None:
    # Given a chat with one answer, and one that was stopped
    first = await ask(chat, "memory", "How do crabs count?")
    await all_of(chat, f"/runs/{first['id']}/events")
    stopped = await ask(chat, "memory", "never mind")
    await chat.post(f"/runs/{stopped['id']}/stop", json={})
    await all_of(chat, f"/runs/{stopped['id']}/events")
    # when there is another question
    second = await ask(chat, "memory", "And who counts the crabs?")
    events = await all_of(chat, f"/runs/{second['id']}/events")
    # expect the model to have been shown what came before, and all of it in the session, once
    assert "That is question 2." in as_the_page_shows_it(events)
    turns = (await chat.get("/chats/memory/turns")).json()
    assert [turn["text"] for turn in turns[::2]] == ["How do crabs count?", "And who counts the crabs?"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    assert turns[1]["text"] + " " == whole_answer("How do crabs count?")

    # and, when it has been quiet for a while, in long-term memory, until it is forgotten
    async def remembered() -> bool:
        return len((await chat.get("/chats/memory/memory?q=crabs")).json()) == 2

    await until(remembered, what="both in memory")
    assert (await chat.delete("/chats/memory")).json() == {"memories": 2}
    assert (await chat.get("/chats/memory/memory")).json() == (await chat.get("/chats/memory/turns")).json() == []


async def test_the_page_and_what_is_refused(chat: httpx.AsyncClient) -> None:
    page = await chat.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=|@import|https?://", page.text), "nothing from elsewhere"
    assert (await chat.get("/", headers={"Host": "evil.example"})).status_code == 400
    gone = await chat.get("/runs/nobody")
    assert (gone.status_code, gone.json()["type"]) == (404, "urn:holdfast:problem:run-gone")
    assert (await chat.post("/runs/nobody/stop", json={})).status_code == 404
    assert (await chat.get("/runs/nobody/events")).status_code == 404
    assert (await chat.post("/chats/x/runs", json={"prompt": ""})).status_code == 422


async def test_when_the_worker_is_killed_the_stream_goes_on(tmp_path: Path) -> None:
    # Given a web process and two workers, and a reader in the middle of an answer
    with LocalServer() as server, chat_processes(tmp_path, server.url) as processes:
        workers = {str(worker.pid): worker for worker in processes.workers("answers:hf", 2)}
        address = processes.web("app.py", "--port", "0", "--no-runner")
        async with httpx.AsyncClient(base_url=address, timeout=20) as chat:
            run = await ask(chat, "crash")
            path = f"/runs/{run['id']}"
            async with reading(chat, f"{path}/events") as events:
                found: list[Sent] = []
                while len(found) < 25:
                    found += [event] if (event := await anext(events)).id else []
                # when the one that writes it is killed
                _, pid, name = (await chat.get(path)).json()["owner"].split()
                assert name == "chat"
                workers[pid].kill()
                # expect the same stream to go on to its end, with the whole answer
                found += [event async for event in events if event.id]
            assert [event.kind for event in found if event.kind != "data"] == ["resumed", "end"]
            assert as_the_page_shows_it(found) == whole_answer("Why does kelp stay?")
            assert (await chat.get(path)).json()["attempt"] == 2


def test_what_the_page_of_the_docs_shows_is_in_the_example() -> None:
    check_docs = load(ROOT / "tools" / "check_docs.py")
    page = (ROOT / "docs" / "how-to" / "chat-with-stop-and-resume.md").read_text("utf-8")
    files = "\n".join(path.read_text("utf-8") for path in sorted(CHAT.iterdir()) if path.is_file())
    shown = [block.text for block in check_docs.blocks(page) if block.kind in ("python no-run", "js")]
    assert len(shown) >= 5
    assert [text for text in shown if text not in files] == []
