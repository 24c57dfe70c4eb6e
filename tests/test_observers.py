"""Observers: what they count and log, against a real server."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from holdfast import LeaseLost, NotAcquired, Unavailable
from holdfast.events import Dropped, Expiring, HandlerFailed
from holdfast.observe import Counters, LogObserver
from holdfast.observe.otel import OtelObserver
from holdfast.observe.prometheus import PrometheusObserver
from holdfast.sync import Holdfast
from holdfast.testing import FaultProxy
from support.conditions import until_blocking


def live(url: str, *observers) -> None:
    """A grant, a refusal, a renewal, a loss, a takeover and a forced release."""
    with Holdfast(url, observers=observers) as hf, Holdfast(url) as other:
        with hf.lock("a"):
            assert other.lock("a").try_acquire() is None
        taken = other.lock("b").acquire()
        with pytest.raises(NotAcquired):
            hf.lock("b").acquire(wait=0)
        taken.release()
        lease = hf.lock("c", ttl=2.0).acquire()
        until_blocking(lambda: lease.remaining() < 1.8)
        until_blocking(lambda: lease.remaining() > 1.8, what="a renewal")
        hf.force_release("c", reason="test")
        until_blocking(lambda: lease.lost)
        with pytest.raises(LeaseLost):
            lease.release()
        gone = other.lock("d", ttl=0.1, renew=False).acquire()
        gone.wait_lost(5)
        hf.lock("d").acquire(wait=5).release()


def test_counters(valkey):
    counters = Counters()
    live(valkey.url, counters)
    assert counters["granted"] == 3
    assert counters["refused"] == 1
    assert counters["released"] == 2
    assert counters["lost"] == 1
    assert counters["forced"] == 1
    assert counters["taken_over"] == 1
    assert counters["renewed"] >= 1
    assert counters.success_rate == 0.75
    assert counters.mean_hold > 0
    assert counters.mean_wait >= 0
    assert counters.as_dict()["granted"] == 3
    counters(Dropped("x", "message", "capacity", 4))
    assert counters["dropped: capacity"] == 4


def test_prometheus(valkey):
    registry = CollectorRegistry()
    live(valkey.url, PrometheusObserver(registry))
    value = registry.get_sample_value
    assert value("holdfast_acquire_total", {"outcome": "granted"}) == 3
    assert value("holdfast_acquire_total", {"outcome": "refused"}) == 1
    assert value("holdfast_wait_seconds_count") == 3
    assert value("holdfast_hold_seconds_count") == 3
    assert value("holdfast_leases_held") == 0
    assert value("holdfast_takeovers_total") == 1
    assert value("holdfast_forced_total") == 1
    assert value("holdfast_renewals_total", {"outcome": "renewed"}) >= 1
    lost = sum(value("holdfast_lost_total", {"reason": r}) or 0 for r in ("forced", "taken away"))
    assert lost == 1


def test_opentelemetry(valkey):
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("test")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("work") as span, trace.use_span(span):
        live(valkey.url, OtelObserver(meter))
    names = {event.name for event in exporter.get_finished_spans()[0].events}
    assert {"holdfast.granted", "holdfast.released", "holdfast.refused"} <= names
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert {"holdfast.acquire", "holdfast.wait", "holdfast.hold", "holdfast.lost"} <= {metric.name for metric in data}


# -- buffers --------------------------------------------------------------------------------------------------------

USER = "user-with-a-name-of-her-own"


def absorb(url: str, *observers: Any) -> list[str]:
    """A batch that is acknowledged, one given back, one buried, one lost. Answers the batches' ids."""
    with Holdfast(url, observers=observers) as hf, Holdfast(url) as other:
        box = hf.buffer("box", capacity=5)
        ids = []
        for number in range(6):
            box.append(USER, number)
        batch = box.take(USER)
        ids.append(batch.id)
        batch.nack()
        with box.take(USER):
            pass
        box.append(USER, "bad")
        batch = box.take(USER, max_attempts=1)
        ids.append(batch.id)
        assert batch.nack(error="the reason")
        box.append(USER, "gone")
        batch = box.take(USER, lease=0.3)
        ids.append(batch.id)
        other.buffer("box").forget(USER)
        until_blocking(lambda: batch.lost)
    for observer in observers:
        observer(HandlerFailed("box", USER, ids[0], 1, "ValueError: no"))
        observer(Expiring("box", USER, 3.0))
    return ids


def test_counters_of_buffers(valkey):
    counters = Counters()
    absorb(valkey.url, counters)
    assert (counters["taken"], counters["redelivered"]) == (4, 1)
    assert (counters["acked"], counters["absorbed"]) == (1, 5)
    assert (counters["nacked"], counters["buried"], counters["lost_batches"]) == (1, 1, 1)
    assert (counters["handler_failed"], counters["nearly_full"], counters["expiring"]) == (1, 1, 1)
    assert counters["dropped: capacity"] == 1
    assert counters["lost"] == 0, "a batch is not a lease that was granted"
    assert counters.mean_hold == 0


