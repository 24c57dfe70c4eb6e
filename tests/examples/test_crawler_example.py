"""examples/crawler_fleet as a reader would run it: a shop, a receiver and crawlers, of which one is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from example_processes import Processes

from holdfast import Holdfast
from holdfast.testing import LocalServer

COURTS = [f"court-{number}" for number in range(6)]
FORGETS = 3


class Watched:
    """The fleet at work on a shop, seen by its receiver."""

    def __init__(self, processes: Processes, shop: httpx.Client, receiver: httpx.Client) -> None:
        self.processes = processes
        self.shop = shop
        self.receiver = receiver

    def change(self, court: str, price: int, free: int = 3) -> None:
        self.shop.put(f"/courts/{court}", json={"price": price, "free": free}).raise_for_status()

    def told(self, key: str) -> list[Any]:
        """What the receiver knows of this thing, in order."""
        return [one["after"] for one in self.receiver.get("/changes").json()["changes"] if one["key"] == key]

    def until_told(self, key: str, *states: Any) -> None:
        self.processes.until(lambda: self.told(key)[-len(states) :] == list(states), f"{states} of {key}")


def at(price: int, free: int = 3) -> dict[str, int]:
    return {"price": price, "free": free}


def test_each_change_arrives_once_although_a_crawler_dies(tmp_path: Path) -> None:
    # Given two crawlers of a shop, and a receiver that stores the first messages and answers that it failed
    env = {
        "FLEET_DB": f"sqlite:///{tmp_path}/fleet.db", "RECEIVER_DB": tmp_path / "receiver.db",
        "RECEIVER_FORGETS": FORGETS, "FLEET_EVERY": 0.4,
    }  # fmt: skip
    with LocalServer() as server, Processes("crawler_fleet", tmp_path, server.url, **env) as processes:
        shop, receiver = processes.webs(("shop.py", "--port", "0"), ("receiver.py", "--port", "0"))
        processes.setenv(FLEET_SHOP=shop)
        first, _ = processes.start("crawler.py", "--subscribe", f"{receiver}/hook")
        processes.start("crawler.py")
        with httpx.Client(base_url=shop) as to_shop, httpx.Client(base_url=receiver) as to_receiver:
            watched = Watched(processes, to_shop, to_receiver)
            for court in COURTS:
                watched.until_told(court, at(10))
            watched.until_told("front page", "open as usual")
            # when prices change, a crawler is killed, and they change again
            for price in (11, 12):
                for court in COURTS:
                    watched.change(court, price)
                for court in COURTS:
                    watched.until_told(court, at(price))
                first.kill()
            to_shop.put("/notice/closed on Monday")
            watched.until_told("front page", "closed on Monday")
            # and one court is sold out, free and sold out again
            for free in (0, 1, 0):
                watched.change("court-5", 12, free)
                watched.until_told("court-5", at(12, free))
            asyncio.run(alerts_are_told(server.url))
            # expect each change once, in order, although messages came twice
            for court in COURTS[:5]:
                assert watched.told(court) == [at(10), at(11), at(12)]
            assert watched.told("court-5") == [at(10), at(11), at(12), at(12, 0), at(12, 1), at(12, 0)]
            assert watched.told("front page") == ["open as usual", "closed on Monday"]
            assert to_receiver.get("/changes").json()["messages"] > FORGETS
            assert to_receiver.post("/hook", json={"monitor": "courts", "changes": []}).status_code == 401
            # and the alert once, in whichever process
            assert processes.said().count("alert: court-5 is sold out") == 1


async def alerts_are_told(url: str) -> None:
    async with Holdfast(url) as hf, asyncio.timeout(20):
        while (await hf.monitor("courts").status()).waiting.get("alerts"):
            await asyncio.sleep(0.01)
