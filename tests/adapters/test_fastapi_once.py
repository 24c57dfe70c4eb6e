"""Requests with an Idempotency-Key: sent again, they are answered as the first was."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel
from test_fastapi import is_problem, serving

from holdfast import ConfigurationError, Holdfast
from holdfast.adapters.fastapi import Once, idempotent, install, lifespan


class Order(BaseModel):
    item: str
    count: int = 1


def current_user(x_user: Annotated[str, Header()] = "ann") -> str:
    return x_user


class Shop:
    """What it did, and how long that takes: until the test says so."""

    def __init__(self) -> None:
        self.placed: list[str] = []
        self.go = asyncio.Event()
        self.go.set()
        self.at_work = asyncio.Event()
        self.fails: Exception | None = None

    async def place(self, order: Order) -> dict[str, Any]:
        self.placed.append(order.item)
        self.at_work.set()
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        return {"number": len(self.placed), "order": order}

    def place_plainly(self, item: str) -> int:
        self.placed.append(item)
        return len(self.placed)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def web(valkey: Any, shop: Shop) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(lifespan=lifespan(Holdfast(valkey.url, max_message_bytes=100_000)))
    install(app)

    @app.post("/orders", status_code=201)
    async def order(new: Order, once: Annotated[Once, idempotent("orders", by=current_user, wait=0.05)]) -> Any:
        return await once(shop.place, new)

    @app.post("/plain/{item}")
    async def plain(item: str, once: Annotated[Once, idempotent("plain", by=None, required=False)]) -> Any:
        return await once(shop.place_plainly, item)

    @app.post("/large")
    async def large(once: Annotated[Once, idempotent("large", by=None)]) -> Any:
        return await once(lambda: "x" * 200_000)

    async with serving(app) as client:
        yield client
    valkey.flush()


async def send(
    web: httpx.AsyncClient, key: str, item: str = "tea", path: str = "/orders", **more: str
) -> httpx.Response:
    return await web.post(path, json={"item": item}, headers={"Idempotency-Key": key, **more})


async def test_sent_again_it_is_answered_and_not_done_again(web: httpx.AsyncClient, shop: Shop) -> None:
    first = await send(web, "k-1")
    again = await send(web, "k-1")
    assert (first.status_code, first.json()) == (201, {"number": 1, "order": {"item": "tea", "count": 1}})
    assert (again.status_code, again.json()) == (201, first.json())
    assert shop.placed == ["tea"]
    assert (await send(web, "k-2")).json()["number"] == 2


async def test_keys_of_different_clients_never_meet(web: httpx.AsyncClient, shop: Shop) -> None:
    assert (await send(web, "k-1")).json()["number"] == 1
    assert (await send(web, "k-1", **{"X-User": "bob"})).json()["number"] == 2


async def test_another_request_with_the_same_key_is_refused(web: httpx.AsyncClient, shop: Shop) -> None:
    await send(web, "k-1")
    assert is_problem(await send(web, "k-1", "coffee"), 422, "key-mismatch")
    assert is_problem(await send(web, "k-1", path="/orders?fast=1"), 422, "key-mismatch")
    assert shop.placed == ["tea"]


async def test_while_the_first_is_at_work_others_are_told_to_come_back(web: httpx.AsyncClient, shop: Shop) -> None:
    shop.go.clear()
    first = asyncio.create_task(send(web, "k-1"))
    async with asyncio.timeout(10):
        await shop.at_work.wait()
        busy = await send(web, "k-1")
        assert is_problem(busy, 409, "in-progress")
        assert busy.headers["retry-after"] == "1"
        shop.go.set()
        assert (await first).json() == (await send(web, "k-1")).json()
    assert shop.placed == ["tea"]


async def test_what_failed_is_tried_again(web: httpx.AsyncClient, shop: Shop) -> None:
    shop.fails = HTTPException(402, "pay first")
    assert (await send(web, "k-1")).status_code == 402
    shop.fails = None
    assert (await send(web, "k-1")).json()["number"] == 2


async def test_a_key_is_needed_unless_it_is_not(web: httpx.AsyncClient, shop: Shop) -> None:
    assert (await web.post("/orders", json={"item": "tea"})).json()["detail"][0]["loc"] == ["header", "Idempotency-Key"]
    assert (await send(web, "")).status_code == 422
    assert (await send(web, "x" * 256)).status_code == 422
    assert shop.placed == []
    assert [(await web.post("/plain/tea")).json() for _ in range(2)] == [1, 2]
    assert [(await send(web, "a b", path="/plain/tea")).json() for _ in range(2)] == [3, 3]
    parameters = (await web.get("/openapi.json")).json()["paths"]["/orders"]["post"]["parameters"]
    assert {"Idempotency-Key", "x-user"} == {one["name"] for one in parameters}


async def test_an_answer_that_cannot_be_stored_is_the_applications_mistake(web: httpx.AsyncClient) -> None:
    # It was called, and is not called again; the client is not told to send less.
    assert is_problem(await send(web, "k-1", path="/large"), 500, "configuration-error")
    assert is_problem(await send(web, "k-1", path="/large"), 500, "unreadable-payload")


@pytest.mark.parametrize("nobody", [None, "", object()], ids=["None", "empty", "an object"])
async def test_clients_without_an_id_do_not_share_keys(nobody: Any) -> None:
    once = idempotent("orders", by=lambda: nobody).dependency
    with pytest.raises(ConfigurationError, match="return an id from by="):
        await once(None, None, "k", nobody)
