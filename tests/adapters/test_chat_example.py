"""examples/chat as a reader would run it: started as processes, driven over HTTP, killed; and its page of the docs."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from sse import Sent, all_of, reading

from holdfast.testing import LocalServer
from support.conditions import until_blocking

ROOT = Path(__file__).parents[2]
CHAT = ROOT / "examples" / "chat"
WORDS = 100


class Processes:
    """Processes of the example, with their output in files. All of them are gone at the end."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        self._env |= {"HOLDFAST_URL": url, "HOLDFAST_TTL": "1.5", "CHAT_PACE": "0.01", "CHAT_WORDS": str(WORDS)}

    def start(self, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{len(self._running)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=CHAT, env=self._env, stdout=out, stderr=out, start_new_session=True
            )
        self._running.append(process)
        return process, log

    def web(self, *options: str) -> str:
        """The address that it prints."""
        process, log = self.start("app.py", "--port", "0", *options)

        def address() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text("utf-8")
            return re.search(r"chat on (http://127\.0\.0\.1:\d+)\n", log.read_text("utf-8"))

        return until_blocking(address, within=20, what="the address")[1]

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("-m", "holdfast.cli", "work", "answers:hf")[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """All in one process, with the server that comes with it."""
    with Processes(tmp_path_factory.mktemp("chat"), "embedded:") as processes:
        yield processes.web()


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


async def test_the_page_and_what_is_refused(chat: httpx.AsyncClient) -> None:
    page = await chat.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"(src|href)=|@import|https?://", page.text), "nothing from elsewhere"
    assert (await chat.get("/", headers={"Host": "evil.example"})).status_code == 400
    assert (await chat.get("/runs/nobody")).status_code == 404
    assert (await chat.post("/runs/nobody/stop", json={})).status_code == 404
    assert (await chat.get("/runs/nobody/events")).status_code == 404
    assert (await chat.post("/chats/x/runs", json={"prompt": ""})).status_code == 422


async def test_when_the_worker_is_killed_the_stream_goes_on(tmp_path: Path) -> None:
    # Given a web process and two workers, and a reader in the middle of an answer
    with LocalServer() as server, Processes(tmp_path, server.url) as processes:
        workers = {str(worker.pid): worker for worker in (processes.worker(), processes.worker())}
        async with httpx.AsyncClient(base_url=processes.web("--no-runner"), timeout=20) as chat:
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
