"""Reads code and writes Markdown: signatures, fields, docstrings. The pages are put together in docs_pages.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
HEADER = "<!-- Written by tools/make_docs.py. Change the code, then run `make docs`. -->\n"


# -- text -----------------------------------------------------------------------------------------------------------


def fence(text: str, kind: str = "") -> str:
    """A code block. What is Python is coloured as such, and never run: it is a fragment."""
    text = textwrap.dedent(text).strip("\n")
    if not kind:
        try:
            ast.parse(text)
            kind = "python no-run"
        except SyntaxError:
            kind = "text"
    return f"```{kind}\n{text}\n```"


def prose(doc: str) -> str:
    """A docstring as Markdown: what is indented is a code block."""
    parts: list[str] = []
    block: list[str] = []
    for line in [*inspect.cleandoc(doc).split("\n"), ""]:
        if line.startswith("    ") or (block and not line):
            block.append(line)
            continue
        if block:
            parts += [fence("\n".join(block)), ""]
            block = []
        parts.append(line)
    if block:
        parts.append(fence("\n".join(block)))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).strip()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that would be empty are left out."""
    columns = [column for column in zip(head, *rows, strict=True) if any(column[1:])]
    lines = [[line[0], "---", *line[1:]] for line in columns]
    lines = [list(line) for line in zip(*lines, strict=True)]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def alias(kind: object) -> str:
    """What a name in signatures stands for, without the modules."""
    return code(re.sub(r"\b(?:collections\.abc|typing)\.", "", str(kind)))


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def limits(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{number(low)} to {number(high)}"


# -- reading code ---------------------------------------------------------------------------------------------------


def signature(name: str, function: Callable[..., Any], *, method: bool = True) -> str:
    """As one would write it; over several lines where it is long."""
    parts, starred = [], False
    found = inspect.signature(function)
    for parameter in list(found.parameters.values())[1 if method else 0 :]:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            shown = repr(parameter.default)
            text += f" = {'...' if ' at 0x' in shown else shown}"
        parts.append(text)
    start = "async " if inspect.iscoroutinefunction(function) else ""
    end = "" if name[0].isupper() else f" -> {found.return_annotation}"
    line = f"{start}{name}({', '.join(parts)}){end}"
    if len(line) <= 100:
        return line
    return f"{start}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


class Attribute(NamedTuple):
    name: str
    kind: str
    default: str
    doc: str


def attributes(cls: type) -> Iterator[Attribute]:
    """Fields of a dataclass and public attributes set in `__init__`, with the string that follows them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    init = [s for item in body.body if isinstance(item, ast.FunctionDef) and item.name == "__init__" for s in item.body]
    for statements, start in ((body.body, ""), (init, "self.")):
        for item, after in pairwise([*statements, None]):
            if not isinstance(item, ast.Assign | ast.AnnAssign):
                continue
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            names = [ast.unparse(one) for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
            if not all(re.fullmatch(re.escape(start) + r"[a-z]\w*", name) for name in names):
                continue
            kind = ast.unparse(item.annotation) if isinstance(item, ast.AnnAssign) else ""
            default = ast.unparse(item.value) if item.value and not start else ""
            if default.isupper():
                default = ""  # a constant of the module: its name tells a reader nothing
            doc = after.value if isinstance(after, ast.Expr) else None
            text = inspect.cleandoc(doc.value) if isinstance(doc, ast.Constant) and isinstance(doc.value, str) else ""
            for name in names:  # of several that are set together, the last one has what is said of them
                yield Attribute(name.removeprefix(start), kind, default, text if name == names[-1] else "")


def page(title: str, *parts: str) -> str:
    """The whole page, with its code blocks as the formatter wants them: it looks into Markdown too."""
    text = HEADER + "\n" + "\n\n".join([f"# {title}", *[part.strip() for part in parts if part.strip()]]) + "\n"
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(REFERENCE / "page.md"), "-"],
        input=text, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip


class Reader:
    """Describes classes, and collects what has no docstring."""

    def __init__(self) -> None:
        self.missing: set[str] = set()

    def doc(self, name: str, text: str | None) -> str:
        """The docstring, unless there is none; a dataclass makes one up, which does not count."""
        if not text or text.startswith(f"{name}("):
            self.missing.add(name)
            return ""
        return prose(text)

    def cls(self, cls: type, *, made_by_users: bool = False, parts_of: tuple[type, ...] = ()) -> str:
        """A class: what it is for, how it is made, what it has, what it can do. `parts_of`: written in other files."""
        parts = [f"## {cls.__name__}"]
        shape = getattr(cls, "_is_protocol", False)
        bases = [base.__name__ for base in cls.__bases__ if base not in (object, tuple, *parts_of) and not shape]
        if shape:
            parts.append("A shape: any object that has this will do.")
        elif bases:
            parts.append(f"A kind of {' and '.join(map(code, bases))}.")
        parts.append(self.doc(cls.__name__, cls.__dict__.get("__doc__")))
        if made_by_users:
            parts.append(fence(signature(cls.__name__, cls.__init__), "python no-run"))  # type: ignore[misc]
        parts.append(self._attributes(cls))
        for name, member in (pair for one in (cls, *parts_of) for pair in vars(one).items()):
            if not name.startswith("_") and not (shape and _bare(member)):
                parts.append(self._member(cls, name, member))
        return "\n\n".join(part for part in parts if part)

    def function(self, name: str, function: Callable[..., Any]) -> str:
        """A function of a module."""
        shown = fence(signature(name, function, method=False), "python no-run")
        return f"## {name}\n\n{shown}\n\n{self.doc(name, function.__doc__)}"

    def _attributes(self, cls: type) -> str:
        rows = [(code(a.name), code(a.kind), code(a.default), a.doc) for a in attributes(cls)]
        rows += [
            (code(name), code(inspect.signature(member.fget).return_annotation), "", "")
            for name, member in vars(cls).items()
            if getattr(cls, "_is_protocol", False) and _bare(member)
        ]
        if not rows:
            return ""
        if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields") or getattr(cls, "_is_protocol", False):
            return table(("field", "type", "default", "meaning"), rows)
        return "Attributes: " + ", ".join(f"{row[0]}{f' ({row[3]})' if row[3] else ''}" for row in rows) + "."

    def _member(self, cls: type, name: str, member: Any) -> str:
        full = f"{cls.__name__}.{name}"
        if isinstance(member, property):
            assert member.fget is not None
            shown = f"{name}: {inspect.signature(member.fget).return_annotation}"
        elif inspect.isfunction(member):
            shown = signature(name, member)
        elif isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
            shown = signature(name, member)
        else:
            return ""  # a field, a slot
        return f"### {full}\n\n{fence(shown, 'python no-run')}\n\n{self.doc(full, member.__doc__)}".rstrip()


def _bare(member: Any) -> bool:
    """A property of a shape that says no more than its name and type: the shape's docstring says the rest."""
    return isinstance(member, property) and not member.__doc__
