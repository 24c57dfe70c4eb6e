"""Looking at pages: what is asked for and told, what a failure changes, and that nobody is asked too often."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from typing import Any

import pytest
from fetch_help import Alone, Board, page, running, versioned
from http_endpoint import Behaviour, Endpoint, Handler, answers, breaks_off, drips, drops, floods, hangs, redirects

import holdfast.sync
from holdfast import ConfigurationError, Holdfast, TooLarge, Unavailable
from holdfast.events import Fetched, FetchFailing, FetchRecovered
from holdfast.monitor.extract import MOST_BYTES
from holdfast.monitor.fetch import FULL_AFTER, make_fetch
from holdfast.monitor.fetcher import Fetcher
from holdfast.monitor.outgoing import Outgoing
from support.backends import Backend
from support.conditions import until
from support.working import Working

# -- what is told -----------------------------------------------------------------------------------------------------


async def test_a_change_is_seen_once() -> None:
    with Endpoint(page("1"), page("1"), page("2"), page("2")) as endpoint:
        async with running(make_fetch(endpoint.url("/a"), every=60), real_reader=True) as bench:
            await bench.looks(4)

    assert bench.log.outcomes == ["first", "unchanged", "changed", "unchanged"]
    assert bench.board.told[0] == ("http", endpoint.url("/a"), "1")


async def test_what_counts_is_taken_out_and_called_as_asked() -> None:
    with Endpoint(page({"price": 3, "at": 1}), page({"price": 3, "at": 2})) as endpoint:
        fetch = make_fetch(endpoint.url(), json="$.price", key=("shop", 7), source="api", headers={"X-Token": "a b"})
        async with running(fetch) as bench:
            await bench.looks(2)

    assert bench.board.told == [("api", ("shop", 7), 3)] * 2
    assert [received.headers["x-token"] for received in endpoint.requests] == ["a b"] * 2


async def test_two_sources_may_know_a_thing_by_the_same_name() -> None:
    with Endpoint(page("1")) as endpoint:
        fetches = [make_fetch(endpoint.url(f"/{source}"), key="tea", source=source) for source in ("a", "b")]
        async with running(*fetches) as bench:
            await bench.looks(2)

    assert sorted(bench.board.told) == [("a", "tea", "1"), ("b", "tea", "1")]
    assert len({received.path for received in endpoint.requests}) == 2


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_an_extraction_of_the_application(kind: str) -> None:
    def plain(body: bytes, content_type: str) -> Any:
        return {"length": len(body), "type": content_type}

    async def later(body: bytes, content_type: str) -> Any:
        return plain(body, content_type)

    with Endpoint(page("four")) as endpoint:
        async with running(make_fetch(endpoint.url(), extract=plain if kind == "plain" else later)) as bench:
            await bench.looks(1)

    assert bench.board.states == [{"length": 4, "type": "text/plain"}]


@pytest.mark.parametrize("twin", [Holdfast, holdfast.sync.Holdfast], ids=["async", "sync"])
async def test_a_monitor_that_fetches_tells_of_the_change(
    valkey: Backend, twin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a client that watches a page, and a page that changes
    monkeypatch.setattr("holdfast.monitor.fetcher.FIRST", 0.01)
    told = []
    with Endpoint(page({"price": 1}), page({"price": 2})) as endpoint:
        works = Working(twin(valkey.url))
        venues = works.hf.monitor("venues", allow=["127.0.0.1"])
        venues.fetch(endpoint.url(), every=1, json="$.price")
        venues.on_change(lambda delivery: told.extend(delivery.changes))

        # When it works, and is stopped
        await works.call(works.hf.open)
        works.start()
        await until(lambda: told)
        await works.call(works.hf.stop_work)
        await works.working
        await works.call(works.hf.close)

    # Expect that the change is told, once
    assert [(change.source, change.key, change.before, change.after) for change in told] == [
        ("http", endpoint.url(), 1, 2)
    ]
    assert [event.outcome for event in works.events if isinstance(event, Fetched)][:2] == ["first", "changed"]


# -- what did not change is not sent again ----------------------------------------------------------------------------


def validators(endpoint: Endpoint) -> list[str | None]:
    return [received.headers.get("if-none-match") for received in endpoint.requests]


async def test_an_unchanged_page_is_not_sent_again_and_nothing_is_observed() -> None:
    versions = {"now": "1"}
    with Endpoint() as endpoint:
        endpoint.always(versioned(endpoint, versions))
        async with running(make_fetch(endpoint.url())) as bench:
            await bench.looks(3)
            versions["now"] = "2"
            await bench.looks(5)

    assert validators(endpoint) == [
        None,
        '"1"',
        '"1"',
        '"1"',
        '"2"',
    ]
    assert bench.log.outcomes == ["first", "unchanged", "unchanged", "changed", "unchanged"]
    assert bench.board.states == ["1", "2"]


async def test_a_date_serves_as_well() -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    with Endpoint(page("1", Last_Modified=date), answers(304)) as endpoint:
        async with running(make_fetch(endpoint.url())) as bench:
            await bench.looks(2)

    assert endpoint.requests[1].headers["if-modified-since"] == date
    assert bench.board.states == ["1"]


async def test_now_and_then_it_is_asked_for_in_full() -> None:
    with Endpoint() as endpoint:
        endpoint.always(versioned(endpoint, {"now": "1"}))
        async with running(make_fetch(endpoint.url(), every=FULL_AFTER * 0.8)) as bench:
            await bench.looks(4)

    assert validators(endpoint) == [None, '"1"', None, '"1"']


async def test_a_304_that_was_not_asked_for_is_a_failure() -> None:
    with Endpoint(answers(304)) as endpoint:
        async with running(make_fetch(endpoint.url())) as bench:
            await bench.looks(1)

    assert bench.log.outcomes == ["failed"]


async def test_what_the_monitor_did_not_learn_is_told_again() -> None:
    # Given a server of the fleet that is away when the page is new: "not modified" afterwards would lose the change
    with Endpoint() as endpoint:
        endpoint.always(versioned(endpoint, {"now": "1"}))
        async with running(make_fetch(endpoint.url())) as bench:
            bench.board.errors = [Unavailable("check the server")]
            await bench.looks(1)

    assert validators(endpoint) == [None, None]
    assert bench.board.states == ["1"]


async def test_what_others_saw_meanwhile_is_put_right() -> None:
    # Given a page that we saw as 1, and another process as 2
    versions = {"now": "1"}
    with Endpoint() as endpoint:
        endpoint.always(versioned(endpoint, versions))
        async with running(make_fetch(endpoint.url(), every=60)) as bench:
            await bench.looks(1)
            bench.fleet.taken = True
            await bench.moments.skip()
            await bench.moments.skip()
            await until(lambda: len(bench.fleet.claims) == 2)
            await bench.board.observe("http", endpoint.url(), "2")

            # When it is 1 again, and we look: for us nothing is modified
            bench.fleet.taken = False
            await bench.looks(3)

    # Expect that the monitor learns of it all the same, once
    assert validators(endpoint) == [None, '"1"', '"1"']
    assert bench.board.states == ["1", "2", "1"]


# -- failures ---------------------------------------------------------------------------------------------------------

FAILURES: dict[str, tuple[Behaviour, str]] = {
    "500": (answers(500), "check the page: it answers with status 500"),
    "404": (answers(404, "secret"), "check the page: it answers with status 404"),
    "204": (answers(204), "check the page: it answers with status 204"),
    "redirect": (
        redirects("https://other.example/x?token=secret#secret", 301),
        "use the URL that it redirects to, https://other.example/x: redirects are not followed",
    ),
    "dropped": (drops, "closed the connection"),
    "cut": (breaks_off(), "breaks off"),
    "hangs": (hangs, "no answer within 0.2 s"),
    "drips": (drips(), "no answer within 0.2 s"),
    "floods": (floods(), f"more than {MOST_BYTES} bytes"),
    "nothing": (page({"other": 1}), "check json '$.price': nothing on the page matches"),
    "no JSON": (page("secret"), "check the page: it is no JSON"),
}


@pytest.mark.parametrize(("behaviour", "message"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_changes_nothing_and_then_it_recovers(behaviour: Behaviour, message: str) -> None:
    with Endpoint(page({"price": 1}), behaviour, page({"price": 1}), page({"price": 2})) as endpoint:
        real = behaviour in (FAILURES["nothing"][0], FAILURES["no JSON"][0])
        fetch = make_fetch(endpoint.url("/?secret"), json="$.price", timeout=0.2)
        async with running(fetch, real_reader=real) as bench:
            await bench.looks(1)
            started = time.monotonic()
            await bench.looks(2)
            took = time.monotonic() - started
            await bench.looks(4)

    assert bench.log.outcomes == ["first", "failed", "unchanged", "changed"]
    assert bench.board.states == [1, 1, 2]
    (error,) = [event.error for event in bench.log.events if event.error]
    assert message in error
    assert "secret" not in str(bench.log.events)
    assert took < 5


@pytest.mark.parametrize(
    ("error", "outcome"), [(TooLarge("store less"), "failed"), (Unavailable("wait"), None)], ids=["page", "server"]
)
async def test_only_what_the_page_is_to_blame_for_counts_as_its_failure(error: Exception, outcome: str | None) -> None:
    with Endpoint(page("1")) as endpoint:
        async with running(make_fetch(endpoint.url())) as bench:
            bench.board.errors = [error]
            await bench.looks(1)

    assert bench.log.outcomes == [outcome or "first"]


async def test_an_extraction_that_raises_is_a_failure_of_the_page() -> None:
    def broken(body: bytes, content_type: str) -> Any:
        raise KeyError("secret")

    with Endpoint(page("1")) as endpoint:
        async with running(make_fetch(endpoint.url(), extract=broken)) as bench:
            await bench.looks(1)

    assert [event.error for event in bench.log.events] == ["check the extract function: it raised KeyError"]


async def test_a_page_that_fails_is_told_once_and_once_that_it_recovered() -> None:
    with Endpoint(page("1")) as endpoint:
        async with running(make_fetch(endpoint.url("/a?key=secret"), alert_after=3)) as bench:
            endpoint.fail(2)
            await bench.looks(3)
            assert bench.log.of(FetchFailing) == []

            endpoint.fail(6)
            await bench.looks(10)
            endpoint.fail(3)
            await bench.looks(14)

    error, shown = "check the page: it answers with status 500", endpoint.url("/a")
    assert bench.log.of(FetchFailing) == [FetchFailing("pages", shown, "127.0.0.1", 3, error)] * 2
    assert bench.log.of(FetchRecovered) == [
        FetchRecovered("pages", shown, "127.0.0.1", 6),
        FetchRecovered("pages", shown, "127.0.0.1", 3),
    ]


# -- the schedule -----------------------------------------------------------------------------------------------------


async def test_a_page_that_fails_is_asked_for_less_and_less_often() -> None:
    with Endpoint(answers(500)) as endpoint:
        async with running(make_fetch(endpoint.url(), every=60), delay=0.0) as bench:
            await bench.looks(8)
            endpoint.always(page("1"))
            await bench.looks(11)

    pauses = [after - before for before, after in itertools.pairwise([1000.0, *bench.log.looked_at])]
    assert pauses.pop(0) <= 1.0
    for pause, times in zip(pauses, [1, 2, 4, 8, 10, 10, 10, 10, 1, 1], strict=True):
        assert 0.95 * times * 60 <= pause <= 1.05 * times * 60
    assert len(set(pauses)) == len(pauses)  # spread, so that processes do not go in step


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry_After": "120"}, 120.0),
        (503, {"Retry_After": "Wed, 21 Oct 2015 07:30:00 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 120.0),
        (429, {"Retry_After": "999999999"}, 86_400.0),
        (429, {"Retry_After": "soon"}, 1.0),
        (503, {"Retry_After": "Wed, 21 Oct 2015 07:30:00 GMT"}, 1.0),
        (500, {"Retry_After": "120"}, 1.0),
        (429, {}, 1.0),
    ],
)
async def test_a_host_that_wants_to_be_left_alone_is(status: int, headers: dict[str, str], pause: float) -> None:
    # Given two pages of a host, of which the first asks for a pause
    with Endpoint(answers(status, **headers), page("1")) as endpoint:
        fetches = [make_fetch(endpoint.url(path), every=10) for path in ("/a", "/b")]
        async with running(*fetches) as bench:
            await bench.moments.skip()
            await until(lambda: bench.log.outcomes)

            # Expect that neither is asked for before it is over
            assert await bench.moments.rest() == pytest.approx(pause)
            bench.moments.move(pause)
            await bench.looks(3)

    assert bench.log.outcomes[0] == "failed"
    assert len({received.path for received in endpoint.requests}) == 2


async def test_while_the_server_of_the_fleet_is_away_nothing_is_fetched() -> None:
    with Endpoint(page("1")) as endpoint:
        async with running(make_fetch(endpoint.url(), every=60)) as bench:
            bench.fleet.error = Unavailable("check the server")
            for _ in range(3):
                await bench.moments.skip()
            assert endpoint.requests == []

            bench.fleet.error = None
            await bench.looks(1)

    assert bench.log.outcomes == ["first"]
    assert bench.fleet.claims[0] == ("fetch:pages", ("http", endpoint.url()), 54.0)


# -- politeness -------------------------------------------------------------------------------------------------------


class Site:
    """An endpoint that takes its time, and knows who was there when."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.visits: list[tuple[float, float]] = []
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, handler: Handler) -> None:
        started = time.monotonic()
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        handler.server.endpoint.release.wait(self.seconds)
        with self._lock:
            self.inside -= 1
            self.visits.append((started, time.monotonic()))
        handler.reply(200, b"1", {"Content-Type": "text/plain"})

    def check(self, delay: float) -> None:
        visits = sorted(self.visits)
        assert self.most == 1, "two at a time"
        pauses = [after[0] - before[1] for before, after in itertools.pairwise(visits)]
        assert min(pauses) >= delay, "too soon after the one before"


