"""The format of a payload that carries a trace, and what carrying one must not change."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from spans import Spans

from holdfast import RunMismatch
from holdfast.engine.payload import canonical, decode, encode, trace_of, traced
from holdfast.errors import NewerPayload, UnreadablePayload
from holdfast.sync import Holdfast
from support.backends import Backend

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VALUES = [None, "text", b"bytes", 7, 2**70, {"b": 1, "a": [1, 2]}, [{"x": None}], ""]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_carried_trace_is_no_part_of_the_data(value: Any) -> None:
    # Given the same payload with and without a trace
    plain = encode(value, 1000)
    carrying = traced(TRACE) + plain

    # Expect the same data, the same for comparing, and the trace beside it
    assert decode(carrying) == decode(plain) == value
    assert canonical(carrying) == canonical(plain)
    assert (trace_of(carrying), trace_of(plain)) == (TRACE, None)


def test_the_format_is_as_written_down() -> None:
    assert traced(TRACE) + encode(1, 10) == b"\x02\x37" + TRACE.encode() + b"\x01\x01"


@pytest.mark.parametrize("text", ["", "nonsense", TRACE.upper(), TRACE + "-x", "00-\u00e4"])
def test_what_is_no_trace_is_not_written(text: str) -> None:
    assert traced(text) == b""


@pytest.mark.parametrize("raw", [b"", b"x" * 55, b"\xff" * 10])
def test_a_damaged_trace_does_not_keep_anybody_from_the_data(raw: bytes) -> None:
    data = b"\x02" + bytes([len(raw)]) + raw + encode("data", 100)

    assert decode(data) == "data"
    assert trace_of(data) is None


@pytest.mark.parametrize(
    "data", [b"\x02", b"\x02\x37", traced(TRACE), traced(TRACE) * 2 + b"\x01\x01", b"\x02\xff\x01"]
)
def test_what_is_cut_off_cannot_be_read(data: bytes) -> None:
    with pytest.raises(UnreadablePayload) as caught:
        decode(data)

    assert not isinstance(caught.value, NewerPayload)


def test_a_newer_format_inside_is_left_to_a_newer_version() -> None:
    for data in (b"\x03\x01", traced(TRACE) + b"\x03\x01"):
        with pytest.raises(NewerPayload, match="format 3"):
            decode(data)


# -- on a server ------------------------------------------------------------------------------------------------------


def stored(valkey: Backend, user: str) -> list[bytes]:
    """Payloads of a user's messages, as they are on the server."""
    (key,) = [key for key in valkey.primaries()[0].scan_iter() if key.endswith(b":u:" + user.encode())]
    return [entry[17:] for entry in valkey.primaries()[0].lrange(key, 1, -1)]


def test_without_tracing_not_a_byte_is_added(valkey: Backend) -> None:
    # Given clients that do not trace: no observer; one that does not carry; one that could, where no span is open
    quiet, open_ = Spans(carry=False), Spans()
    plain = encode({"a": 1}, 100)
    for user, observers in (("none", []), ("off", [quiet.observer]), ("outside", [open_.observer])):
        with Holdfast(valkey.url, observers=observers) as hf:
            # When they append, the second of them inside a span
            if user == "off":
                with quiet.tracer.start_as_current_span("request"):
                    hf.buffer("inbox").append(user, {"a": 1})
            else:
                hf.buffer("inbox").append(user, {"a": 1})
        # Expect the format of always
        assert stored(valkey, user) == [plain]


def test_with_tracing_each_message_has_the_span_it_was_appended_in(valkey: Backend) -> None:
    spans = Spans()
    with Holdfast(valkey.url, observers=[spans.observer]) as hf, Holdfast(valkey.url) as other:
        inbox = hf.buffer("inbox")
        with spans.tracer.start_as_current_span("one"):
            inbox.append("u", 1)
        with spans.tracer.start_as_current_span("two"):
            inbox.extend("u", [2, 3])
        inbox.append("u", 4, pending=["file"])

        # Expect that somebody who does not trace reads all of it, and is told where it came from
        read = other.buffer("inbox").peek("u")
        assert [message.data for message in read] == [1, 2, 3, 4]
        assert read[0].trace != read[1].trace == read[2].trace
        assert read[3].trace is None
        span = spans.named("one")[0].get_span_context()
        assert read[0].trace == f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def test_a_span_that_is_not_sampled_is_carried_as_such(valkey: Backend) -> None:
    spans = Spans()
    left_out = trace.SpanContext(7, 9, is_remote=False, trace_flags=trace.TraceFlags(0))
    with Holdfast(valkey.url, observers=[spans.observer]) as hf, trace.use_span(trace.NonRecordingSpan(left_out)):
        hf.buffer("inbox").append("u", 1)

        assert hf.buffer("inbox").peek("u")[0].trace == f"00-{7:032x}-{9:016x}-00"


def test_bounds_are_those_of_the_data(valkey: Backend) -> None:
    # Given messages that just fit without a trace: one by its own bound, one by that of the user
    spans = Spans()
    largest, tight = "x" * 996, "x" * 64  # three bytes of text, one of the format
    with Holdfast(valkey.url, observers=[spans.observer]) as hf, spans.tracer.start_as_current_span("request"):
        wide = hf.buffer("wide", max_message=1000)
        narrow = hf.buffer("narrow", max_bytes=100)

        # When they are appended inside a span, expect that they are stored, and that nothing was dropped for its sake
        assert wide.append("u", largest).dropped == {}
        assert wide.peek("u")[0].trace is not None
        assert narrow.append("u", tight).dropped == {}
        assert narrow.peek("u")[0][1:] == (tight, narrow.peek("u")[0].at, {}, None), "the data goes before the trace"


def test_a_run_started_again_in_another_span_is_the_same_run(valkey: Backend) -> None:
    spans = Spans()
    with Holdfast(valkey.url, observers=[spans.observer]) as hf, Holdfast(valkey.url) as other:
        with spans.tracer.start_as_current_span("first"):
            hf.runs("agent").start("r", {"a": 1, "b": 2})
        with spans.tracer.start_as_current_span("second"):
            assert hf.runs("agent").start("r", {"b": 2, "a": 1}).id == "r"
        assert other.runs("agent").start("r", {"a": 1, "b": 2}).id == "r"
        with pytest.raises(RunMismatch):
            other.runs("agent").start("r", {"a": 2})
        assert other.runs("agent").get("r").input == {"a": 1, "b": 2}
        with other.runs("agent").claim("r", input={"a": 1, "b": 2}) as run:
            assert run.input == {"a": 1, "b": 2}
            assert f"{spans.named('first')[0].get_span_context().span_id:016x}" in str(run.trace)


def test_a_state_observed_again_in_another_span_is_the_same_state(valkey: Backend) -> None:
    spans = Spans()
    with Holdfast(valkey.url, observers=[spans.observer]) as hf:
        venues = hf.monitor("venues")
        with spans.tracer.start_as_current_span("first"):
            assert venues.observe("site", "court", {"free": 1}, 1000).outcome == "first"
        with spans.tracer.start_as_current_span("second"):
            assert venues.observe("site", "court", {"free": 1}, 1001).outcome == "unchanged"
            changed = venues.observe("site", "court", {"free": 0}, 1002)
        assert (changed.outcome, changed.before) == ("changed", {"free": 1})
        assert venues.get("site", "court") == {"free": 0}
