"""Events as log records: what went wrong at WARNING, what went well at DEBUG. Names and numbers, never payloads.

The text of a handler's exception is among them, and what it says is up to the handler; `texts=False` leaves it out.
"""

from __future__ import annotations

import json
import logging
import math
import re
from datetime import UTC, datetime
from typing import Any

from holdfast.errors import ConfigurationError
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
LEVELS = ("debug", "info", "warning", "error")
_TRIMMED = ("entries", "bytes", "tokens")
"""Of a session: it keeps the newest, and that older ones go is its life and no trouble."""
_TEXTS: dict[type[Event], str] = {
    HandlerFailed: "error", Buried: "error", NotDelivered: "error", RunFinished: "reason",
}  # fmt: skip
"""Where the text of an exception stands that a handler or a receiver has raised."""
_KIND = re.compile(r"[^\W\d][\w.]*(?=:|$)")
_SECRETS = re.compile(
    r"(?P<scheme>://)[^\s/]*@"  # user and password of a URL
    r"|(?P<bearer>\b(?:bearer|basic)\s+)[\w.~+/=-]+"
    r"|(?P<named>\b[\w-]{0,40}(?:token|password|passwd|secret|api[_-]?key|access[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s&\"',;)}]+",
    re.IGNORECASE,
)
_NEVER = re.compile(r"token|password|passwd|secret|api_?key|authorization|cookie", re.IGNORECASE)
_HIDDEN = "***"


def without_texts(event: Event) -> dict[str, object]:
    """The fields of an event; of an exception only its kind, as its text may be what a user wrote."""
    fields = event.as_dict()
    name = _TEXTS.get(type(event))
    if name is not None:
        kind = _KIND.match(str(fields[name]))
        fields[name] = kind[0] if kind else ""
    return fields


class LogObserver:
    """Logs each event as one record, its fields in `record.holdfast` for structured handlers.

    `texts=False`: of what a handler raised only the kind is logged, not its text."""

    def __init__(self, logger: logging.Logger | str = "holdfast", *, texts: bool = True) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._texts = texts

    def __call__(self, event: Event) -> None:
        bad = isinstance(event, _WARN) or (isinstance(event, RunFinished) and event.state == "failed")
        if isinstance(event, Dropped) and event.what == "session entry" and event.reason in _TRIMMED:
            bad = False
        level = logging.WARNING if bad else logging.INFO if isinstance(event, _INFO) else logging.DEBUG
        if self._logger.isEnabledFor(level):
            fields = event.as_dict() if self._texts else without_texts(event)
            shown = " ".join(f"{key}={value!r}" for key, value in fields.items())
            kind = type(event).__name__
            self._logger.log(level, "%s %s", kind, shown, extra={"holdfast": {"event": kind, **fields}})


class JsonFormatter(logging.Formatter):
    """One JSON object on one line for each record: `time` (UTC), `level`, `logger`; an event's name as `event` with its
    fields, or the `message` of any other record; `error` and `traceback` where an exception was logged.

    User and password in URLs, and what stands after `token=`, `secret:` and the like, are shown as `***`. Other
    attributes that somebody gave a record are left out."""

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end. It never raises because of what is logged."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name,
        }  # fmt: skip
        fields = getattr(record, "holdfast", None)
        if isinstance(fields, dict):
            line |= {str(key): value for key, value in fields.items() if key not in line}
        else:
            line["message"] = _message(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: _clean(key, value) for key, value in line.items()}, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit their text
        return str(record.msg)


def _clean(key: str, value: Any) -> Any:
    """What JSON has, and no secret."""
    if _NEVER.search(key):
        return _HIDDEN
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _clean(str(name), item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean("", item) for item in value]
    return hide_secrets(value if isinstance(value, str) else repr(value))


def hide_secrets(text: str) -> str:
    """The same text without passwords and tokens where they can be told by what stands before them."""
    return _SECRETS.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    if found["scheme"]:
        return f"://{_HIDDEN}@"
    return (found["bearer"] or found["named"]) + _HIDDEN


def write_logs(form: str = "text", level: str = "info") -> None:
    """Write what Holdfast logs to standard error, with time and level: as lines of `text`, or of `json`.

    For processes that set up no logging of their own, such as a node and its workers."""
    if level not in LEVELS:
        raise ConfigurationError(f"set log_level to one of {', '.join(LEVELS)}, not {level!r}")
    if form not in ("text", "json"):
        raise ConfigurationError(f"set log_format to text or json, not {form!r}")
    handler = logging.StreamHandler()
    lines = JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(lines)
    logger = logging.getLogger("holdfast")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
