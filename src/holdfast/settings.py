"""Every setting, once: this definition feeds keyword arguments, environment, TOML and the documentation page."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigurationError

ENV_PREFIX = "HOLDFAST_"
MAX_SECONDS = 366 * 86_400.0


def _setting(
    default: Any, doc: str, low: float | None = None, high: float | None = None, *, secret: bool = False
) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "secret": secret}, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All durations are in seconds. Each can be passed to `Holdfast(...)`, set as `HOLDFAST_<NAME>`, or put in TOML."""

    prefix: str = _setting("hf", "What every key starts with. Fleets with different prefixes do not see each other.")
    name: str = _setting("", "What this process calls itself in inspections; its host and pid are always shown.")
    ttl: float = _setting(30.0, "How long a lease lasts unless it is renewed.", 0.05, MAX_SECONDS)
    ttl_short: float = _setting(300.0, 'What `ttl="short"` means.', 0.05, MAX_SECONDS)
    ttl_medium: float = _setting(1800.0, 'What `ttl="medium"` means.', 0.05, MAX_SECONDS)
    ttl_long: float = _setting(7200.0, 'What `ttl="long"` means.', 0.05, MAX_SECONDS)
    waiter_lease: float = _setting(
        3.0, "How long a waiter keeps its place without a sign of life; the most that a dead one delays the next.",
        0.1, 600.0,
    )  # fmt: skip
    capacity: int = _setting(100, "How many messages of a user may wait in a buffer.", 1, 100_000)
    message_ttl: float = _setting(86_400.0, "How long a message may wait in a buffer.", 0.05, MAX_SECONDS)
    max_buffer_bytes: int = _setting(8_388_608, "How many bytes of a user's messages may wait.", 33, 1 << 30)
    max_message_bytes: int = _setting(1_048_576, "How large one message or attachment may be.", 1, 1 << 30)
    conversations: int = _setting(50, "How many conversation pairs of a user may wait.", 1, 1000)
    conversation_ttl: float = _setting(
        3600.0, "How long a conversation pair waits for messages that it explains.", 0.05, MAX_SECONDS
    )
    threshold: int = _setting(10, "With so many messages a user is due to be absorbed.", 1, 100_000)
    max_attempts: int = _setting(
        5, "After so many attempts a batch goes to the dead letters, and a resumable run fails.", 1, 60_000
    )
    handler_timeout: float = _setting(300.0, "How long a handler may take for one batch.", 0.01, 86_400.0)
    drain: float = _setting(
        25.0, "How long a stopping worker waits for its handlers before it hands back.", 0.0, 86_400.0
    )
    sweep: float = _setting(
        5.0, "About how often somebody in the fleet looks at each shard without being told to.", 0.1, 600.0
    )
    run_retention: float = _setting(86_400.0, "How long a run that has ended can be read.", 0.05, MAX_SECONDS)
    run_events: int = _setting(10_000, "How many events of a run are kept; the oldest go first.", 8, 10_000_000)
    run_event_bytes: int = _setting(8_388_608, "How many bytes of a run's events are kept.", 1024, 1 << 30)
    emit_delay: float = _setting(
        0.02, "How long the events of a fast emitter are gathered before they are sent together.", 0.0, 60.0
    )
    run_waiting: int = _setting(100, "How many runs of one key may wait for a slot.", 0, 10_000)
    run_queued: int = _setting(100_000, "How many runs of a collection may be queued or waiting.", 1, 100_000_000)
    run_stuck: float = _setting(7200.0, "Without progress for so long, a run is reported as stuck.", 0.05, MAX_SECONDS)
    session_entries: int = _setting(100, "How many entries a session of short-term memory keeps.", 1, 10_000)
    session_ttl: float = _setting(3600.0, "How long a session of short-term memory lives unused.", 0.05, MAX_SECONDS)
    session_bytes: int = _setting(4_194_304, "How many bytes a session of short-term memory keeps.", 64, 1 << 28)
    within: float = _setting(300.0, "How long an id counts as seen, and a state as told.", 0.001, MAX_SECONDS)
    gate_keep: float = _setting(604_800.0, "How long a gate remembers what nobody asked about.", 1.0, MAX_SECONDS)
    monitor_keep: float = _setting(2_592_000.0, "How long a monitor remembers what nobody observed.", 1.0, MAX_SECONDS)
    monitor_backlog: int = _setting(10_000, "How many changes a monitor's log keeps.", 10, 1_000_000)
    call_timeout: float = _setting(2.0, "How long one request may take before its reply counts as lost.", 0.01, 600.0)
    retry_for: float = _setting(
        10.0, "How long an operation is repeated through lost replies, restarts and failovers.", 0.0, 3600.0
    )
    connect_timeout: float = _setting(2.0, "How long making one connection may take.", 0.01, 600.0)
    max_in_flight: int = _setting(
        10_000, "How many requests may be under way on one connection; further callers wait.", 1, 1_000_000
    )
    report: float = _setting(
        5.0, "How often an open client tells the fleet what it uses, holds and did, for the dashboard; 0: never.",
        0.0, 3600.0,
    )  # fmt: skip
    check_server: bool = _setting(True, "Refuse a server that is too old or may evict keys, when connecting.")
    allow_eviction: bool = _setting(
        False,
        "Accept a server that may evict keys under memory pressure. It may then drop locks that are held.",
    )

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def load(
        cls, overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None,
        file: str | Path | None = None,
    ) -> Settings:  # fmt: skip
        """Keyword arguments win over the environment, the environment over the file, the file over the defaults."""
        return cls(**{name: value for name, (value, _) in found(cls, overrides, environ=environ, file=file).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a node is. Each can be passed to `holdfast up`, set as `HOLDFAST_NODE_<NAME>`, or put in TOML under [node].

    Durations are in seconds."""

    host: str = _setting("127.0.0.1", "Address to listen on. Any but a loopback address is refused without a token.")
    port: int = _setting(8420, "Port to listen on; 0: any free one.", 0, 65_535)
    url: str = _setting("", "Server of the fleet. Empty: the embedded one, in `data`.", secret=True)
    data: str = _setting(".holdfast", "Directory of the embedded server and of the node's own database.")
    server_port: int = _setting(
        0, "Also let the embedded server listen on this loopback port; 0: on its socket only.", 0, 65_535
    )
    app: str = _setting("", "Client whose absorbers, runners and monitors the node works on, as module:variable.")
    processes: int = _setting(1, "In how many processes.", 1, 1000)
    playground: bool = _setting(False, "Work on a small application of its own, to try things out with.")
    store: str = _setting(
        "", "SQL database of monitors and archives, which the node reads. Empty: SQLite in `data`.", secret=True
    )
    token: str = _setting("", "Token that may do everything; at least 16 characters.", secret=True)
    tokens: str = _setting(
        "", "Further tokens: name=scope+scope:token, with spaces between; scopes are read, write and operate.",
        secret=True,
    )  # fmt: skip
    hosts: str = _setting("", "Names under which the node may be reached without a token, besides those of loopback.")
    rate: float = _setting(500.0, "Requests in a second that each caller may make.", 0.1, 1_000_000.0)
    max_body: int = _setting(4_194_304, "How large the body of a request may be, in bytes.", 1024, 1 << 30)
    max_streams: int = _setting(500, "How many event streams may be open at once.", 1, 1_000_000)
    max_wait: float = _setting(30.0, "How long a request may wait for something.", 0.0, 3600.0)
    sample: float = _setting(5.0, "How often the node measures what waits, while it is looked at.", 0.5, 3600.0)
    log_format: str = _setting("text", "text or json.")
    log_level: str = _setting("info", "debug, info, warning or error.")

    def __post_init__(self) -> None:
        _check(self)


def _check(settings: Any) -> None:
    for item in fields(settings):
        value = getattr(settings, item.name)
        low, high = item.metadata["low"], item.metadata["high"]
        kind: Any = {"float": (int, float), "int": int, "bool": bool, "str": str}[str(item.type)]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and item.type != "bool")
        if wrong or value != value:  # noqa: PLR0124 - NaN
            shown = "what was given" if item.metadata["secret"] else repr(value)
            raise ConfigurationError(f"set {item.name} to a {item.type}, not {shown}")
        if low is not None and not low <= value <= high:
            raise ConfigurationError(f"set {item.name} between {low:g} and {high:g}, not {value!r}")


TABLES: dict[type, tuple[str, str]] = {Settings: ("holdfast", ENV_PREFIX), NodeSettings: ("node", f"{ENV_PREFIX}NODE_")}
"""Of each definition: its table in TOML, and what its variables in the environment start with."""


COLLECTIONS: dict[str, tuple[str, ...]] = {
    "buffers": ("capacity", "ttl", "max_bytes", "max_message", "conversations", "conversation_ttl"),
    "runs": (
        "kind", "slots", "conflict", "lease", "max_attempts", "retention", "max_events", "max_event_bytes",
        "max_waiting", "max_queued", "stuck_after", "archive",
    ),
    "sessions": ("max_entries", "ttl", "max_tokens", "max_bytes"),
    "monitors": ("fields", "ignore", "window", "keep", "backlog", "allow"),
}  # fmt: skip
"""What a table such as [buffers.messages] may say: an application passes it in its code, a node has none."""
Collections = Mapping[str, Mapping[str, Mapping[str, Any]]]


def collections_of(
    *, environ: Mapping[str, str] | None = None, file: str | Path | None = None
) -> dict[str, dict[str, dict[str, Any]]]:
    """The options of collections, by kind and name, as far as the file names some."""
    path = file or (os.environ if environ is None else environ).get(f"{ENV_PREFIX}CONFIG")
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, tables in (_read(Path(path)) if path else {}).items():
        if f"{kind}s" in COLLECTIONS:
            raise ConfigurationError(f"write [{kind}s.NAME] in {path}, not [{kind}.NAME]")
        if kind not in COLLECTIONS:
            continue
        for name, options in tables.items() if isinstance(tables, dict) else [("", None)]:
            if not isinstance(options, dict):
                raise ConfigurationError(f"mend the configuration file {path}: write [{kind}.NAME] with its options")
            for option in options:
                if option not in COLLECTIONS[kind]:
                    raise ConfigurationError(
                        f"remove {option!r} of [{kind}.{name}] from {path}: there is no such option. "
                        f"There are: {', '.join(COLLECTIONS[kind])}"
                    )
            made.setdefault(kind, {})[name] = dict(options)
    return made


def found(
    cls: type, overrides: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> dict[str, tuple[Any, str]]:  # fmt: skip
    """Each setting's value, and where it came from: `default`, the file, the variable or `argument`."""
    env = os.environ if environ is None else environ
    table, prefix = TABLES[cls]
    known = {item.name: str(item.type) for item in fields(cls)}
    values: dict[str, tuple[Any, str]] = {item.name: (item.default, "default") for item in fields(cls)}
    path = file or env.get(f"{ENV_PREFIX}CONFIG")
    if path:
        for name, value in _from_toml(Path(path), table, known).items():
            values[name] = (value, str(path))
    for name, kind in known.items():
        text = env.get(prefix + name.upper())
        if text is not None:
            values[name] = (_from_text(prefix, name, kind, text), prefix + name.upper())
    for name, value in (overrides or {}).items():
        if name not in known:
            raise ConfigurationError(
                f"remove {name!r}: there is no such setting. There are: {', '.join(sorted(known))}"
            )
        values[name] = (value, "argument")
    return values


def _from_toml(path: Path, wanted: str, known: Mapping[str, str]) -> dict[str, Any]:
    whole = _read(path)
    # Without a table of their own the settings of the library are at the top.
    ours = {table for table, _ in TABLES.values()} | set(COLLECTIONS)
    top = {name: value for name, value in whole.items() if name not in ours}
    table = whole.get(wanted, top if wanted == "holdfast" else {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"mend the configuration file {path}: [{wanted}] must be a table")
    stray = [name for name, value in top.items() if "holdfast" in whole and not isinstance(value, dict)]
    if stray:  # tables may be those of others
        raise ConfigurationError(f"move {stray[0]!r} in {path} under [holdfast], or remove it")
    for name in table:
        if name not in known:
            raise ConfigurationError(f"remove {name!r} from {path}: there is no such setting")
    return dict(table)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"mend the configuration file {path}: {error}") from None


def _from_text(prefix: str, name: str, kind: str, text: str) -> Any:
    try:
        if kind == "bool":
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        raise ConfigurationError(f"set {prefix}{name.upper()} to a {kind}, not {text!r}") from None
