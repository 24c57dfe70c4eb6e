"""Events as log records: what went wrong at WARNING, what went well at DEBUG. Names and numbers, never payloads.

The text of a handler's exception is among them: what it says is up to the handler.
"""

from __future__ import annotations

import logging

from holdfast.events import (
    Buried,
    ClockJumped,
    Dropped,
    Event,
    Expired,
    Expiring,
    FetchFailing,
    Forced,
    HandlerFailed,
    Lost,
    NearlyFull,
    NotDelivered,
    Outage,
    RenewFailed,
    RunFinished,
    RunStuck,
    ServerWarning,
    TakenOver,
)

_WARN = (
    Lost, RenewFailed, Forced, Dropped, NearlyFull, Expiring, HandlerFailed, Buried, ClockJumped, ServerWarning,
    RunStuck, Outage, NotDelivered, FetchFailing,
)  # fmt: skip
_INFO = (Expired, TakenOver)


class LogObserver:
    """Logs each event as one record, its fields in `record.holdfast` for structured handlers."""

    def __init__(self, logger: logging.Logger | str = "holdfast") -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger

    def __call__(self, event: Event) -> None:
        bad = isinstance(event, _WARN) or (isinstance(event, RunFinished) and event.state == "failed")
        level = logging.WARNING if bad else logging.INFO if isinstance(event, _INFO) else logging.DEBUG
        if self._logger.isEnabledFor(level):
            fields = event.as_dict()
            shown = " ".join(f"{key}={value!r}" for key, value in fields.items())
            kind = type(event).__name__
            self._logger.log(level, "%s %s", kind, shown, extra={"holdfast": {"event": kind, **fields}})