def test_prometheus_of_buffers_names_nobody(valkey):
    registry = CollectorRegistry()
    ids = absorb(valkey.url, PrometheusObserver(registry))
    value = registry.get_sample_value
    outcomes = {"taken": 3, "taken again": 1, "acknowledged": 1, "given back": 1, "buried": 1, "lost": 1, "failed": 1}
    for outcome, number in outcomes.items():
        assert value("holdfast_batches_total", {"outcome": outcome}) == number, outcome
    assert value("holdfast_absorbed_total") == 5
    assert value("holdfast_absorb_seconds_count") == 1
    assert value("holdfast_alerts_total", {"kind": "nearly full"}) == 1
    assert value("holdfast_alerts_total", {"kind": "expiring"}) == 1
    assert value("holdfast_leases_held") == 0, "a lost batch was never counted as held"
    labels = {label for metric in registry.collect() for sample in metric.samples for label in sample.labels.values()}
    assert not {label for label in labels for name in (USER, *ids) if name in label}


def test_opentelemetry_of_buffers_names_nobody_in_metrics(valkey):
    reader = InMemoryMetricReader()
    ids = absorb(valkey.url, OtelObserver(MeterProvider([reader]).get_meter("test")))
    text = reader.get_metrics_data().to_json()
    assert all(f'"{name}"' in text for name in ("holdfast.batches", "holdfast.absorb", "holdfast.dropped"))
    assert not [name for name in (USER, *ids) if name in text]


def test_logs_of_buffers(valkey, caplog):
    with caplog.at_level(logging.DEBUG, "holdfast"):
        absorb(valkey.url, LogObserver())
    levels = {record.holdfast["event"]: record.levelname for record in caplog.records if hasattr(record, "holdfast")}
    loud = {name for name, level in levels.items() if level == "WARNING"} - {"ServerWarning"}
    assert loud == {"Dropped", "NearlyFull", "Buried", "Lost", "HandlerFailed", "Expiring"}
    assert levels["Taken"] == levels["Acked"] == levels["Nacked"] == "DEBUG"


def test_logs_say_what_went_wrong_louder(valkey, caplog):
    with caplog.at_level(logging.DEBUG, "holdfast"):
        live(valkey.url, LogObserver())
    levels = {record.holdfast["event"]: record.levelname for record in caplog.records if hasattr(record, "holdfast")}
    assert levels["Granted"] == "DEBUG"
    assert levels["Lost"] == "WARNING"
    assert levels["TakenOver"] == "INFO"


def run_through(url: str, *observers: Any) -> None:
    """A run that completes, one that fails, one that is stopped, one that is lost and taken over."""
    with Holdfast(url, observers=observers) as hf:
        agent = hf.runs("agent", lease=0.2)
        agent.start("a", key="user-7")
        with agent.claim("a"):
            pass
        with pytest.raises(ZeroDivisionError), agent.claim("b"):
            raise ZeroDivisionError
        agent.start("c")
        agent.stop("c", "enough")
        lost = agent.claim("d")
        hf._core.keeper.remove(lost._given.hold)  # as if this process had stood still
        lost._given.hold.over = False
        until_blocking(lambda: lost.lost)
        with pytest.raises(LeaseLost):
            lost.check()
        with agent.claim("d") as again:
            assert again.attempt == 2


def test_counters_of_runs(valkey):
    counters = Counters()
    run_through(valkey.url, counters)
    wanted = {
        "runs_queued": 2, "runs_taken": 4, "runs_taken_over": 1, "runs_completed": 2, "runs_failed": 1,
        "runs_stop_asked": 1, "lost_runs": 1, "lost": 0,
    }  # fmt: skip
    assert {name: counters[name] for name in wanted} == wanted


def test_prometheus_of_runs_names_nobody(valkey):
    registry = CollectorRegistry()
    run_through(valkey.url, PrometheusObserver(registry))

    def of(outcome: str) -> float | None:
        return registry.get_sample_value("holdfast_runs_total", {"outcome": outcome})

    assert [of(word) for word in ("queued", "taken", "taken again", "completed", "failed", "lost")] == [
        2,
        3,
        1,
        2,
        1,
        1,
    ]
    assert registry.get_sample_value("holdfast_runs_owned") == 0
    assert registry.get_sample_value("holdfast_leases_held") == 0
    assert registry.get_sample_value("holdfast_run_seconds_count") == 3
    assert "user-7" not in str(list(registry.collect()))


