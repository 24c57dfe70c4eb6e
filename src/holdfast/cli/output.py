"""What is printed: tables for people, JSON for programs. What strangers wrote is text, never markup or control."""

from __future__ import annotations

import base64
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # where it is needed: a worker, and whoever asks for JSON, draws nothing
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

WIDE = 10_000
"""A pipe has no width: nothing is cut for it."""


def plain(value: object) -> str:
    """One line that a terminal only shows: escapes, controls, line ends, turns of direction are written out."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(value: object) -> str:
    """As one word of a line to type."""
    return shlex.quote(plain(value))


# -- for programs ---------------------------------------------------------------------------------------------------


def data(value: Any) -> Any:
    """Anything the library answers as JSON has it. Bytes are `{"$bytes": base64}`."""
    match value:
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case Mapping():
            return {name if isinstance(name, str) else plain(name): data(one) for name, one in value.items()}
        case tuple() if hasattr(value, "__match_args__"):  # a named one
            return {name: data(getattr(value, name)) for name in type(value).__match_args__}
        case list() | tuple() | set() | frozenset():
            return [data(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def print_json(value: Any) -> None:
    """One document on one line; flushed, as whoever reads a stream waits for it."""
    print(json.dumps(data(value)), flush=True)


# -- for people -----------------------------------------------------------------------------------------------------


def console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def cell(value: object) -> Text:
    from rich.text import Text

    return value if isinstance(value, Text) else Text("" if value is None else plain(value), overflow="fold")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """A head that ends with `>` is that of a column of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, title=Text(title, "bold") if title else None, title_justify="left", show_edge=False)
    for head in heads:
        made.add_column(Text(head.rstrip(">")), justify="right" if head.endswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(cell, row))
    return made


def show(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", none: str = "") -> None:
    """A table, or the line that says that there is nothing."""
    found = list(rows)
    if found or not none:
        console().print(table(heads, found, title))
    else:
        print(none)


def facts(pairs: Mapping[str, object]) -> None:
    """Names and values, one on each line; what is empty is left out."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        if value is not None and value != "":
            print(f"{name:<{width}}  {plain(value)}")


def say(text: object) -> None:
    """To whoever looks on; standard output is for results."""
    sys.stderr.write(f"holdfast: {plain(text)}\n")  # in one piece: workers share the place
    sys.stderr.flush()


def span(seconds: float | None) -> str:
    """A duration as one would say it."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    for unit, length, most in (("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def moment(at: float | None) -> str:
    """A time of the server, in the time zone of whoever looks."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def brief(value: object, most: int = 200) -> str:
    """A payload on one line."""
    text = value if isinstance(value, str) else json.dumps(data(value), ensure_ascii=False)
    return plain(text if len(text) <= most else f"{text[: most - 1]}…")


def size(number: float) -> str:
    """Bytes as one would say it."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def progress() -> Progress:
    """A bar on standard error, if somebody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    seen = console(error=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    # Not redirected: what is printed meanwhile is a result, and belongs on standard output.
    return Progress(
        *columns, console=seen, transient=True, disable=not seen.is_terminal, redirect_stdout=False,
        redirect_stderr=False,
    )  # fmt: skip
