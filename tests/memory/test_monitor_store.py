"""The monitor's store: once for each change, bounded reading, pruning, and names that mean harm. On both databases."""

from __future__ import annotations

import dataclasses
import logging
import random
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from memory_help import execute, rows

from holdfast.errors import (
    ConfigurationError,
    Indeterminate,
    InvalidId,
    InvalidPayload,
    NewerPayload,
    Unavailable,
    UnreadablePayload,
)
from holdfast.memory import Memory, MonitorStore, RunArchive, Store, database
from holdfast.memory import monitor as store_module
from holdfast.memory.database import Database
from holdfast.memory.schema import STEPS, Tables, clock, migrate
from holdfast.monitor.record import Change, Push, Subscriber

SECRET = "hunter2-Sw0rdfish"


def change(number: int, key: Any = "sku-1", **fields: Any) -> Change:
    made = Change(
        id=f"{number:013}-0", monitor="prices", source="shop", key=key, kind="changed", before=None,
        after={"price": number}, observed_at=1000.0 + number, at=1000.0 + number,
    )  # fmt: skip
    return dataclasses.replace(made, **fields)


def push(number: int, subscriber: str = "ops", **fields: Any) -> Push:
    made = Push("prices", subscriber, f"d{number}", 1, 3, "delivered", "HTTP 200", 0.25, 1000.0 + number)
    return dataclasses.replace(made, **fields)


def prices(store: MonitorStore, key: Any = "sku-1", **bounds: Any) -> list[Any]:
    return [shot.state["price"] for shot in store.history("prices", "shop", key, **bounds)]


