"""Try it: send a message, start a run, observe a state, and watch what becomes of it. All of it from the browser."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from holdfast import ConfigurationError, RunGone
from holdfast.node.api.shapes import plain
from holdfast.node.dashboard.monitors import thing_token, typed_key
from holdfast.node.dashboard.site import Page, form_of, goto, json_or_text, root_of
from holdfast.node.dashboard.text import token, untoken
from holdfast.node.state import Node, node_of

DEFAULTS = {"buffer": "messages", "runs": "agent", "monitor": "things"}
"""What the playground works on."""


async def look(request: Request) -> dict[str, Any]:
    """The forms, and what became of what was sent with them: it is named in the address."""
    node, query = node_of(request), request.query_params
    known = await node.hf.fleet.names() if query.get("live") != "1" else []  # the forms are not live
    names = {kind: sorted(one.name for one in known if one.kind == kind) for kind in DEFAULTS}
    return {
        "page_title": "Try it", "now": await node.now(), "names": names,
        "chosen": {kind: query.get(kind) or _usual(kind, names[kind]) for kind in DEFAULTS},
        "message": await _message(node, query.get("buffer", ""), query.get("user", "")),
        "started": await _run(node, query.get("runs", ""), query.get("run", "")),
        "observed": await _observed(node, query.get("monitor", ""), query.get("thing", "")),
        "workers": await _workers(node), "query": dict(query),
    }  # fmt: skip


def _usual(kind: str, names: list[str]) -> str:
    usual = DEFAULTS[kind]
    return usual if usual in names or not names else names[0]


async def _workers(node: Node) -> set[str]:
    """What somebody works on, as `buffer:messages`."""
    return {work for one in await node.hf.fleet.processes(200) if one.alive for work in one.works}


async def _message(node: Node, buffer: str, user: str) -> dict[str, Any] | None:
    if not buffer or not user:
        return None
    who = untoken(user)
    box = node.buffer(buffer)
    return {"buffer": buffer, "user": who, "stats": await box.stats(who)}


async def _run(node: Node, runs: str, run: str) -> dict[str, Any] | None:
    if not runs or not run:
        return None
    try:
        return {"runs": runs, "run": await node.runs(runs).get(untoken(run))}
    except RunGone:
        return None


async def _observed(node: Node, name: str, thing: str) -> dict[str, Any] | None:
    if not name or not thing:
        return None
    try:
        source, key = json.loads(untoken(thing))
    except (ValueError, TypeError, RecursionError):
        return None
    key = tuple(key) if isinstance(key, list) else key
    monitor = node.monitor(name)
    try:
        pushes = list(await monitor.pushes(None, 5))
    except ConfigurationError:
        pushes = []
    known = await monitor.get(source, key)
    return {
        "monitor": name, "source": source, "key": key, "place": thing, "known": known,
        "text": json.dumps(plain(known), ensure_ascii=False),
        "pushes": pushes, "status": await monitor.status(),
    }  # fmt: skip


# -- sending ----------------------------------------------------------------------------------------------------------


def _back(request: Request, flash: str, where: str, **names: str) -> Response:
    """To the forms again, keeping what the other panels show."""
    kept = {name: value for name, value in request.query_params.items() if name not in ("live", "dialog")}
    return goto(request, f"{root_of(request)}/try?{urlencode({**kept, **names})}#{where}", flash)


async def send(request: Request) -> Response:
    """A message to a buffer."""
    form, node = await form_of(request), node_of(request)
    buffer, user = form.get("buffer", "").strip(), form.get("user", "").strip()
    added = await node.buffer(buffer).append(user, json_or_text(form.get("data", "")))
    if form.get("now"):
        await node.buffer(buffer).flush(user)
    gone = sum(added.dropped.values())
    text = f"Sent: {added.length} of this user wait" + (f", {gone} older ones were dropped." if gone else ".")
    return _back(request, text, "message", buffer=buffer, user=token(user))


async def start(request: Request) -> Response:
    """A run."""
    form, node = await form_of(request), node_of(request)
    runs, run_id, key = (form.get(name, "").strip() for name in ("runs", "run", "key"))
    data = form.get("input", "").strip()
    run = await node.runs(runs).start(run_id, json_or_text(data) if data else None, key=key or None)
    return _back(request, f"Started: it is {run.state}.", "run", runs=runs, run=token(run.id))


async def stop(request: Request) -> Response:
    """The run that was started here. Whoever may start one may stop it; the page of a run asks for a reason."""
    form, node = await form_of(request), node_of(request)
    runs, run_id = form.get("runs", ""), untoken(form.get("run", ""))
    run = await node.runs(runs).stop(run_id, "tried in the dashboard")
    return _back(request, f"Stop asked for: it is {run.state}.", "run", runs=runs, run=token(run_id))


async def observe(request: Request) -> Response:
    """A state of a thing."""
    form, node = await form_of(request), node_of(request)
    name, source = form.get("monitor", "").strip(), form.get("source", "").strip()
    key = typed_key(form.get("key", "").strip())
    found = await node.monitor(name).observe(source, key, json_or_text(form.get("state", "")))
    return _back(request, f"Observed: {found.outcome}.", "observe", monitor=name, thing=thing_token(source, key))


PAGES = (Page("/try", "try.html", "try", look, every=1.0),)
POSTS = (("/try/message", send), ("/try/run", start), ("/try/stop", stop), ("/try/observe", observe))
