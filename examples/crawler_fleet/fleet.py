"""What the fleet watches, and who is told. Every process has the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from holdfast import Delivery, Holdfast, Notice, Subscriber
from holdfast.memory import MonitorStore

SHOP = os.environ.get("FLEET_SHOP", "http://127.0.0.1:8001")
SECRET = os.environ.get("FLEET_SECRET", "a secret that both sides know")
EVERY = float(os.environ.get("FLEET_EVERY", "2"))
"""Seconds between two looks at a page."""

hf = Holdfast(os.environ.get("HOLDFAST_URL", "embedded:///tmp/fleet"), name="crawler", drain=3)
store = MonitorStore(os.environ.get("FLEET_DB", "sqlite:///fleet.db")).open()
HERE = ["127.0.0.1"]  # a shop and a receiver on this machine; without it only public addresses are spoken to

notices = hf.monitor("notices", store=store, allow=HERE)
notices.fetch(f"{SHOP}/", every=max(1.0, EVERY), css="#notice", key="front page")  # the fleet looks, one at a time

courts = hf.monitor("courts", fields=["price", "free"], store=store, allow=HERE)
sold_out = hf.gate("sold out", window=300)


@courts.parser("shop")
def parse(raw: Any) -> Iterator[tuple[str, dict[str, Any], float]]:
    """What a page of the shop says of each court, and when it said so: what comes late does not turn back anything."""
    for row in raw["courts"]:
        yield row["name"], row, raw["at"]


@courts.subscriber("alerts", fields=("free",), first=True)
async def alert(delivery: Delivery) -> None:
    """Called in one process of the fleet. The gate holds back what was said in the last five minutes."""
    for change in delivery.changes:
        decision = await sold_out.check(change.key, change.after["free"] == 0)
        if decision.notify and change.after["free"] == 0:
            print(f"alert: {change.key} is sold out", flush=True)


@hf.settled(sold_out)
async def alert_late(notice: Notice) -> None:
    """What was held back, if it is still so when the five minutes are over."""
    print(f"alert: {notice.key} is {'sold out' if notice.state else 'free'} after all", flush=True)


async def subscribe(url: str) -> None:
    """Have this address told of everything, signed."""
    for monitor in (courts, notices):
        await monitor.subscribe(
            Subscriber("receiver", "webhook", url, secret=SECRET, first=True, retries=10, retry_delay=0.5, timeout=2)
        )