@contextlib.asynccontextmanager
async def fleet_of(count: int, backend: Backend, *fetches: Any, **options: Any) -> Any:
    """So many clients that look at the same pages, in real time."""
    async with contextlib.AsyncExitStack() as stack:
        benches = []
        for _ in range(count):
            client = await stack.enter_async_context(Holdfast(backend.url))
            options = {"real_time": True, **options}
            benches.append(await stack.enter_async_context(running(*fetches, fleet=client, **options)))
        yield benches


async def visit_politely(backend: Backend, delay: float) -> Site:
    site = Site(0.02)
    with Endpoint(site) as endpoint:
        fetches = [make_fetch(endpoint.url(f"/{number}"), every=100) for number in range(12)]
        async with fleet_of(2, backend, *fetches, delay=delay):
            await until(lambda: len(site.visits) == 12)
    return site


async def test_a_host_is_asked_by_one_at_a_time_in_the_whole_fleet(
    valkey: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.monitor.fetcher.FIRST", 0.01)
    (await visit_politely(valkey, 0.03)).check(0.03)

    # And without the lock the check says so
    valkey.flush()
    monkeypatch.setattr(Holdfast, "lock", lambda *_, **__: contextlib.nullcontext())
    with pytest.raises(AssertionError, match="two at a time"):
        (await visit_politely(valkey, 0.03)).check(0.03)

    # And without the pause too
    valkey.flush()
    monkeypatch.undo()
    monkeypatch.setattr("holdfast.monitor.fetcher.FIRST", 0.01)
    with pytest.raises(AssertionError, match="too soon"):
        (await visit_politely(valkey, 0.0)).check(0.03)


async def time_of_three_looks(backend: Backend) -> float:
    """How long it takes until three processes that look every second have looked three times."""
    with Endpoint(page("1")) as endpoint:
        started = time.monotonic()
        async with fleet_of(3, backend, make_fetch(endpoint.url(), every=1), delay=0.0) as benches:
            await until(lambda: len(endpoint.requests) >= 3)
            watches = [bench.fetcher._lines[0].watches[0] for bench in benches]
            await until(lambda: all(watch.due > started + 0.5 for watch in watches), what="all have tried")
        return endpoint.requests[2].at - started


async def test_a_fleet_looks_once_in_an_interval(valkey: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.monitor.fetcher.FIRST", 0.01)
    assert await time_of_three_looks(valkey) > 1.8

    async def always(*_: Any, **__: Any) -> bool:
        return True

    # And without claims all three look at once
    monkeypatch.setattr(Holdfast, "once", always)
    assert await time_of_three_looks(valkey) < 1.8


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_stopped_it_finishes_the_request_under_way() -> None:
    site = Site(0.2)
    with Endpoint(site) as endpoint:
        async with Outgoing(allow=["127.0.0.1"]) as outgoing:
            async with running(make_fetch(endpoint.url()), delay=100.0) as bench:
                await bench.moments.skip()
                await until(lambda: site.inside)
                bench.fetcher.stop()
                bench.fetcher.stop()
                await until(lambda: all(line.task.done() for line in bench.fetcher._lines))
            assert bench.board.states == ["1"]

            # And one that is stopped before it runs does nothing
            before = Fetcher(Alone(time.monotonic), bench.board, outgoing, [make_fetch(endpoint.url())])
            before.stop()
            await before.run()
    assert len(endpoint.requests) == 1


async def test_stopped_while_it_waits_it_ends_at_once() -> None:
    with Endpoint(page("1")) as endpoint:
        async with running(make_fetch(endpoint.url(), every=1000), delay=100.0) as bench:
            await bench.looks(1)
            await bench.moments.rest()
            bench.fetcher.stop()
            await until(lambda: all(line.task.done() for line in bench.fetcher._lines))
            assert bench.moments.asleep == []


async def test_cancelled_it_leaves_no_process_and_no_task() -> None:
    tasks = asyncio.all_tasks()
    with Endpoint(page("1"), hangs) as endpoint:
        async with running(make_fetch(endpoint.url()), real_reader=True) as bench:
            await bench.looks(1)
            reader = bench.fetcher._reader._process.pid
            await bench.moments.skip()
            await bench.moments.skip()
            await until(lambda: len(endpoint.requests) == 2)

    assert asyncio.all_tasks() == tasks
    with pytest.raises(ProcessLookupError):
        os.kill(reader, 0)


# -- what can never work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://example.com"},
        {"url": "https://user:secret@example.com/"},
        {"url": 7},
        {"every": 0.5},
        {"every": float("nan")},
        {"css": "p["},
        {"css": "p", "extract": str},
        {"extract": "p"},
        {"timeout": 0},
        {"alert_after": 0},
        {"key": ""},
        {"key": 1.5},
        {"headers": {"X-A": "a\nsecret"}},
        {"headers": {"a b": "secret"}},
        {"headers": {"If-None-Match": "secret"}},
    ],
    ids=str,
)
def test_what_can_never_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_fetch(**{"url": "https://example.com/", **options})
    assert "secret" not in str(error.value)


async def test_what_may_not_be_reached_or_is_there_twice_is_refused() -> None:
    async with Outgoing(allow=["127.0.0.1"]) as outgoing:
        fleet, twice = Alone(time.monotonic), make_fetch("http://127.0.0.1/")
        for fetches in ([make_fetch("http://10.0.0.1/")], [make_fetch("https://10.0.0.1/")], [twice, twice]):
            with pytest.raises(ConfigurationError):
                Fetcher(fleet, Board(), outgoing, fetches)


def test_a_fetch_prints_no_secret() -> None:
    fetch = make_fetch("https://example.com/a?token=hunter2", headers={"Authorization": "Bearer hunter2"})

    assert "hunter2" not in repr(fetch)
    assert "https://example.com/a" in repr(fetch)
