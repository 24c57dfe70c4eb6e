"""Spans around what handlers do, joined to those in which it was asked for."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from spans import Spans, links, parent, place, working

from holdfast import Holdfast, LeaseLost, RunStopped
from holdfast.monitor.record import DeliveryFailed
from holdfast.observe import Counters
from holdfast.sync import Holdfast as BlockingHoldfast
from support.backends import Backend
from support.conditions import until

SECRET = "what only the user may read"


async def put(valkey: Backend, spans: Spans, requests: dict[str, list[Any]], user: str = "u") -> dict[str, Any]:
    """Messages of a user, some of them in each of several spans. Answers these, by name."""
    made = {}
    async with Holdfast(valkey.url, observers=[spans.observer]) as hf:
        inbox = hf.buffer("inbox")
        for name, items in requests.items():
            with spans.tracer.start_as_current_span(name) as made[name]:
                for item in items:
                    await inbox.append(user, item)
    return made


# -- absorb -----------------------------------------------------------------------------------------------------------


async def test_a_batch_of_one_trace_is_handled_in_that_trace(valkey: Backend) -> None:
    # Given two messages of one request
    spans, worker = Spans(), Spans()
    made = await put(valkey, spans, {"request": [SECRET, "b"]})
    hf = Holdfast(valkey.url, observers=[worker.observer])
    seen = []

    @hf.absorber(hf.buffer("inbox"), threshold=2)
    async def remember(batch: Any) -> None:
        seen.append((batch.id, batch.fence, place(trace.get_current_span())))
        with worker.tracer.start_as_current_span("model"):
            pass

    # When another client absorbs them
    async with working(hf):
        (absorb,) = await worker.first("absorb")

    # Expect a span of that trace, in which the handler runs
    assert parent(absorb) == place(made["request"])
    assert links(absorb) == []
    assert absorb.kind == SpanKind.CONSUMER
    assert absorb.status.status_code == StatusCode.UNSET
    assert dict(absorb.attributes or {}) == {
        "holdfast.collection": "inbox", "holdfast.key": "u", "holdfast.batch": seen[0][0], "holdfast.attempt": 1,
        "holdfast.fence": seen[0][1], "holdfast.messages": 2,
    }  # fmt: skip
    assert seen[0][2] == place(absorb)
    assert parent(worker.named("model")[0]) == place(absorb)
    assert "holdfast.acked" in {event.name for event in absorb.events}
    assert SECRET not in worker.text() + spans.text()


async def test_a_batch_of_several_traces_is_linked_to_each_of_them(valkey: Backend) -> None:
    # Given messages of two requests, and one of none
    spans, worker = Spans(), Spans()
    made = await put(valkey, spans, {"one": [1, 2], "two": [3]})
    async with Holdfast(valkey.url) as plain:
        await plain.buffer("inbox").append("u", 4)
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=4)
    async def remember(batch: Any) -> None: ...

    async with working(hf):
        (absorb,) = await worker.first("absorb")

    # Expect a trace of its own with a link to each
    assert parent(absorb) is None
    assert links(absorb) == [place(made["one"]), place(made["two"])]
    assert absorb.get_span_context().trace_id not in {place(one)[0] for one in made.values()}


async def test_a_batch_of_no_trace_has_a_span_all_the_same(valkey: Backend) -> None:
    worker = Spans()
    async with Holdfast(valkey.url) as plain:
        await plain.buffer("inbox").append("u", 1)
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    async def remember(batch: Any) -> None: ...

    # When the worker itself was started inside a span
    with worker.tracer.start_as_current_span("start-up"):
        async with working(hf):
            (absorb,) = await worker.first("absorb")

    # Expect that what it does is no part of that
    assert (parent(absorb), links(absorb)) == (None, [])


async def test_a_plain_function_runs_in_its_thread_inside_the_span(valkey: Backend) -> None:
    spans, worker = Spans(), Spans()
    await put(valkey, spans, {"request": [1]})
    hf = Holdfast(valkey.url, observers=[worker.observer])
    seen = []

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    def remember(batch: Any) -> None:
        seen.append(place(trace.get_current_span()))

    async with working(hf):
        (absorb,) = await worker.first("absorb")

    assert seen == [place(absorb)]


async def test_a_failed_attempt_says_the_kind_of_error_and_no_more(valkey: Backend) -> None:
    # Given a handler that fails once
    spans, worker = Spans(), Spans()
    made = await put(valkey, spans, {"request": [SECRET]})
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=1, backoff=0.0)
    async def remember(batch: Any) -> None:
        if batch.attempt == 1:
            raise LookupError(f"I do not understand {batch.messages[0].data}")

    async with working(hf):
        first, second = await worker.first("absorb", 2)

    # Expect both attempts in the trace, the first as an error whose text is nowhere
    assert parent(first) == parent(second) == place(made["request"])
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "LookupError")
    assert (first.attributes or {})["error.type"] == "LookupError"
    assert second.status.status_code == StatusCode.UNSET
    assert [(one.attributes or {})["holdfast.attempt"] for one in (first, second)] == [1, 2]
    assert SECRET not in worker.text()


async def test_a_handler_that_takes_too_long_is_an_error_of_that_kind(valkey: Backend) -> None:
    spans, worker = Spans(), Spans()
    await put(valkey, spans, {"request": [1]})
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=1, timeout=0.05)
    async def remember(batch: Any) -> None:
        await asyncio.sleep(60)

    async with working(hf):
        (late,) = await worker.first("absorb")

    assert (late.status.status_code, late.status.description) == (StatusCode.ERROR, "TimeoutError")


async def test_a_batch_that_is_lost_is_an_error_of_that_kind(valkey: Backend) -> None:
    spans, worker = Spans(), Spans()
    await put(valkey, spans, {"request": [1]})
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    async def remember(batch: Any) -> None:
        await hf.buffer("inbox").forget("u")
        await asyncio.sleep(60)

    async with working(hf):
        (lost,) = await worker.first("absorb")

    assert (lost.status.status_code, lost.status.description) == (StatusCode.ERROR, "LeaseLost")


async def test_what_is_handed_back_at_the_end_is_no_error(valkey: Backend) -> None:
    spans, worker = Spans(), Spans()
    await put(valkey, spans, {"request": [1]})
    hf = Holdfast(valkey.url, observers=[worker.observer], drain=0.0)
    begun = asyncio.Event()

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    async def remember(batch: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    async with working(hf):
        await begun.wait()

    (absorb,) = worker.named("absorb")
    assert absorb.status.status_code == StatusCode.UNSET


async def test_ids_that_no_exporter_could_carry_are_mended(valkey: Backend) -> None:
    spans, worker = Spans(), Spans()
    await put(valkey, spans, {"request": [1]}, user="half \ud800\n<b>")
    hf = Holdfast(valkey.url, observers=[worker.observer])

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    async def remember(batch: Any) -> None: ...

    async with working(hf):
        (absorb,) = await worker.first("absorb")

    texts = [*(absorb.attributes or {}).values(), *(v for e in absorb.events for v in (e.attributes or {}).values())]
    assert (absorb.attributes or {})["holdfast.key"] == "half ?\n<b>"
    assert all(text.encode() for text in texts if isinstance(text, str))


async def test_another_process_goes_on_with_the_trace(valkey: Backend) -> None:
    # Given a message that was appended in a span of this process
    spans = Spans()
    made = await put(valkey, spans, {"request": [SECRET]})

    # When another process absorbs it
    script = str(Path(__file__).with_name("traced_worker.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, script, valkey.url, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        output, _ = await process.communicate()

    # Expect its span in this one's trace
    (line,) = [json.loads(line) for line in output.splitlines() if b'"absorb"' in line]
    trace_id, span_id = place(made["request"])
    assert process.returncode == 0
    assert line["context"]["trace_id"] == f"0x{trace_id:032x}"
    assert line["parent_id"] == f"0x{span_id:016x}"
    assert SECRET.encode() not in output


# -- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
async def test_a_run_is_carried_out_in_the_trace_it_was_started_in(valkey: Backend, plain: bool) -> None:
    # Given a run that was started in a span
    spans, worker = Spans(), Spans()
    async with Holdfast(valkey.url, observers=[spans.observer]) as client:
        with spans.tracer.start_as_current_span("request") as made:
            await client.runs("agent").start("r", {"prompt": SECRET}, key="project")
    hf = Holdfast(valkey.url, observers=[worker.observer])
    seen = []

    def note(run: Any) -> None:
        seen.append((place(trace.get_current_span()), run.trace, run.fence))

    async def think(run: Any) -> None:
        note(run)

    hf.runner(hf.runs("agent"))(note if plain else think)

    # When it is carried out elsewhere
    async with working(hf):
        (run,) = await worker.first("run")

    # Expect the handler in a span of that trace
    trace_id, span_id = place(made)
    assert parent(run) == (trace_id, span_id)
    assert seen[0][0] == place(run)
    assert seen[0][1].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert run.kind == SpanKind.CONSUMER
    assert dict(run.attributes or {}) == {
        "holdfast.collection": "agent", "holdfast.run": "r", "holdfast.key": "project", "holdfast.attempt": 1,
        "holdfast.fence": seen[0][2],
    }  # fmt: skip
    assert SECRET not in worker.text() + spans.text()


async def test_a_run_that_fails_says_the_kind_of_error(valkey: Backend) -> None:
    worker = Spans()
    hf = Holdfast(valkey.url, observers=[worker.observer])
    agent = hf.runs("agent")

    @hf.runner(agent)
    async def think(run: Any) -> None:
        if run.id == "bad":
            raise ArithmeticError(run.input)
        await asyncio.sleep(60)

    async with working(hf):
        await agent.start("bad", SECRET)
        (bad,) = await worker.first("run")
        await agent.start("long")
        await until(lambda: any(map(bool, [hf._core.holds])), what="the run to be taken")
        await agent.stop("long", "enough")
        stopped = (await worker.first("run", 2))[1]

    assert (bad.status.status_code, bad.status.description) == (StatusCode.ERROR, "ArithmeticError")
    assert stopped.status.status_code == StatusCode.UNSET
    assert SECRET not in worker.text()


# -- deliver ----------------------------------------------------------------------------------------------------------


async def test_a_delivery_is_joined_to_the_spans_of_what_was_observed(valkey: Backend) -> None:
    # Given a subscriber that fails once, a change of one span, and then two changes of two
    spans, worker = Spans(), Spans()
    hf = Holdfast(valkey.url, observers=[worker.observer])
    seen: list[Any] = []

    @hf.monitor("venues").subscriber("board", retry_delay=0.01, first=True)
    async def tell(delivery: Any) -> None:
        seen.append((delivery.id, [change.trace for change in delivery.changes], place(trace.get_current_span())))
        if len(seen) == 1:
            raise DeliveryFailed(f"not now: {SECRET}")

    async with Holdfast(valkey.url, observers=[spans.observer]) as client, working(hf):
        venues = client.monitor("venues")
        with spans.tracer.start_as_current_span("one") as one:
            await venues.observe("site", "a", {"price": SECRET})
        failed, first = await worker.first("deliver", 2)
        with spans.tracer.start_as_current_span("two") as two:
            await venues.observe_many([("site", "b", 1), ("site", "c", 1)])

        # Expect each in the trace of its observation; the failed attempt as an error
        assert parent(failed) == parent(first) == place(one)
        assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "DeliveryFailed")
        third = (await worker.first("deliver", 3))[2]
        assert parent(third) == place(two)
        assert first.status.status_code == StatusCode.UNSET
        assert first.kind == SpanKind.CLIENT
        assert [place(span) for span in worker.named("deliver")[:2]] == [seen[0][2], seen[1][2]]
        assert dict(first.attributes or {}) == {
            "holdfast.collection": "venues", "holdfast.subscriber": "board", "holdfast.delivery": seen[1][0],
            "holdfast.attempt": 2, "holdfast.changes": 1,
        }  # fmt: skip
        assert SECRET not in worker.text() + spans.text()


# -- without a worker -------------------------------------------------------------------------------------------------


async def test_the_body_of_a_claimed_run_has_its_span(valkey: Backend) -> None:
    # Given a run that was started in a span, and another worker's span, such as that of a task of Celery
    spans, worker = Spans(), Spans()
    async with Holdfast(valkey.url, observers=[spans.observer]) as client:
        with spans.tracer.start_as_current_span("request") as request:
            await client.runs("agent").start("r", SECRET)

    # When it is claimed there
    async with Holdfast(valkey.url, observers=[worker.observer]) as hf:
        with worker.tracer.start_as_current_span("task") as task:
            async with await hf.runs("agent").claim("r"):
                inside = place(trace.get_current_span())
            after = place(trace.get_current_span())

    # Expect that the body is part of the trace it was started in, and linked to where it is done
    (run,) = worker.named("run")
    assert (inside, after) == (place(run), place(task))
    assert (parent(run), links(run)) == (place(request), [place(task)])
    assert run.status.status_code == StatusCode.UNSET
    assert SECRET not in worker.text()


def test_the_body_of_a_blocking_run_and_of_a_batch_have_their_spans(valkey: Backend) -> None:
    spans = Spans()
    with BlockingHoldfast(valkey.url, observers=[spans.observer]) as hf:
        agent, inbox = hf.runs("agent"), hf.buffer("inbox")
        with spans.tracer.start_as_current_span("here") as here:
            with agent.claim("r") as run:
                run.result = 1
            inbox.append("u", 1)
        with spans.tracer.start_as_current_span("there"):
            inbox.append("u", 2)
        batch = inbox.take("u")
        assert batch is not None
        with pytest.raises(LookupError), batch:
            raise LookupError(SECRET)
        again = inbox.take("u")
        assert again is not None
        with spans.tracer.start_as_current_span("job") as job, again:
            pass

    # Expect: a run that was made by its claim is part of the span around it
    assert parent(spans.named("run")[0]) == place(here)
    assert links(spans.named("run")[0]) == []
    # a batch of several traces is part of the span around it, if there is one
    failed, done = spans.named("absorb")
    assert (parent(failed), len(links(failed)), failed.status.description) == (None, 2, "LookupError")
    assert (parent(done), len(links(done)), done.status.status_code) == (place(job), 2, StatusCode.UNSET)
    assert SECRET not in spans.text()


async def test_a_claimed_run_that_is_stopped_is_no_error_and_one_that_is_lost_is(valkey: Backend) -> None:
    spans = Spans()
    async with Holdfast(valkey.url, observers=[spans.observer]) as hf, Holdfast(valkey.url) as other:
        agent = hf.runs("agent", lease=0.3)

        async def work(name: str) -> None:
            async with await agent.claim(name) as run:
                if name == "stopped":
                    await other.runs("agent").stop(name, "enough")
                else:
                    assert run._given.hold.lose("taken away")
                await asyncio.sleep(60)

        with pytest.raises(RunStopped):
            await work("stopped")
        with pytest.raises(LeaseLost):
            await work("lost")

    stopped, lost = spans.named("run")
    assert stopped.status.status_code == StatusCode.UNSET
    assert (lost.status.status_code, lost.status.description) == (StatusCode.ERROR, "LeaseLost")


# -- what must not go wrong -------------------------------------------------------------------------------------------


class Broken:
    """A tracer that always fails."""

    def start_span(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("no spans today")


async def test_a_tracer_that_fails_changes_nothing(valkey: Backend, caplog: pytest.LogCaptureFixture) -> None:
    counters, spans = Counters(), Spans()
    hf = Holdfast(valkey.url, observers=[spans.observer, counters])
    spans.observer.tracing._tracer = Broken()  # type: ignore[assignment]

    @hf.absorber(hf.buffer("inbox"), threshold=1)
    async def remember(batch: Any) -> None: ...

    async with working(hf):
        for number in range(3):
            await hf.buffer("inbox").append(f"u{number}", number)
        await until(lambda: counters["absorbed"] == 3)

    assert len([record for record in caplog.records if "a span could not be made" in record.message]) == 1


async def test_an_observer_that_comes_later_traces_too(valkey: Backend) -> None:
    spans = Spans()
    async with Holdfast(valkey.url) as hf:
        hf.observe(spans.observer)
        with spans.tracer.start_as_current_span("request"):
            await hf.buffer("inbox").append("u", 1)
        assert (await hf.buffer("inbox").peek("u"))[0].trace is not None


async def test_what_is_told_when_a_window_ends_belongs_to_the_last_observation(valkey: Backend) -> None:
    # Given a state that is not told again within the window
    spans = Spans()
    hf = Holdfast(valkey.url)
    venues = hf.monitor("venues", window=0.3)
    seen: list[Any] = []

    @venues.subscriber("board")
    async def tell(delivery: Any) -> None:
        seen.extend(delivery.changes)

    async with Holdfast(valkey.url, observers=[spans.observer]) as client, working(hf):
        desk = client.monitor("venues", window=0.3)
        for number, state in enumerate("ABAB"):
            with spans.tracer.start_as_current_span(f"look {number}"):
                outcome = (await desk.observe("site", "court", state)).outcome
        assert outcome == "repeated"
        await until(lambda: any(change.kind == "settled" for change in seen))

    # Expect the span of the observation that it was told for
    (settled,) = [change for change in seen if change.kind == "settled"]
    trace_id, span_id = place(spans.named("look 3")[0])
    assert (settled.after, settled.key) == ("B", "court")
    assert settled.trace.startswith(f"00-{trace_id:032x}-{span_id:016x}-")