def test_opentelemetry_of_runs_names_nobody_in_metrics(valkey):
    reader = InMemoryMetricReader()
    run_through(valkey.url, OtelObserver(MeterProvider([reader]).get_meter("test")))
    found = reader.get_metrics_data().to_json()
    assert "holdfast.runs" in found
    assert all(f'"outcome": "{word}"' in found for word in ("queued", "taken", "completed", "failed", "lost"))
    assert "user-7" not in found


def test_logs_of_runs_are_louder_for_what_failed(valkey, caplog):
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        run_through(valkey.url, LogObserver())
    levels = {(r.holdfast["event"], r.holdfast.get("state", "")): r.levelno for r in caplog.records}
    assert levels["RunFinished", "failed"] == levels["Lost", ""] == logging.WARNING
    assert levels["RunFinished", "completed"] == levels["RunTaken", ""] == logging.DEBUG


# -- each thing once ------------------------------------------------------------------------------------------------

ORDER = "order-of-somebody"


def once_each(valkey: Any, *observers: Any) -> None:
    """Ids, claims, states, and answers given without the server."""
    with (
        FaultProxy("127.0.0.1", valkey.owner.port) as proxy,
        Holdfast(proxy.url, observers=observers, retry_for=0.2) as hf,
        Holdfast(valkey.url) as other,
    ):
        assert hf.filter_new("orders", [ORDER, "b", ORDER]) == [ORDER, "b"]
        assert not hf.once("orders", "b")
        claim = hf.claim("work", ORDER).begin()
        assert hf.claim("work", ORDER).begin().state == "busy"
        claim.confirm()
        assert hf.claim("work", ORDER).begin().state == "done"
        lost = hf.claim("work", "lost", lease=0.2).begin()
        other.forget("work", "lost")
        until_blocking(lambda: lost.lost)
        gate = hf.gate("venues")
        reasons = [gate.check(ORDER, state).reason for state in "AABAB"]
        assert reasons == ["first", "unchanged", "changed", "changed", "repeated"]
        proxy.refuse()
        proxy.cut()
        assert hf.once("orders", "x", on_outage="allow")
        assert not hf.once("orders", "x", on_outage="deny")
        with pytest.raises(Unavailable):
            hf.once("orders", "x")
        proxy.heal()


def test_counters_of_what_is_done_once(valkey):
    counters = Counters()
    once_each(valkey, counters)
    wanted = {
        "unique": 2, "duplicate": 3, "acquired": 2, "rejected": 1, "claims: lost": 1, "lost": 0, "suppressed": 1,
        "states: first": 1, "states: changed": 2, "states: unchanged": 1, "outages: allow": 1, "outages: deny": 1,
        "outages: raise": 1,
    }  # fmt: skip
    until_blocking(lambda: counters["claims: lost"])
    assert {name: counters[name] for name in wanted} == wanted


def test_prometheus_of_what_is_done_once_names_nobody(valkey):
    registry = CollectorRegistry()
    once_each(valkey, PrometheusObserver(registry))

    def of(kind: str, *words: str) -> list[float | None]:
        return [registry.get_sample_value(f"holdfast_{kind}_total", {"outcome": word}) for word in words]

    assert of("ids", "unique", "duplicate") == [2, 2]
    until_blocking(lambda: of("claims", "lost") == [1])
    assert of("claims", "acquired", "rejected", "duplicate") == [2, 1, 1]
    assert of("states", "first", "changed", "suppressed", "unchanged", "repeated") == [1, 2, 1, 1, None]
    assert of("outages", "allow", "deny", "raise") == [1, 1, 1]
    assert registry.get_sample_value("holdfast_leases_held") == 0  # a claim is no lease
    assert ORDER not in str(list(registry.collect()))


def test_opentelemetry_of_what_is_done_once_names_nobody_in_metrics(valkey):
    reader = InMemoryMetricReader()
    once_each(valkey, OtelObserver(MeterProvider([reader]).get_meter("test")))
    found = reader.get_metrics_data().to_json()
    assert all(f'"holdfast.{kind}"' in found for kind in ("ids", "claims", "states", "outages"))
    words = ("unique", "duplicate", "acquired", "rejected", "suppressed", "first", "changed", "allow", "deny", "raise")
    assert not [word for word in words if f'"outcome": "{word}"' not in found]
    assert ORDER not in found


def test_logs_of_what_is_done_once_are_louder_for_an_outage(valkey, caplog):
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        once_each(valkey, LogObserver())
    levels = {record.holdfast["event"]: record.levelno for record in caplog.records if hasattr(record, "holdfast")}
    assert levels["Outage"] == levels["Lost"] == logging.WARNING
    assert levels["Filtered"] == levels["Claimed"] == levels["Gated"] == logging.DEBUG
