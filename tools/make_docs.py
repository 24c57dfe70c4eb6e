"""Writes docs/reference from the code, and checks every page. `--check` writes nothing and fails on what is stale.

The reference says what the code says: docstrings, signatures, fields, settings, commands and script headers. A public
name without a docstring fails here, so that nobody finds an empty page. Pages are the same on every machine: nothing
of the terminal, of an address in memory or of a set's order gets in.

Also checked, in README.md, CONTRIBUTING.md, CHANGELOG.md and docs: relative links lead to a file and a heading, every
page is linked from docs/index.md, and code blocks are marked. A block ```python runs as it stands
(tests/test_docs.py runs it); ```python no-run does not.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from check_docs import pages_to_check, problems_of, slug

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
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


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
            name = ast.unparse(item.targets[0] if isinstance(item, ast.Assign) else item.target)
            if not re.fullmatch(re.escape(start) + r"[a-z]\w*", name):
                continue
            kind = ast.unparse(item.annotation) if isinstance(item, ast.AnnAssign) else ""
            default = ast.unparse(item.value) if item.value and not start else ""
            doc = after.value if isinstance(after, ast.Expr) else None
            text = inspect.cleandoc(doc.value) if isinstance(doc, ast.Constant) and isinstance(doc.value, str) else ""
            yield Attribute(name.removeprefix(start), kind, default, text)


class Reference:
    """Builds the pages, and collects what has no docstring."""

    def __init__(self) -> None:
        self.missing: set[str] = set()

    def doc(self, name: str, text: str | None) -> str:
        """The docstring, unless there is none; a dataclass makes one up, which does not count."""
        if not text or text.startswith(f"{name}("):
            self.missing.add(name)
            return ""
        return prose(text)

    def cls(self, cls: type, *, made_by_users: bool = False) -> str:
        """A class: what it is for, how it is made, what it has, what it can do."""
        parts = [f"## {cls.__name__}"]
        bases = [base.__name__ for base in cls.__bases__ if base is not object]
        if bases:
            parts.append(f"A kind of {' and '.join(map(code, bases))}.")
        parts.append(self.doc(cls.__name__, cls.__dict__.get("__doc__")))
        if made_by_users:
            parts.append(fence(signature(cls.__name__, cls.__init__), "python no-run"))  # type: ignore[misc]
        rows = [(code(a.name), code(a.kind), code(a.default), a.doc) for a in attributes(cls)]
        if rows and dataclasses.is_dataclass(cls):
            parts.append(table(("field", "type", "default", "meaning"), rows))
        elif rows:
            parts.append(
                "Attributes: " + ", ".join(f"{row[0]}{f' ({row[3]})' if row[3] else ''}" for row in rows) + "."
            )
        for name, member in vars(cls).items():
            if not name.startswith("_"):
                parts.append(self._member(cls, name, member))
        return "\n\n".join(part for part in parts if part)

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

    # -- pages --------------------------------------------------------------------------------------------------

    def client(self) -> str:
        import holdfast

        return page(
            "The client",
            "`holdfast.Holdfast` is for asyncio. `holdfast.sync.Holdfast` has the same methods for threads: leave out "
            "`async` and `await`.",
            self.cls(holdfast.Holdfast, made_by_users=True),
            self._names(),
        )

    def _names(self) -> str:
        from holdfast.events import Event
        from holdfast.keys import Id
        from holdfast.locks.spec import Ttl

        rows = [
            ("`Id`", code(Id), "names: text or bytes, 1 to 512 bytes long"),
            ("`Ttl`", code(Ttl), "seconds, or a class of them: `short`, `medium`, `long`"),
            ("`Observer`", f"`Callable[[{Event.__name__}], None]`", "see [events](events.md)"),
        ]
        return "## Names in signatures\n\n" + table(("name", "is", "meaning"), rows)

    def locks(self) -> str:
        import holdfast

        made = [holdfast.Lease, holdfast.Lock, holdfast.ReadWriteLock, holdfast.Semaphore, holdfast.AllLocks]
        seen = [holdfast.LockInfo, holdfast.Holder, holdfast.Waiter, holdfast.AuditEntry]
        return page(
            "Leases and locks",
            "Made by the methods of [the client](client.md). `holdfast.sync` has the same classes for threads.",
            *[self.cls(cls) for cls in made],
            self.cls(holdfast.SqlGuard, made_by_users=True),
            *[self.cls(cls) for cls in seen],
        )

    def errors(self) -> str:
        import holdfast
        from holdfast import errors

        order = list(vars(errors))
        public = [
            getattr(holdfast, name)
            for name in sorted(holdfast.__all__, key=lambda n: order.index(n) if n in order else -1)
            if isinstance(getattr(holdfast, name), type) and issubclass(getattr(holdfast, name), Exception)
        ]
        return page("Errors", self.doc("errors", errors.__doc__), *[self.cls(cls) for cls in public])

    def events(self) -> str:
        from holdfast import events

        kinds = [c for c in vars(events).values() if isinstance(c, type) and issubclass(c, events.Event)]
        return page("Events", self.doc("events", events.__doc__), *[self.cls(cls) for cls in kinds])

    def settings(self) -> str:
        from holdfast import settings
        from holdfast.engine import embedded, url

        load = self.doc("Settings.load", settings.Settings.load.__doc__)
        kinds = "\n".join(f"- `{example}`" for example in url.EXAMPLES.split("  "))
        return page(
            "Settings",
            self.doc("Settings", settings.Settings.__doc__),
            f"{load} The file is named by `{settings.ENV_PREFIX}CONFIG`, with the settings at the top or under "
            f"`[holdfast]`. The server is not a setting: it is the URL, or `{settings.ENV_PREFIX}URL`.",
            self.settings_table(settings.Settings, settings.ENV_PREFIX),
            f"## URLs\n\n{kinds}\n\n`valkeys://`, `rediss+sentinel://`, `valkey+cluster://` and so on are understood "
            "too; an `s` more means TLS. Further options of redis-py connections go into the query.",
            f"## The embedded server\n\n{self.doc('embedded', embedded.__doc__)}",
        )

    def settings_table(self, cls: Any, prefix: str) -> str:
        rows = []
        for field in dataclasses.fields(cls):
            default = number(field.default) if isinstance(field.default, float) else repr(field.default)
            if not field.metadata.get("doc"):
                self.missing.add(f"Settings.{field.name}")
            rows.append((
                code(field.name), code(field.type), code(default),
                limits(field.metadata.get("low"), field.metadata.get("high")),
                code(prefix + field.name.upper()), field.metadata.get("doc", ""),
            ))  # fmt: skip
        return table(("setting", "type", "default", "range", "environment", "meaning"), rows)

    def observers(self) -> str:
        from holdfast import observe
        from holdfast.observe import counters, logs, otel, prometheus

        sections = [
            (counters.Counters, f"Names:\n\n{', '.join(code(name) for name in counter_names())}."),
            (logs.LogObserver, ""),
            (prometheus.PrometheusObserver, table(("metric", "type", "labels", "meaning"), prometheus_metrics())),
            (otel.OtelObserver, table(("metric", "type", "unit", "meaning"), otel_metrics())),
        ]
        return page(
            "Observers",
            self.doc("observe", observe.__doc__) + " What they are told of: [events](events.md).",
            *["\n\n".join(part for part in (self.cls(c, made_by_users=True), more) if part) for c, more in sections],
        )

    def testing(self) -> str:
        from holdfast import testing
        from holdfast.testing import plugin

        parts = []
        for name in testing.__all__:
            thing = getattr(testing, name)
            if isinstance(thing, type):
                parts.append(self.cls(thing, made_by_users=not issubclass(thing, Exception)))
            else:
                shown = fence(signature(name, thing, method=False), "python no-run")
                parts.append(f"## {name}\n\n{shown}\n\n{self.doc(name, thing.__doc__)}")
        rows = []
        for item in ast.parse(inspect.getsource(plugin)).body:
            if isinstance(item, ast.FunctionDef) and item.decorator_list and not item.name.startswith("_"):
                scope = "session" if "session" in ast.unparse(item.decorator_list[0]) else "test"
                text = self.doc(item.name, ast.get_docstring(item))
                rows.append((code(item.name), scope, " ".join(text.split())))
        fixtures = f"## Fixtures\n\n{table(('fixture', 'lives for one', 'is'), rows)}"
        return page("Testing", self.doc("testing", testing.__doc__), fixtures, *parts)

    def cli(self) -> str:
        import typer

        from holdfast.cli.app import app

        root: Any = typer.main.get_command(app)
        parts = [self.doc("holdfast", root.help), self._options("holdfast", root)]
        for name, command in root.commands.items():
            full = f"holdfast {name}"
            words = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
            shown = fence(" ".join([full, *words, "[OPTIONS]"]), "text")
            parts += [f"## {full}\n\n{self.doc(full, command.help)}\n\n{shown}", self._options(full, command)]
        parts.append("A mistake of the user is one line on standard error and exit code 2.")
        return page("Command line", *parts)

    def _options(self, command: str, described: Any) -> str:
        rows = []
        for option in described.params:
            argument = option.param_type_name == "argument"
            name = option.name.upper() if argument else ", ".join(option.opts)
            if "completion" in name:
                continue  # the shell's business, and Typer's
            if not option.help:
                self.missing.add(f"{command} {name}")
            default = "required" if option.required else str({None: "", False: ""}.get(option.default, option.default))
            bounds = limits(getattr(option, "min", None), getattr(option, "max", None))
            known = f" Environment: `{option.envvar}`." if option.envvar and option.envvar not in option.help else ""
            rows.append((code(name), code(default) if default != "required" else default,
                         f"{option.help or ''}{f' ({bounds})' if bounds else ''}{known}".strip()))  # fmt: skip
        return table(("option", "default", "meaning"), rows) if rows else ""

    def lua(self) -> str:
        from holdfast.engine.scripts import Scripts

        files = sorted((ROOT / "src" / "holdfast").glob("*/lua/*.lua"))
        scripts, includes, rows = [], [], []
        for file in files:
            room, text = file.parent.parent.name, file.read_text("utf-8")
            if file.stem.startswith("_"):
                lead = re.sub(r"^(-- include \w+\n)+", "", text)
                comment = re.match(r"(?:--[^\n]*\n)+", lead)
                if comment:
                    shown = re.sub(r"^-- ?", "", comment.group(), flags=re.M)
                    includes.append(f"## include {room}/{file.stem}\n\n{fence(shown, 'text')}")
                continue
            script = Scripts().get(f"{room}/{file.stem}")
            head = re.sub(r"^-- ?", "", text.partition("\n")[2].partition("\n\n")[0], flags=re.M)
            rows.append((f"[{script.name}](#{slug(script.name)})", script.retry, ", ".join(script.flags) or "none",
                         ", ".join(map(code, script.returns))))  # fmt: skip
            scripts.append(f"## {script.name}\n\n{fence(head, 'text')}")
        return page(
            "Scripts",
            "Every atomic operation is one Lua file. Its header is a promise; tests hold it against the body.",
            "`safe`: sending it again changes nothing more. `opid`: it carries an operation id and answers `replayed` "
            "the second time. `allow-oom`: it works on a server that is out of memory.",
            table(("script", "retry", "flags", "answers"), rows),
            *scripts,
            *includes,
        )

    def pages(self) -> dict[str, str]:
        made = {
            f"{make.__name__}.md": make()
            for make in (self.client, self.locks, self.errors, self.events, self.settings, self.observers, self.testing,
                         self.cli, self.lua)
        }  # fmt: skip
        return made


def page(title: str, *parts: str) -> str:
    """The whole page, with its code blocks as the formatter wants them: it looks into Markdown too."""
    text = HEADER + "\n" + "\n\n".join([f"# {title}", *[part.strip() for part in parts if part.strip()]]) + "\n"
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(REFERENCE / "page.md"), "-"],
        input=text, capture_output=True, text=True, check=True, cwd=ROOT,
    ).stdout  # fmt: skip


# -- observers, asked for their names by showing them one event of each kind ----------------------------------------


def one_of_each() -> Iterator[Any]:
    from holdfast import events

    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event:
            values = {"str": "", "int": 1, "float": 1.0, "bool": True}
            yield kind(**{
                field.name: f"<{field.name}>" if field.type == "str" else values[str(field.type)]
                for field in dataclasses.fields(kind)
            })  # fmt: skip


def counter_names() -> list[str]:
    from holdfast.observe import Counters

    counters = Counters()
    for event in one_of_each():
        counters(event)
    return list(counters.as_dict())


def prometheus_metrics() -> list[tuple[str, str, str, str]]:
    from prometheus_client import CollectorRegistry

    from holdfast.observe.prometheus import PrometheusObserver

    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    for event in one_of_each():
        observer(event)
    rows = []
    for metric in registry.collect():
        labels = sorted({name for sample in metric.samples for name in sample.labels} - {"le"})
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows.append((code(name), metric.type, ", ".join(map(code, labels)), metric.documentation))
    return rows


def otel_metrics() -> list[tuple[str, str, str, str]]:
    from holdfast.observe.otel import OtelObserver

    class Meter:
        rows: list[tuple[str, str, str, str]] = []  # noqa: RUF012 - read once, below

        def create_counter(self, name: str, unit: str = "", description: str = "") -> None:
            self.rows.append((code(name), "counter", unit, description))

        def create_histogram(self, name: str, unit: str = "", description: str = "") -> None:
            self.rows.append((code(name), "histogram", unit, description))

    meter: Any = Meter()
    OtelObserver(meter)
    return list(meter.rows)


def gaps(missing: set[str]) -> list[str]:
    """Public names that nobody explains."""
    return [f"write a docstring for {name}" for name in sorted(missing)]


def stale(pages: Mapping[str, str], directory: Path) -> list[str]:
    """Pages that differ from the code, are not there, or are there and should not be."""
    there = {path.name: path.read_text("utf-8") for path in directory.glob("*.md")}
    return sorted(name for name in {*pages, *there} if pages.get(name) != there.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on what is stale or broken")
    check = parser.parse_args().check
    reference = Reference()
    pages = reference.pages()
    if problems := gaps(reference.missing):
        sys.exit("\n".join(problems))
    old = stale(pages, REFERENCE)
    if not check:
        REFERENCE.mkdir(parents=True, exist_ok=True)
        for name in old:
            if name in pages:
                (REFERENCE / name).write_text(pages[name], "utf-8")
            else:
                (REFERENCE / name).unlink()
    problems = problems_of(pages_to_check(ROOT), ROOT)
    if check and old:
        problems.insert(0, f"stale: {', '.join(f'docs/reference/{name}' for name in old)}. Run `make docs`.")
    if problems:
        sys.exit("\n".join(problems))
    print("the reference is fresh and every link leads somewhere" if not old else f"written: {', '.join(old)}")


if __name__ == "__main__":
    main()
