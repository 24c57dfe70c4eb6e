"""Observers of events: counters, logging, Prometheus, OpenTelemetry. Pass them as `Holdfast(url, observers=[...])`."""

from holdfast.observe.counters import Counters
from holdfast.observe.logs import JsonFormatter, LogObserver, write_logs

__all__ = ["Counters", "JsonFormatter", "LogObserver", "write_logs"]
