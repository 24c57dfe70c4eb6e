"""Observers: what they count and log, against a real server."""

from __future__ import annotations

import logging

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from holdfast import LeaseLost, NotAcquired
from holdfast.events import Dropped
from holdfast.observe import Counters, LogObserver
from holdfast.observe.otel import OtelObserver
from holdfast.observe.prometheus import PrometheusObserver
from holdfast.sync import Holdfast
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
        lease = hf.lock("c", ttl=0.3).acquire()
        until_blocking(lambda: lease.remaining() > 0.25)
        until_blocking(lambda: lease.remaining() < 0.2)
        until_blocking(lambda: lease.remaining() > 0.25, what="a renewal")
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


def test_logs_say_what_went_wrong_louder(valkey, caplog):
    with caplog.at_level(logging.DEBUG, "holdfast"):
        live(valkey.url, LogObserver())
    levels = {record.holdfast["event"]: record.levelname for record in caplog.records if hasattr(record, "holdfast")}
    assert levels["Granted"] == "DEBUG"
    assert levels["Lost"] == "WARNING"
    assert levels["TakenOver"] == "INFO"
