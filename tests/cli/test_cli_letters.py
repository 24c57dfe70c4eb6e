"""`dead` and `monitor`: dead letters of both kinds, changes, subscribers, deliveries."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from cli.cli_support import Told, tell_names
from holdfast import Delivery, Push, Subscriber
from holdfast.memory import MonitorStore
from holdfast.sync import Holdfast
from support.backends import Backend
from support.conditions import until_blocking

WHY = ("--reason", "mended", "--yes")


def bury(hf: Holdfast, user: str, *texts: str) -> str:
    """A dead letter of this user; answers its id."""
    buffer = hf.buffer("messages")
    buffer.extend(user, list(texts))
    batch = buffer.take(user, max_attempts=1)
    assert batch is not None
    batch.nack(error="boom")
    return next(one.id for one in buffer.dead_letters() if one.key == user)


# -- buffers ----------------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_shown_replayed_and_purged(holdfast: Told, hf: Holdfast, valkey: Backend) -> None:
    assert holdfast("dead") == "there are no dead letters\n"
    # Given two dead letters, in a buffer that somebody has told of
    one, two = bury(hf, "a", "secret 1", "secret 2"), bury(hf, "b", "secret 3")
    tell_names(valkey.url, lambda client: client.buffer("messages"))
    listed = holdfast.json("dead")
    assert {(row["where"], row["id"], row["key"], row["count"]) for row in listed} == {
        ("buffer:messages", one, "a", 2), ("buffer:messages", two, "b", 1),
    }  # fmt: skip
    assert holdfast.json("dead", "list", "messages") == holdfast.json("dead", "buffer:messages") == listed
    # expect what users said only if it is asked for
    assert "boom" in holdfast("dead")
    assert "secret" not in holdfast("dead", "messages", one) + holdfast("dead", "messages", one, "--json")
    assert "secret 1" in holdfast("dead", "messages", one, "--payloads")
    assert "no such dead letter" in holdfast.error("dead", "messages", "0.1", code=1)
    # when one is put back and the other thrown away, expect that, and that it is written down
    assert holdfast("dead", "replay", "messages", one, *WHY) == "1 dead letter(s) put back\n"
    assert hf.buffer("messages").stats("a").in_flight == 2
    assert holdfast.json("dead", "purge", "buffer:messages", two, "0.1", *WHY, code=1) == {
        "action": "purge", "where": "buffer:messages", "done": 1, "missing": 1, "busy": 0,
    }  # fmt: skip
    assert [(row["action"], row["target"], row["outcome"]) for row in holdfast.json("audit")] == [
        ("purge", f"buffer:messages {two}, 0.1", "done"), ("replay", f"buffer:messages {one}", "done"),
    ]  # fmt: skip
    assert holdfast("dead") == "there are no dead letters\n"


def test_all_of_them_are_put_back_but_those_of_busy_users(holdfast: Told, hf: Holdfast) -> None:
    for user in ("a", "b", "c"):
        bury(hf, user, "x")
    buffer = hf.buffer("messages")
    buffer.append("c", "y")
    busy = buffer.take("c")
    assert busy is not None
    # when all are put back while one user has a batch in flight
    done = holdfast.json("dead", "replay", "messages", "--all", *WHY, code=5)
    assert (done["done"], done["busy"]) == (2, 1)
    busy.ack()
    assert holdfast.json("dead", "replay", "messages", "--all", *WHY)["done"] == 1
    assert holdfast.json("dead", "purge", "messages", "--all", *WHY)["done"] == 0
    for words in (["messages"], ["messages", "1.1", "--all"]):  # neither, or both
        assert "pass the ids" in holdfast.error("dead", "purge", *words, *WHY, code=2)


# -- monitors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'monitor.db'}"
    with MonitorStore(url) as keeps:
        hook = Subscriber("hook", "webhook", "https://example.org/topsecret", secret="hunter2", fields=("price",))
        keeps.put_subscriber("venues", hook)
        keeps.record([Push("venues", "hook", "d-1", 1, 2, "retried", "HTTP 500", 0.5, 1_700_000_000.0)])
    return url


def test_a_monitor_shows_who_is_told_and_how_it_went_but_no_secret(
    holdfast: Told, hf: Holdfast, valkey: Backend, store: str
) -> None:
    venues = hf.monitor("venues")
    venues.observe("shop", ("sku", 1), {"price": 1})
    tell_names(valkey.url, lambda client: client.monitor("venues"))
    (row,) = holdfast.json("monitor")
    assert (row["name"], row["changes"], row["dead_letters"]) == ("venues", 1, 0)
    # expect the subscribers of the store where it is named, and no secret anywhere
    assert holdfast.json("monitor", "venues", "--store", store)["waiting"] == {"hook": 0}
    assert holdfast.json("monitor", "status", "venues")["waiting"] == {}
    assert holdfast.json("monitor", "venues", HOLDFAST_NODE_STORE=store)["waiting"] == {"hook": 0}
    shown = holdfast("monitor", "subscribers", "venues", "--store", store)
    assert "hook" in shown
    told = shown + json.dumps(holdfast.json("monitor", "subscribers", "venues", "--store", store))
    assert "hunter2" not in told
    assert "topsecret" not in told
    (push,) = holdfast.json("monitor", "deliveries", "venues", "--store", store)
    assert (push["outcome"], push["detail"]) == ("retried", "HTTP 500")
    assert "HTTP 500" in holdfast("monitor", "deliveries", "venues", "--store", store)
    assert "add --store" in holdfast.error("monitor", "deliveries", "venues", code=2)


def test_changes_are_those_in_the_log_or_all_of_one_thing(holdfast: Told, hf: Holdfast, store: str) -> None:
    venues = hf.monitor("venues")
    assert holdfast("monitor", "changes", "venues", code=1) == "nothing has changed\n"
    for price in (1, 2):
        venues.observe("shop", ("sku", 1), {"price": price})
    newest, first = holdfast.json("monitor", "changes", "venues")
    assert (newest["kind"], newest["fields"], first["kind"]) == ("changed", ["price"], "first")
    assert "after" not in newest
    assert holdfast.json("monitor", "changes", "venues", "--payloads")[0]["after"] == {"price": 2}
    assert '["sku", 1]' in holdfast("monitor", "changes", "venues")
    one = ("--source", "shop", "--key", '["sku", 1]', "--store", store)
    assert holdfast("monitor", "changes", "venues", *one, code=1) == "nothing has changed\n"  # no worker has kept any
    assert "pass both" in holdfast.error("monitor", "changes", "venues", "--source", "x", code=2)


def test_a_store_that_is_not_there_is_not_made(holdfast: Told, tmp_path: Path) -> None:
    missing = tmp_path / "other.db"
    assert "there is no file" in holdfast.error("monitor", "venues", "--store", f"sqlite:///{missing}", code=2)
    assert not missing.exists()
    assert "pass --store as a URL" in holdfast.error("monitor", "venues", "--store", "monitor.db", code=2)


def test_what_a_subscriber_did_not_accept_is_shown_put_back_and_thrown_away(holdfast: Told, hf: Holdfast) -> None:
    # Given a change that a function refused for good
    venues = hf.monitor("venues")
    told: list[object] = []

    @venues.subscriber("picky", first=True, retries=0)
    def picky(delivery: Delivery) -> None:
        if not told:
            told.append(None)
            raise RuntimeError("boom")
        told.append(delivery.changes[0].after)

    working = threading.Thread(target=hf.work)
    working.start()
    try:
        until_blocking(venues.subscribers, what="the function to subscribe")
        venues.observe("shop", "k", "secret")
        until_blocking(venues.dead_letters, what="a dead letter")
        # expect it among the others, without what it says
        (letter,) = holdfast.json("monitor", "dead", "venues")
        assert (letter["where"], letter["subscriber"]) == ("monitor:venues", "picky")
        assert "secret" not in holdfast("dead", "monitor:venues", letter["id"])
        assert "secret" in holdfast("dead", "monitor:venues", letter["id"], "--payloads")
        assert "no such dead letter" in holdfast.error("dead", "monitor:venues", "1-1", code=1)
        # when it is put back, expect it to be told
        assert holdfast.json("dead", "replay", "monitor:venues", "--all", *WHY)["done"] == 1
        until_blocking(lambda: told[1:] == ["secret"], what="the change to be told")
        assert holdfast.json("dead", "purge", "monitor:venues", letter["id"], *WHY, code=1)["missing"] == 1
    finally:
        hf.stop_work()
        working.join(20)