def now(store: MonitorStore) -> float:
    with store._db.read("test") as connection:
        return connection.execute(sa.select(clock(store._db))).scalar_one()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """All at once, each in its thread."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(20)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def watch(store: MonitorStore) -> list[tuple[str, Any]]:
    """The statements that are sent from now on, with their parameters."""
    seen: list[tuple[str, Any]] = []
    sa.event.listen(
        store._db.engine, "before_cursor_execute", lambda *event: seen.append((event[2], event[3]))
    )  # fmt: skip
    return seen


def told(error: BaseException | None) -> str:
    lines = []
    while error is not None:
        lines += [str(error), repr(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return "\n".join(lines)


# -- once -------------------------------------------------------------------------------------------------------------


def test_a_change_is_kept_once_whoever_hands_it_in(url: str) -> None:
    # Given the same changes in the hands of two processes with two threads each, in different orders
    changes = [change(number) for number in range(1203)]
    with MonitorStore(url) as one, MonitorStore(url) as other:
        together(
            *(lambda store=store, order=order: store.keep("prices", order)
              for store in (one, other) for order in (changes, changes[::-1]))
        )  # fmt: skip

        # expect each once, more than go into one statement
        assert prices(one, limit=10_000) == list(range(1202, -1, -1))
        one.keep("prices", [dataclasses.replace(changes[7], after={"price": "another"})])
        assert prices(other, since=1007.0, until=1008.0) == [7]


def test_without_the_safeguard_a_second_time_fails(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MonitorStore, "_insert", lambda self, table: Careless(table))
    with MonitorStore(url) as store:
        store.keep("prices", [change(1)])
        with pytest.raises(sa.exc.IntegrityError):
            store.keep("prices", [change(1)])


class Careless(sa.Insert):
    inherit_cache = True

    def on_conflict_do_nothing(self) -> Any:
        return self


def test_rows_go_in_by_the_hundreds_and_in_one_order(url: str) -> None:
    # Given changes in a wild order: two transactions that wait for each other's rows would never end
    with MonitorStore(url) as store:
        seen = watch(store)
        store.keep("prices", [change(number * 7919 % 1009) for number in range(1009)])

        sent = [parameters for statement, parameters in seen if statement.startswith("INSERT")]
        assert len(sent) == 3
        ids = [
            value
            for parameters in sent
            for value in (parameters.values() if isinstance(parameters, dict) else parameters)
            if isinstance(value, str) and value.endswith("-0")
        ]
        assert ids == sorted(ids)
        assert len(ids) == 1009


def test_of_a_batch_with_something_wrong_nothing_is_kept(url: str) -> None:
    with MonitorStore(url) as store:
        for wrong in (
            change(2, key=1.5), change(2, key=True), change(2, key=10**5000), change(2, observed_at=float("nan")),
            change(2, at=float("inf")), change(2, at=10**400), change(2, after=float("nan")), change(2, after={1, 2}),
            change(2, source=""), change(2, source="s" * 513), change(2, id="x" * 256),
        ):  # fmt: skip
            with pytest.raises(ConfigurationError):
                store.keep("prices", [change(1), wrong, change(3)])
        with pytest.raises(InvalidId):
            store.keep("", [change(1)])
        store.keep("prices", [])
        store.record([])

        assert store.keys("prices") == []


# -- reading ----------------------------------------------------------------------------------------------------------


def test_history_is_newest_first_and_bounded(url: str) -> None:
    with MonitorStore(url) as store:
        # Given observations that did not come in their order, two at one time, and other things
        order = [3, 1, 4, 0, 2]
        store.keep("prices", [change(n, id=f"a{at}", observed_at=1000.0 + n) for at, n in enumerate(order)])
        store.keep("prices", [change(99, id="b", observed_at=1004.0), change(50, key="sku-2"), change(51, source="x")])
        store.keep("other", [change(52)])

        assert prices(store) == [99, 4, 3, 2, 1, 0]
        assert prices(store, limit=2) == [99, 4]
        assert prices(store, since=1001.0, until=1003.0) == [2, 1]
        assert prices(store, since=1004.0) == [99, 4]
        assert prices(store, until=1001.0) == [0]
        assert prices(store, key="sku-3") == []
        newest = store.latest("prices", "shop", "sku-1")
        assert newest is not None
        assert (newest.id, newest.source, newest.key, newest.kind) == ("b", "shop", "sku-1", "changed")
        assert (newest.state, newest.observed_at) == ({"price": 99}, 1004.0)
        assert store.latest("prices", "shop", "sku-3") is None


def test_a_state_comes_back_as_it_was(url: str) -> None:
    states = [
        None, 0, 2**64 - 1, -(2**63), 1.5, True, "", "NUL \x00, tea 茶 😀", [], {}, {"a\x00": [1, {"b": None}]},
        {"a": "x" * 100_000},
    ]  # fmt: skip
    with MonitorStore(url) as store:
        store.keep("prices", [change(number, number, after=state) for number, state in enumerate(states)])

        for number, state in enumerate(states):
            (shot,) = store.history("prices", "shop", number)
            assert (type(shot.state), shot.state) == (type(state), state)


def test_bytes_and_deep_states(url: str) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with MonitorStore(url) as store:
        store.keep("prices", [change(1, after={"raw": b"\x00\xff"}), change(2, after=deep)])

        assert [shot.state for shot in store.history("prices", "shop", "sku-1")] == [deep, {"raw": {"$bytes": "AP8="}}]


def test_what_is_out_of_bounds_is_refused(sqlite_url: str) -> None:
    with MonitorStore(sqlite_url) as store:
        for limit in (0, -1, 10_001, 1.0, True, None):
            for call in (
                lambda limit=limit: store.history("prices", "shop", "sku-1", limit=limit),
                lambda limit=limit: store.pushes("prices", None, limit),
                lambda limit=limit: store.keys("prices", limit=limit),
            ):
                with pytest.raises(ConfigurationError, match="pass limit"):
                    call()
        for bad in (float("nan"), float("inf"), "1", True):
            for bound in ("since", "until"):
                with pytest.raises(ConfigurationError, match=f"pass {bound}"):
                    prices(store, **{bound: bad})
            with pytest.raises(ConfigurationError, match="pass seconds"):
                store.prune("prices", bad)


def test_keys_page_by_page(url: str) -> None:
    with MonitorStore(url) as store:
        # Given sources whose names begin alike, keys with histories, and another monitor
        sources = ["a", "a b", "a!", "a~", "aa", "A", "%20", "z"]
        made = [(source, key) for source in sources for key in ("k", "k ", "K", 7, "7", (7,), ("k", 7), "-", "_")]
        changes = [
            change(number * 10 + again, key, source=source)
            for number, (source, key) in enumerate(made)
            for again in range(3)
        ]
        store.keep("prices", changes)
        store.keep("other", [change(1, "not here")])

        # when they are read in pages
        found: list[Any] = []
        while page := store.keys("prices", limit=7, after=found[-1] if found else None):
            assert len(page) <= 7
            found += page

        # expect each once, in the same order as all at once, and those of one source alone
        assert found == store.keys("prices", limit=10_000)
        assert sorted(map(repr, found)) == sorted(map(repr, made))
        for source in sources:
            assert store.keys("prices", source) == [one for one in found if one[0] == source]
            rest = store.keys("prices", source, limit=3, after=store.keys("prices", source, limit=4)[-1])
            assert rest == [one for one in found if one[0] == source][4:7]
        assert store.keys("prices", "z", after=("a", "k")) == store.keys("prices", "z")
        assert store.keys("prices", "a", after=("z", "k")) == []
        assert store.keys("prices", "no such") == store.keys("nobody") == []


@pytest.mark.parametrize("exact", [True, False])
def test_pages_do_not_depend_on_the_locale(postgres: Any, exact: bool) -> None:
    # Given a database in which small and large letters are neighbours, and signs come before everything
    name = f"english_{exact}".lower()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"create database {name} template template0 encoding 'UTF8' locale_provider icu icu_locale 'en-US'"
        )
    url = f"postgresql://holdfast@/{name}?host={postgres.directory}"
    made = [(source, key) for source in ("a", "A", "a b", "a-", "b") for key in ("k", "K", "_", "-k", 7, ("k",), "z")]
    with MonitorStore(url) as store:
        if not exact:
            execute(url, 'alter table holdfast_memory_snapshots alter place type text collate "default"')
        store.keep("prices", [change(n, key, source=source) for n, (source, key) in enumerate(made)])

        found: dict[str, list[Any]] = {}
        for source, _ in made:
            pages: list[Any] = []
            for _ in range(4):  # seven keys; in a wrong order it would go round in a circle
                pages += store.keys("prices", source, limit=3, after=pages[-1] if pages else None)
            found[source] = pages

        # expect all, and only those, of each source; left to the locale, it is not so
        right = all(
            sorted(map(repr, pages)) == sorted(repr(one) for one in made if one[0] == source)
            for source, pages in found.items()
        )
        assert right is exact


# -- names that mean harm ---------------------------------------------------------------------------------------------

HOSTILE = [
    "a", "A", "a ", "a:b", "a/b", "NUL \x00", "half \ud800", "\ud83d\ude00", "😀", "caf\u00e9", "cafe\u0301", "%41",
    "%", "'; drop table x; --", '"', "\\", "{}", "*", "a\nb", "1", "[1]", '["a"]', "x" * 170, "茶" * 56, "$bytes",
]  # fmt: skip
HOSTILE_KEYS = [
    *HOSTILE, "", 1, -1, 0, 2**64, (1,), ("1",), ("a",), ("a", "b"), ("a:b",), ("a", ""), ("", "a"), (), ("a", 1),
    ("a", "1"), "x" * 5000, "x" * 4999 + "y", ("x" * 118,), "x" * 118, "x" * 119, "x" * 120, "x" * 121,
]  # fmt: skip


def test_no_two_keys_are_taken_for_one(url: str) -> None:
    with MonitorStore(url) as store:
        store.keep("prices", [change(number, key) for number, key in enumerate(HOSTILE_KEYS)])

        for number, key in enumerate(HOSTILE_KEYS):
            (shot,) = store.history("prices", "shop", key)
            assert (shot.key, type(shot.key), shot.state) == (key, type(key), {"price": number})
        found = store.keys("prices", limit=10_000)
        assert sorted((repr(key) for _, key in found)) == sorted(map(repr, HOSTILE_KEYS))


def test_no_two_names_are_taken_for_one(url: str) -> None:
    with MonitorStore(url) as store:
        for number, name in enumerate(HOSTILE):
            source = name if len(name) < 170 else name * 3
            monitor = name if len(name) < 50 else name[:28]
            store.keep(monitor, [change(number, source=source, id=f"c {number} \x00\ud800")])
            store.put_subscriber(monitor, Subscriber(source, "call", "f", retries=number))
            store.put_subscriber("all", Subscriber(source, "call", "f", retries=number))
            store.record([push(number, source, monitor=monitor, detail="NUL \x00 \ud800", delivery=source)])
        for number, name in enumerate(HOSTILE):
            source = name if len(name) < 170 else name * 3
            monitor = name if len(name) < 50 else name[:28]
            (shot,) = store.history(monitor, source, "sku-1")
            assert (shot.id, shot.source, shot.state) == (f"c {number} \x00\ud800", source, {"price": number})
            assert [(one.name, one.retries) for one in store.subscribers(monitor)] == [(source, number)]
            (done,) = store.pushes(monitor, source)
            assert (done.monitor, done.subscriber, done.delivery, done.at) == (monitor, source, source, 1000.0 + number)
            assert done.detail == "NUL \ufffd \ufffd"
            assert store.keys(monitor) == [(source, "sku-1")]

        # and all of them in the order of their names
        names = [one.name for one in store.subscribers("all")]
        assert names == sorted(names)
        assert len(names) == len(HOSTILE)


def test_the_longest_names_fit_into_the_indexes(url: str) -> None:
    # Given names that cannot be compressed, and of which every character is escaped
    dice = random.Random(7)
    monitor, change_id = ("".join(dice.choices("abcdefghijklmnopqrstuvwxyz012345", k=255)) for _ in range(2))
    other, long = ("".join(map(chr, dice.choices(range(32), k=count))) for count in (512, 5000))
    with MonitorStore(url, prefix="p" * 40) as store:
        store.keep(monitor, [change(1, long, source=other, id=change_id)])
        store.put_subscriber(monitor, Subscriber(other, "call", "f"))
        store.record([push(1, other, monitor=monitor, delivery=other)])

        assert store.latest(monitor, other, long).state == {"price": 1}
        assert store.keys(monitor) == [(other, long)]
        assert len(store.subscribers(monitor)) == len(store.pushes(monitor, other)) == 1
        assert store.prune(monitor, 60) == 2


# -- subscribers ------------------------------------------------------------------------------------------------------

FULL = Subscriber(
    name="ops", sink="webhook", target="https://example.org/hook", secret=SECRET, sources=("shop", "s\x00"),
    keys=("sku-*", ("a", "?*")), fields=("price",), min_change={"price": "5%", "stock": 2.5}, first=True, interval=60,
    quiet=("22:00", "07:00"), timezone="Europe/Berlin", max_changes=7, retries=0, retry_delay=0.5, backoff=2.0,
    jitter=0.25, timeout=3, enabled=False,
)  # fmt: skip


def test_a_subscriber_comes_back_as_it_was(url: str) -> None:
    with MonitorStore(url) as store:
        assert store.subscribers("prices") == []
        plain = Subscriber("a", "slack", "https://example.org")
        for one in (FULL, plain):
            store.put_subscriber("prices", one)
        store.put_subscriber("other", Subscriber("b", "call", "f"))

        assert store.subscribers("prices") == [plain, FULL]
        replaced = dataclasses.replace(FULL, enabled=True, secret="")
        store.put_subscriber("prices", replaced)
        assert store.subscribers("prices") == [plain, replaced]
        assert store.remove_subscriber("prices", "ops") is True
        assert store.remove_subscriber("prices", "ops") is False
        assert store.subscribers("prices") == [plain]
        assert len(store.subscribers("other")) == 1


def test_what_has_its_default_is_not_written(url: str) -> None:
    with MonitorStore(url) as store:
        store.put_subscriber("prices", Subscriber("a", "slack", "https://example.org", retries=5))

        assert rows(url, "select record from holdfast_memory_subscribers") == [
            ('{"sink":"slack","target":"https://example.org","retries":5}',)
        ]


def test_lists_are_as_good_as_tuples(sqlite_url: str) -> None:
    given = Subscriber(
        "a", "call", "f", sources=["x"], keys=["*", ["a", "b"]], quiet=["22:00", "07:00"],
        min_change=MappingProxyType({"a": 1}),
    )  # fmt: skip
    with MonitorStore(sqlite_url) as store:
        store.put_subscriber("prices", given)

        (found,) = store.subscribers("prices")
        assert (found.sources, found.keys, found.quiet) == (("x",), ("*", ("a", "b")), ("22:00", "07:00"))
        assert found.min_change == {"a": 1}


WRONG: list[dict[str, Any]] = [
    {"interval": float("nan")}, {"retries": "3"}, {"secret": b"raw"}, {"quiet": ("1", "2", "3")}, {"keys": (1,)},
    {"min_change": {"a": None}}, {"target": None}, {"target": "\ud83d\ude00"}, {"sources": "shop"},
    {"fields": {"a": object()}}, {"enabled": 2}, {"secret": [SECRET]},
]  # fmt: skip


def test_what_would_not_come_back_is_refused(sqlite_url: str) -> None:
    # One that cannot be read would keep all subscribers of the monitor from being read
    with MonitorStore(sqlite_url) as store:
        for wrong in WRONG:
            with pytest.raises(InvalidPayload) as refused:
                store.put_subscriber("prices", dataclasses.replace(FULL, **wrong))
            assert SECRET not in told(refused.value)
        assert store.subscribers("prices") == []


def test_what_cannot_be_read_is_not_passed_over(url: str) -> None:
    with MonitorStore(url) as store:
        for name in ("a", "ops"):
            store.put_subscriber("prices", Subscriber(name, "call", "f"))
        for record, expected, says in (
            ('{"sink":"x","target":"y","shape":"SECRET"}', NewerPayload, "run a newer version here: .*'ops'.*shape"),
            ('{"sink":"x"}', UnreadablePayload, "inspect what wrote subscriber 'ops' of monitor 'prices'.*target"),
            ('{"sink":"x","target":"y","secret":["SECRET"]}', UnreadablePayload, "inspect .*'ops'.*secret"),
            ("SECRET", UnreadablePayload, "inspect .*'ops'"),
            ("[]", UnreadablePayload, "inspect .*'ops'"),
        ):
            written = record.replace("SECRET", SECRET)
            execute(url, f"update holdfast_memory_subscribers set record = '{written}' where name = 'ops'")

            with pytest.raises(expected, match=says) as failed:
                store.subscribers("prices")
            assert SECRET not in told(failed.value)
            assert type(failed.value) is expected


def test_a_snapshot_that_cannot_be_read_says_which(url: str) -> None:
    with MonitorStore(url) as store:
        store.keep("prices", [change(1), change(2, key="sku-2")])
        execute(
            url,
            f"update holdfast_memory_snapshots set state = '{{' where id = '{change(1).id}'",
            f"update holdfast_memory_snapshots set key_text = '{{}}' where id = '{change(2).id}'",
        )

        with pytest.raises(UnreadablePayload, match=f"inspect what wrote snapshot '{change(1).id}' of monitor"):
            store.history("prices", "shop", "sku-1")
        with pytest.raises(UnreadablePayload, match="inspect what wrote the history of monitor 'prices'"):
            store.keys("prices")


def test_of_many_who_put_one_stays_whole(url: str) -> None:
    made = [
        Subscriber("ops", "call", f"f{n}", secret=f"s{n}", retries=n, fields=tuple(map(str, range(n))))
        for n in range(8)
    ]
    with MonitorStore(url) as one, MonitorStore(url) as other:
        together(
            *(lambda n=n: (one, other)[n % 2].put_subscriber("prices", made[n]) for n in range(8)),
        )

        (found,) = one.subscribers("prices")
        assert found in made
        assert rows(url, "select count(*) from holdfast_memory_subscribers") == [(1,)]


def test_no_secret_in_what_is_printed(caplog: pytest.LogCaptureFixture, url: str) -> None:
    # Given an engine of one's own that logs all that it can: statements, parameters and rows
    caplog.set_level(logging.DEBUG)
    engine = sa.create_engine(Database(url).engine.url, echo="debug")
    with MonitorStore(engine) as store:
        store.put_subscriber("prices", FULL)
        store.put_subscriber("prices", FULL)
        assert store.subscribers("prices")[0].secret == SECRET
        with store._db.write("test") as connection:
            connection.exec_driver_sql("drop table holdfast_memory_subscribers")
        with pytest.raises((Unavailable, sa.exc.ProgrammingError)) as failed:
            store.put_subscriber("prices", FULL)

        shown = caplog.text + told(failed.value) + repr(store) + repr(FULL)
    engine.dispose()
    assert "***" in caplog.text
    assert "Row (" in caplog.text
    assert SECRET not in shown


# -- the push log -----------------------------------------------------------------------------------------------------


def test_the_push_log_is_newest_first(url: str) -> None:
    with MonitorStore(url) as store:
        store.record([push(number, ("ops", "dev")[number % 2]) for number in range(1200)])
        store.record([push(5, "ops", outcome="dead", detail="HTTP 500", attempt=4, latency=1.5)])
        store.record([push(0, monitor="other")])

        assert [one.delivery for one in store.pushes("prices", None, 3)] == ["d1199", "d1198", "d1197"]
        assert [one.delivery for one in store.pushes("prices", "ops", 2)] == ["d1198", "d1196"]
        assert len(store.pushes("prices", limit=10_000)) == 1201
        assert len(store.pushes("prices")) == 100
        found = store.pushes("prices", limit=10_000)
        assert found[-7:-5] == [
            push(5, "ops", outcome="dead", detail="HTTP 500", attempt=4, latency=1.5),
            push(5, "dev"),
        ]
        assert store.pushes("other") == [push(0, monitor="other")]
        assert store.pushes("prices", "nobody") == []


# -- pruning ----------------------------------------------------------------------------------------------------------


def aged(store: MonitorStore, ages: Sequence[float]) -> None:
    at = now(store)
    # Observed at other times than they were found: the observer's clock must not decide.
    store.keep("prices", [change(n, f"k{n}", at=at - age, observed_at=at + age) for n, age in enumerate(ages)])
    store.keep("other", [change(n, f"k{n}", at=at - age) for n, age in enumerate(ages)])
    store.record([push(n, at=at - age) for n, age in enumerate(ages)])
    store.record([push(n, at=at - age, monitor="other") for n, age in enumerate(ages)])


def test_what_is_old_is_pruned_by_the_clock_of_the_database(url: str) -> None:
    with MonitorStore(url) as store:
        aged(store, [5000, 3700, 3500, -3600, 0])

        assert store.prune("prices", 3600) == 4
        assert [key for _, key in store.keys("prices")] == ["k2", "k3", "k4"]
        assert sorted(one.delivery for one in store.pushes("prices")) == ["d2", "d3", "d4"]
        assert store.prune("prices", 3600) == 0
        assert len(store.keys("other")) == len(store.pushes("other")) == 5
        assert store.prune("nobody", 0) == 0


def test_a_large_prune_is_many_small_ones(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PRUNED_AT_ONCE", 20)
    with MonitorStore(url) as store:
        aged(store, [5000.0] * 190 + [0.0] * 10)
        gone: list[int] = []
        sa.event.listen(
            store._db.engine, "after_cursor_execute",
            lambda _, cursor, statement, *__: gone.append(cursor.rowcount) if "DELETE" in statement else None,
        )  # fmt: skip

        assert store.prune("prices", 3600) == 380

        assert gone == [*[20] * 9, 10] * 2
        assert len(store.keys("prices", limit=1000)) == len(store.pushes("prices", limit=1000)) == 10


def test_many_may_prune_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_PRUNED_AT_ONCE", 10)
    with MonitorStore(url) as one, MonitorStore(url) as other:
        aged(one, [5000.0] * 150 + [0.0] * 5)

        gone = together(*(lambda store=store: store.prune("prices", 3600) for store in (one, other, one, other)))

        assert sum(gone) == 300
        assert len(one.keys("prices", limit=1000)) == len(one.pushes("prices", limit=1000)) == 5


def test_a_row_that_another_one_removes_is_not_waited_for(postgres: Any) -> None:
    url = postgres.empty() + "%20-clock_timeout%3D3000"  # so that it would end
    with MonitorStore(url) as store:
        aged(store, [5000.0] * 10)
        with store._db.write("test") as connection:
            connection.exec_driver_sql(
                "select 1 from holdfast_memory_snapshots where monitor = 'prices' order by id limit 3 for update"
            )

            assert store.prune("prices", 3600) == 17
        assert store.prune("prices", 3600) == 3


# -- indexes ----------------------------------------------------------------------------------------------------------


def plan(url: str, statement: str, parameters: Any) -> str:
    own = Database(url)  # the driver would answer from what it has prepared
    with own.read("test") as connection:
        explain = "EXPLAIN QUERY PLAN " if own.sqlite else "EXPLAIN (VERBOSE) "
        found = connection.exec_driver_sql(explain + statement, parameters).all()
    own.close()
    return "\n".join(str(row[-1]) for row in found)


def test_nothing_reads_a_whole_table_or_sorts_it(url: str) -> None:
    # Given enough rows that a database which can choose would use the indexes
    with MonitorStore(url) as store:
        store.keep("prices", [change(n, f"k{n % 40}") for n in range(2500)])
        store.record([push(n, f"s{n % 40}") for n in range(2500)])
        execute(url, "analyze")
        seen = watch(store)
        for call in (
            lambda: store.history("prices", "shop", "k7", limit=5, since=1500.0, until=3000.0),
            lambda: store.latest("prices", "shop", "k7"),
            lambda: store.keys("prices", "shop", limit=5),
            lambda: store.keys("prices", limit=5, after=("shop", "k7")),
            lambda: store.pushes("prices", None, 5),
            lambda: store.pushes("prices", "s7", 5),
            lambda: store.prune("prices", 100 * 365 * 86400),
        ):
            call()
        plans = [plan(url, *one) for one in tuple(seen) if "_snapshots" in one[0] or "_pushes" in one[0]]

        # expect the index of each and nothing to be sorted; the page of keys itself is not the table
        assert len(plans) == 8
        for found in plans:
            assert re.search("_(snapshots_place|snapshots_at|pushes_at|pushes_told)", found)
            assert "Seq Scan" not in found
            assert "SCAN holdfast" not in found
            if "page" not in found:
                assert "TEMP B-TREE" not in found
                assert "Sort" not in found

        # and that it would be seen if it were not so
        execute(url, "drop index holdfast_memory_snapshots_place")
        assert re.search("TEMP B-TREE|Sort", plan(url, *next(one for one in seen if "_snapshots" in one[0])))


# -- tables -----------------------------------------------------------------------------------------------------------


def test_a_database_of_version_4_gets_the_tables_and_keeps_its_rows(url: str) -> None:
    # Given one with an archived run
    old = Database(url)
    old.prepare()
    assert migrate(old, Tables("holdfast_memory"), STEPS[:4]) == 4
    old.close()
    execute(
        url,
        "insert into holdfast_memory_runs "
        "(collection, run, kind, state, reason, attempt, created, input, result, events) "
        "values ('agent', 'run-1', 'agent', 'completed', '', 1, 10.0, '1', '2', '[]')",
    )

    # when it is opened
    with MonitorStore(url) as store:
        store.keep("prices", [change(1)])

        # expect both
        assert prices(store) == [1]
        archived = RunArchive(store._store).get("agent", "run-1")
        assert archived is not None
        assert (archived.state, archived.result) == ("completed", 2)
        assert rows(url, "select max(version) from holdfast_memory_schema") == [(5,)]


def test_many_that_start_at_once_make_the_tables_once(url: str) -> None:
    stores = [MonitorStore(url) for _ in range(4)]

    together(*(store.open for store in stores))

    stores[0].keep("prices", [change(1)])
    assert [prices(store) for store in stores] == [[1]] * 4
    for store in stores:
        store.close()


def test_prefixes_keep_monitors_apart(url: str) -> None:
    with MonitorStore(url, prefix="one") as one, MonitorStore(url, prefix="other") as other:
        one.keep("prices", [change(1)])

        assert (prices(one), prices(other)) == ([1], [])


# -- life -------------------------------------------------------------------------------------------------------------


async def test_the_database_of_a_memory_is_shared_and_left_open(url: str) -> None:
    async with Memory(url) as memory:
        with MonitorStore(memory) as store:
            store.keep("prices", [change(1)])
        assert prices(store) == [1]
        assert await memory.recall("user-7") == []


def test_a_store_that_is_passed_in_must_be_open(sqlite_url: str) -> None:
    with pytest.raises(ConfigurationError, match="pass the prefix to the Memory or Store"):
        MonitorStore(Store(sqlite_url), prefix="mine")
    with MonitorStore(Store(sqlite_url)) as store, pytest.raises(ConfigurationError, match="open it first"):
        store.keys("prices")


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("subscribers", ("prices",)), ("put_subscriber", ("prices", FULL)), ("remove_subscriber", ("prices", "ops")),
        ("keep", ("prices", [change(1)])), ("record", ([push(1)],)), ("history", ("prices", "shop", "sku-1")),
        ("pushes", ("prices", None, 5)), ("prune", ("prices", 5)), ("keys", ("prices",)),
    ],
)  # fmt: skip
def test_what_is_not_open_says_so(sqlite_url: str, call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError, match="open it first"):
        getattr(MonitorStore(sqlite_url), call)(*arguments)


def test_it_can_be_opened_and_closed_again(url: str) -> None:
    store = MonitorStore(url)
    for _ in range(2):
        store.open()
        store.open()
        store.keep("prices", [change(1)])
        store.close()
        store.close()
    with store:
        assert prices(store) == [1]


def test_a_database_in_memory_serves_many_threads() -> None:
    with MonitorStore("sqlite://") as store:
        together(*(lambda n=n: store.keep("prices", [change(n)]) for n in range(8)))

        assert len(prices(store)) == 8


# -- a database that is gone ------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    store = MonitorStore(f"postgresql://holdfast:{SECRET}@/x?host={tmp_path}")

    with pytest.raises(Unavailable) as failed:
        store.open()

    assert SECRET not in told(failed.value) + repr(store)
    store.close()


def test_a_locked_file_is_unavailable_and_nothing_is_kept(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    with MonitorStore(sqlite_url) as store:
        other = sqlite3.connect(store._db.engine.url.database, isolation_level=None)
        other.execute("begin immediate")

        for call in (lambda: store.keep("prices", [change(1)]), lambda: store.put_subscriber("prices", FULL)):
            with pytest.raises(Unavailable, match="check that the database of the memory is up"):
                call()

        assert prices(store) == []  # who only reads does not wait
        other.execute("rollback")
        other.close()
        store.keep("prices", [change(1)])
        assert prices(store) == [1]


def test_a_connection_that_is_cut(postgres: Any) -> None:
    url = postgres.empty()
    with MonitorStore(url) as store:

        def cut(connection: Any, *_: Any) -> None:
            with store._db.engine.connect() as own:
                pid = connection.connection.dbapi_connection.info.backend_pid
                own.exec_driver_sql(f"select pg_terminate_backend({pid})")

        # Given a server that ends it before the commit: it may have happened
        sa.event.listen(store._db.engine, "commit", cut)
        with pytest.raises(Indeterminate, match="send it again"):
            store.keep("prices", [change(1)])
        sa.event.remove(store._db.engine, "commit", cut)

        # or before the statement: it has not
        sa.event.listen(store._db.engine, "before_cursor_execute", Once(cut))
        with pytest.raises(Unavailable):
            store.keep("prices", [change(1)])

        # expect that sending it again resolves it
        store.keep("prices", [change(1)])
        assert prices(store) == [1]


class Once:
    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call
        self.done = False

    def __call__(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not self.done and statement.startswith("INSERT"):
            self.done = True
            self.call(connection)
