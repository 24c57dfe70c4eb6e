"""The pages of the reference, one method each."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from check_docs import slug
from docs_code import ROOT, Reader, alias, code, fence, limits, number, page, table


class Reference(Reader):
    """Builds the pages."""

    def client(self) -> str:
        import holdfast

        return page(
            "The client",
            "`holdfast.Holdfast` is for asyncio. `holdfast.sync.Holdfast` has the same methods for threads: leave out "
            "`async` and `await`.",
            self.cls(holdfast.Holdfast, made_by_users=True, parts_of=holdfast.Holdfast.__bases__),
            self._names(),
        )

    def _names(self) -> str:
        from holdfast.buffers.absorber import Handler
        from holdfast.events import Event
        from holdfast.keys import Id
        from holdfast.locks.spec import Ttl
        from holdfast.runs.runner import Handler as RunHandler
        from holdfast.sessions.entry import CountTokens

        rows = [
            ("`Id`", code(Id), "names: text or bytes, 1 to 512 bytes long"),
            ("`Ttl`", code(Ttl), "seconds, or a class of them: `short`, `medium`, `long`"),
            ("`CountTokens`", alias(CountTokens), "how many tokens a message has"),
            ("`H`", alias(Handler), "a handler: a function of a [batch](buffers.md#batch), or a coroutine function"),
            (
                "`RH`",
                alias(RunHandler),
                "a handler: a function of an [active run](runs.md#activerun), or a coroutine function",
            ),
            ("`AnyId`", "text, bytes, whole numbers, None, and tuples of them", "an id; its parts are never joined"),
            ("`N`", "`Callable[[Notice], Any]`", "a handler: a function of a [notice](once.md#notice)"),
            ("`Store`", "a shape", "where a monitor keeps what must last: see [monitor](monitor.md#store)"),
            ("`Archive`", "a shape", "anything with this `keep`: see [runs](runs.md#archive)"),
            ("`Observer`", f"`Callable[[{Event.__name__}], None]`", "see [events](events.md)"),
        ]
        return "## Names in signatures\n\n" + table(("name", "is", "meaning"), rows)

    def locks(self) -> str:
        import holdfast

        made = [holdfast.Lease, holdfast.Lock, holdfast.ReadWriteLock, holdfast.Semaphore, holdfast.AllLocks]
        seen = [holdfast.Ticket, holdfast.LockInfo, holdfast.Holder, holdfast.Waiter, holdfast.AuditEntry]
        return page(
            "Leases and locks",
            "Made by the methods of [the client](client.md). `holdfast.sync` has the same classes for threads.",
            *[self.cls(cls) for cls in made],
            self.cls(holdfast.SqlGuard, made_by_users=True),
            *[self.cls(cls) for cls in seen],
        )

    def buffers(self) -> str:
        import holdfast

        return page(
            "Buffers",
            "Made by `Holdfast.buffer`. `absorber`, `work` and `stop_work`, which hand its batches to your code, are "
            "methods of [the client](client.md). `holdfast.sync` has the same classes for threads.",
            *[self.cls(cls) for cls in (holdfast.Buffer, holdfast.Batch, holdfast.Message, holdfast.Pair)],
            *[self.cls(cls) for cls in (holdfast.Appended, holdfast.DeadLetter)],
            *[self.cls(cls) for cls in (holdfast.BufferStats, holdfast.BufferTotals, holdfast.UserStats)],
            self.cls(holdfast.BatchTicket),
        )

    def runs(self) -> str:
        import holdfast
        from holdfast.runs.archiver import Archive

        return page(
            "Runs",
            "Made by `Holdfast.runs`. `runner`, `work`, `stop_work` and `archive`, which execute and keep them, are "
            "methods of [the client](client.md). `holdfast.sync` has the same classes for threads. "
            "[How to use them](../how-to/runs.md).",
            *[self.cls(cls) for cls in (holdfast.Runs, holdfast.ActiveRun, holdfast.Run, holdfast.Event)],
            f"{self.cls(Archive)}\n\n[RunArchive](memory.md#runarchive) is one, in SQL.",
        )

    def once(self) -> str:
        import holdfast

        return page(
            "Each thing once",
            "`once`, `filter_new`, `forget`, `claim`, `idempotent`, `gate` and `settled` are methods of "
            "[the client](client.md). `holdfast.sync` has the same classes for threads. "
            "[How to use them](../how-to/each-thing-once.md).",
            *[self.cls(cls) for cls in (holdfast.Claim, holdfast.Gate, holdfast.Decision, holdfast.Notice)],
        )

    def monitor(self) -> str:
        import holdfast
        from holdfast.monitor import diff, plot, sinks
        from holdfast.monitor.monitor import Status
        from holdfast.monitor.record import Store

        told = (holdfast.Delivery, holdfast.Change, holdfast.DeliveryFailed, holdfast.DeadDelivery)
        return page(
            "Monitor",
            "Made by `Holdfast.monitor`. `holdfast.sync` has the same class for threads. "
            "[How to use it](../how-to/watch-and-tell.md).",
            self.cls(holdfast.Monitor),
            *[self.cls(cls) for cls in (holdfast.Observation, holdfast.Observed, Status)],
            self.cls(holdfast.Subscriber, made_by_users=True),
            *[self.cls(cls) for cls in told],
            *[self.cls(cls) for cls in (holdfast.Snapshot, holdfast.Push)],
            f"{self.cls(Store)}\n\n[MonitorStore](memory.md#monitorstore) is one, in SQL.",
            self.cls(diff.Difference),
            *[self.function(f"{one.__module__}.{one.__name__}", one) for one in (diff.diff, plot.plot, plot.spark)],
            self.function("holdfast.monitor.sinks.verify", sinks.verify),
        )

    def fleet(self) -> str:
        import holdfast

        seen = (holdfast.Process, holdfast.Named, holdfast.Series, holdfast.Slot, holdfast.Times, holdfast.Action)
        return page(
            "The fleet",
            "Reached as `Holdfast.fleet`. `holdfast.sync` has the same class for threads. "
            "[What is reported, and what it costs](../how-to/run-a-node.md#what-the-fleet-reports).",
            self.cls(holdfast.Fleet),
            *[self.cls(cls) for cls in seen],
        )

    def node(self) -> str:
        from holdfast import settings
        from holdfast.node import app

        return page(
            "The node",
            self.doc("NodeSettings", settings.NodeSettings.__doc__)
            + " `holdfast config` shows what is in force. [How to run one](../how-to/run-a-node.md).",
            self.settings_table(settings.NodeSettings, f"{settings.ENV_PREFIX}NODE_"),
            *[self.function(f"holdfast.node.app.{one.__name__}", one) for one in (app.create, app.mount)],
        )

    def http(self) -> str:
        """The HTTP API, from the definitions that serve it."""
        from holdfast.node.api import OPERATIONS, openapi
        from holdfast.node.api.operation import Nothing

        parts, last = [], ""
        for one in OPERATIONS:
            group = one.name.partition("_")[0]
            if group != last:
                parts.append(f"## {group}\n\n{self.doc(group, sys.modules[one.work.__module__].__doc__)}")
                last = group
            told = [f"### {one.method} {one.path}", f"{self.doc(one.name, one.work.__doc__)} Scope: {one.scope}."]
            for what, kind in (("Query", one.query), ("Body", one.body)):
                if kind is not Nothing:
                    told.append(f"{what}:\n\n{fence(openapi.shown_fields(kind), 'text')}")
            if one.stream:
                told.append("Answers with Server-Sent Events.")
            else:
                told.append(f"Answers {one.status}:\n\n{fence(openapi.shown_fields(one.answer), 'text')}")
            more = [f"204: {one.empty}"] if one.empty else []
            more += [f"{status}: {openapi.MEANING[status]}" for status in one.errors]
            more += ["Takes `Idempotency-Key`."] if one.repeatable else []
            parts.append("\n\n".join([*told, *([" ".join(more)] if more else [])]))
        return page(
            "HTTP API",
            "What `holdfast up` serves under `/v1`. [How to use it](../how-to/http-api.md). The same as OpenAPI 3.1 is "
            "at `/openapi.json`, and as a page at `/docs`.",
            *parts,
        )

    def sessions(self) -> str:
        import holdfast

        return page(
            "Sessions",
            "Short-term memory, made by `Holdfast.sessions`. [How to use it](../how-to/session-memory.md).",
            self.cls(holdfast.Sessions),
            self.cls(holdfast.Draft, made_by_users=True),
            *[self.cls(cls) for cls in (holdfast.Entry, holdfast.Context, holdfast.Saved, holdfast.Trimmed)],
        )

    def memory(self) -> str:
        from holdfast import memory

        made = (memory.Memory, memory.Store, memory.Verbatim, memory.ChatModelAgent, memory.Budget, memory.NewEntry,
                memory.RunArchive, memory.MonitorStore)  # fmt: skip
        rest = [getattr(memory, name) for name in memory.__all__]
        return page(
            "Long-term memory",
            self.doc("memory", memory.__doc__),
            "All names are in `holdfast.memory`. [How to use it](../how-to/long-term-memory.md).",
            *[self.cls(cls, made_by_users=True) for cls in made],
            *[self.cls(cls) for cls in rest if cls not in made],
        )

    def adapters(self) -> str:
        from holdfast import adapters
        from holdfast.adapters import asgi, celery, dramatiq, fastapi, langchain, openai_agents, problems, starlette

        sections = [
            ("OpenAI Agents SDK", "openai-agents", openai_agents.HoldfastSession),
            ("LangChain", "langchain", langchain.HoldfastChatMessageHistory),
        ]
        parts = []
        for title, extra, cls in sections:
            where = f"For {title}: `from {cls.__module__} import {cls.__name__}`, with `holdfast[{extra}]`."
            heading, _, rest = self.cls(cls, made_by_users=True).partition("\n\n")
            parts.append(f"{heading}\n\n{where}\n\n{rest}")
        functions: list[tuple[str, str, Callable[..., Any]]] = [
            ("Starlette and FastAPI", "starlette", starlette.event_stream),
            ("Starlette and FastAPI", "starlette", asgi.lifespan),
            ("Starlette and FastAPI", "starlette", asgi.install),
            ("Starlette and FastAPI", "starlette", problems.problem),
            ("FastAPI", "fastapi", fastapi.locked),
            ("FastAPI", "fastapi", fastapi.idempotent),
            ("Celery", "celery", celery.as_run),
            ("Dramatiq", "dramatiq", dramatiq.as_run),
        ]
        for title, extra, function in functions:
            name = function.__name__
            where = f"For {title}: `from {function.__module__} import {name}`, with `holdfast[{extra}]`."
            _, _, rest = self.function(name, function).partition("\n\n")
            parts.append(f"## {name}, for {title}\n\n{where}\n\n{rest}")
        more = (
            "How to use them: [sessions](../how-to/session-memory.md#openai-agents-sdk), "
            "[events of a run](../how-to/chat-with-stop-and-resume.md), "
            "[runs in Celery and Dramatiq](../how-to/runs-in-celery-and-dramatiq.md)."
        )
        return page("Adapters", f"{self.doc('adapters', adapters.__doc__)} {more}", *parts)

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
        from holdfast.node.metrics import NAMES
        from holdfast.observe import counters, logs, otel, prometheus

        sections = [
            (counters.Counters, f"Names:\n\n{', '.join(code(name) for name in counter_names())}."),
            (logs.LogObserver, ""),
            (logs.JsonFormatter, ""),
            (prometheus.PrometheusObserver, table(("metric", "type", "labels", "meaning"), prometheus_metrics())),
            (otel.OtelObserver, table(("metric", "type", "unit", "meaning"), otel_metrics())),
        ]
        return page(
            "Observers",
            self.doc("observe", observe.__doc__) + " What they are told of: [events](events.md).",
            *["\n\n".join(part for part in (self.cls(c, made_by_users=True), more) if part) for c, more in sections],
            self.function("holdfast.observe.write_logs", logs.write_logs),
            "## Metrics of a node\n\n`/metrics` of `holdfast up` has these too, for the whole fleet.\n\n"
            + table(("metric", "meaning"), [(code(name), text) for name, text in NAMES.items()]),
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
                parts.append(self.function(name, thing))
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
            parts += self._command(f"holdfast {name}", command, "##")
            for sub, inner in getattr(command, "commands", {}).items():
                parts += self._command(f"holdfast {name} {sub}", inner, "###")
        parts.append("How each of them ends: [exit codes](../how-to/exit-codes.md).")
        return page("Command line", *parts)

    def _command(self, full: str, command: Any, level: str) -> list[str]:
        """One command; a group says only what it is about."""
        told = f"{level} {full}\n\n{self.doc(full, command.help)}"
        if hasattr(command, "commands"):
            return [told]
        words = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
        shown = fence(" ".join([full, *words, "[OPTIONS]"]), "text")
        return [f"{told}\n\n{shown}", self._options(full, command)]

    def _options(self, command: str, described: Any) -> str:
        rows = []
        for option in described.params:
            argument = option.param_type_name == "argument"
            name = option.name.upper() if argument else ", ".join(option.opts)
            if "completion" in name or getattr(option, "hidden", False):
                continue  # the shell's business, Typer's, or our own
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
            "the second time. `never`: after a lost reply it is not sent again; another script finds out what "
            "happened, or the caller gets `Indeterminate`. `allow-oom`: it works on a server that is out of memory.",
            table(("script", "retry", "flags", "answers"), rows),
            *scripts,
            *includes,
        )

    def pages(self) -> dict[str, str]:
        made = {
            f"{make.__name__}.md": make()
            for make in (self.client, self.locks, self.buffers, self.sessions, self.runs, self.once, self.monitor,
                         self.memory, self.fleet, self.node, self.http, self.adapters,
                         self.errors, self.events, self.settings, self.observers, self.testing, self.cli, self.lua)
        }  # fmt: skip
        return made


# -- observers, asked for their names by showing them one event of each kind ----------------------------------------


def one_of_each() -> Iterator[Any]:
    from holdfast import events

    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event:
            values = {"str": "", "int": 1, "float": 1.0, "bool": True}
            fields = {field.name: field for field in dataclasses.fields(kind)}
            event = kind(**{
                name: f"<{name}>" if field.type == "str" else values[str(field.type)]
                for name, field in fields.items()
                if field.type != "str" or field.default is dataclasses.MISSING
            })  # fmt: skip
            yield event
            if fields.get("what", dataclasses.field()).default is not dataclasses.MISSING:
                yield dataclasses.replace(event, what="batch")  # type: ignore[call-arg]


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
