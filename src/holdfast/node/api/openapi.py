"""The description of the API, made from the same definitions that serve it, and a page that shows it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import msgspec

import holdfast
from holdfast.node.api.operation import IDEMPOTENCY, LONGEST_KEY, Nothing, Operation

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:holdfast:problem: and the name of the error."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What to do."},
        "operation": {"type": "string"},
        "key": {"type": "string"},
    },
}
ALWAYS = (400, 401, 403, 422, 429, 500, 503, 504)
MEANING = {
    400: "The request cannot work.", 401: "No token, or one that is not known.", 403: "The token may not do this.",
    404: "There is no such thing, or no longer.", 405: "Not with this method.", 409: "Somebody else has it.",
    410: "It is gone.", 413: "Too large.", 415: "The body is not JSON.", 422: "An id or a value cannot be used.",
    429: "Too many requests.", 500: "It failed.", 503: "The server cannot be reached, or is full. Nothing was done.",
    504: "The outcome is not known.",
}  # fmt: skip
COLLECTIONS = ("buffer", "collection", "monitor")
"""Their names are shorter than other ids."""
REF = "#/components/schemas/{name}"


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    types = list(dict.fromkeys(one.body for one in operations if one.body is not Nothing))
    types += [one.answer for one in operations if one.answer is not None and one.answer not in types]
    found, components = msgspec.json.schema_components(types, ref_template=REF)
    schemas = dict(zip(map(_key, types), found, strict=True))
    paths: dict[str, Any] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast", "version": holdfast.__version__,
            "description": "A fleet of workers that share one Valkey or Redis and behave like one careful worker.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }  # fmt: skip


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": name, "in": "path", "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 64 if name in COLLECTIONS else 512},
        }
        for name in one.parameters
    ]  # fmt: skip
    if one.query is not Nothing:
        parameters += _query(one.query)
    if one.repeatable:
        parameters.append(
            {
                "name": IDEMPOTENCY.title(), "in": "header", "required": False,
                "description": "Repeated with the same key, it is done once, and answered the same, for a day.",
                "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
            }
        )  # fmt: skip
    described: dict[str, Any] = {
        "operationId": one.name, "summary": one.summary, "tags": [one.name.partition("_")[0]],
        "description": f"Scope: {one.scope}.", "parameters": parameters, "responses": _responses(one, schemas),
    }  # fmt: skip
    if one.body is not Nothing:
        described["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schemas[_key(one.body)]}}
        }  # fmt: skip
    return described


def _query(kind: type[msgspec.Struct]) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=REF)
    schema = components[kind.__name__]
    wanted = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in wanted, "schema": _no_null(part)}
        for name, part in schema["properties"].items()
    ]


def _no_null(schema: dict[str, Any]) -> dict[str, Any]:
    """In a query there is no null: who wants none leaves it out."""
    some = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    found = some[0] if len(some) == 1 else schema
    return {name: value for name, value in found.items() if name != "default" or value is not None}


def _responses(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if one.stream:
        found["200"] = {"description": "Events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    elif one.answer is not None:
        found[str(one.status)] = {
            "description": one.summary, "content": {"application/json": {"schema": schemas[_key(one.answer)]}}
        }  # fmt: skip
    if one.answer is None and not one.stream:
        found["204"] = {"description": "Done."}
    elif one.empty:
        found["204"] = {"description": one.empty}
    wrong = {*ALWAYS, *one.errors, *((413, 415, 409) if one.body is not Nothing else ())}
    for status in sorted(wrong):
        found[str(status)] = {
            "description": MEANING[status],
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found


def page(operations: Sequence[Operation], root: str) -> str:
    """A page to read it, without any outside asset and without a script."""
    parts, last = [], ""
    for one in operations:
        group = one.name.partition("_")[0]
        if group != last:
            parts.append(f"<h2 id='{escape(group)}'>{escape(group)}</h2>")
            last = group
        parts.append(_shown(one))
    groups = dict.fromkeys(one.name.partition("_")[0] for one in operations)
    links = " ".join(f"<a href='#{escape(group)}'>{escape(group)}</a>" for group in groups)
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Holdfast: HTTP API</title><link rel=stylesheet href='{escape(root)}/docs.css'></head><body><main>"
        f"<h1>HTTP API</h1><p>As a document: <a href='{escape(root)}/openapi.json'>openapi.json</a> (OpenAPI 3.1). "
        f"Back to the <a href='{escape(root)}/'>dashboard</a>.</p><p>Send a token as <code>Authorization: Bearer …"
        "</code>; on loopback, and without one set, none is needed. Errors are <code>application/problem+json</code>. "
        "Ids in paths are percent-encoded. <code>POST</code> takes an <code>Idempotency-Key</code> where it says so."
        f"</p><nav>{links}</nav>{''.join(parts)}</main></body></html>"
    )


def _shown(one: Operation) -> str:
    rows = []
    if one.query is not Nothing:
        rows.append(f"<dt>query</dt><dd><pre>{escape(shown_fields(one.query))}</pre></dd>")
    if one.body is not Nothing:
        rows.append(f"<dt>body</dt><dd><pre>{escape(shown_fields(one.body))}</pre></dd>")
    if one.stream:
        rows.append("<dt>answers</dt><dd>Server-Sent Events</dd>")
    elif one.answer is not None:
        rows.append(f"<dt>answers</dt><dd>{one.status} <pre>{escape(shown_fields(one.answer))}</pre></dd>")
    if one.repeatable:
        rows.append("<dt>repeats</dt><dd>with <code>Idempotency-Key</code></dd>")
    return (
        f"<details><summary><code><b>{one.method}</b> {escape(one.path)}</code> <span>{escape(one.summary)}</span>"
        f"</summary><dl><dt>scope</dt><dd>{one.scope}</dd>{''.join(rows)}</dl></details>"
    )


def shown_fields(kind: Any) -> str:
    """The fields of a shape, one on a line, with those of the shapes in it below; of a list, those of its items."""
    inside = getattr(kind, "__args__", ())
    if inside:
        return f"list of\n{shown_fields(inside[0])}" if _is_shape(inside[0]) else "list"
    if not _is_shape(kind):
        return str(getattr(kind, "__name__", kind))
    return "\n".join(_lines(kind, ""))


def _lines(kind: Any, before: str) -> Iterator[str]:
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
    yield from (f"{before}# {line}" for line in text.splitlines() if line)
    for one in msgspec.structs.fields(kind):
        (schema,), _ = msgspec.json.schema_components([one.type], ref_template=REF)
        if one.default in (msgspec.NODEFAULT, msgspec.UNSET):
            default = "" if one.required else " (may be left out)"
        else:
            default = " (may be left out)" if one.default is None else f" = {json.dumps(one.default)}"
        yield f"{before}{one.encode_name}: {_type(schema)}{default}"
        for shape in _shapes(one.type):
            yield from _lines(shape, f"{before}    ")


def _is_shape(kind: Any) -> bool:
    return hasattr(kind, "__struct_fields__")


def _shapes(kind: Any) -> Iterator[Any]:
    """Those in a type, such as in a list of them."""
    if _is_shape(kind):
        yield kind
    for part in getattr(kind, "__args__", ()):
        yield from _shapes(part)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(json.dumps, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
nav a { margin-right: 1rem; }
details { border-top: 1px solid color-mix(in srgb, currentColor 20%, transparent); padding: .5rem 0; }
summary { cursor: pointer; }
summary span { margin-left: .5rem; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: .9rem/1.4 ui-monospace, monospace; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 6rem 1fr; gap: .25rem 1rem; }
dd { margin: 0; min-width: 0; }
"""
