"""What all pages share: templates, static files, answers. Pages are plain functions beside this."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import holdfast
from holdfast import ConfigurationError, TooLarge
from holdfast.adapters.problems import Problem
from holdfast.node import access
from holdfast.node.dashboard import charts, text
from holdfast.node.state import node_of

HERE = Path(__file__).parent
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FLASH = "holdfast_flash"
LONGEST_FLASH = 400
LONGEST_FORM = 262_144
KINDS = {"buffers": "buffer", "runs": "runs", "monitors": "monitor"}
"""Of what is in a sample: the kind of its names."""
SMALL = 1400
"""Bytes: below this an answer is one packet anyway, and not worth compressing."""

Look = Callable[[Request], Awaitable[dict[str, Any]]]
SECTIONS = (
    ("", "Overview", "o"),
    ("locks", "Locks", "l"),
    ("buffers", "Buffers", "b"),
    ("runs", "Runs", "r"),
    ("sessions", "Sessions", "s"),
    ("monitors", "Monitors", "m"),
    ("audit", "Audit", "a"),
    ("try", "Try it", "t"),
)
"""Address, name, and the key that goes there after `g`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for the list of a live page, drawn with a template; `last` is the id to go on after."""

    template: str
    context: Mapping[str, Any]
    last: str


@dataclass(frozen=True, slots=True)
class Page:
    """One page: where it is, what it looks at, how it is drawn, and how often anew while somebody watches."""

    path: str
    template: str
    section: str
    look: Look
    every: float = 2.0
    """Seconds between two looks of a live page; 0.0: it is not live."""
    sampled: bool = False
    """It shows the node's samples: look as often as there is one."""
    feed: Callable[[Request, str], AsyncIterator[Rows]] | None = None
    """Rows that are added to the page's list as they come, after the one with this id."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file in memory."""

    name: str
    body: bytes
    packed: bytes
    type: str
    digest: str


class Site:
    """Templates and static files, read once. Made by `routes`; it opens nothing else."""

    def __init__(self) -> None:
        self.assets = {file.name: _asset(file) for file in sorted((HERE / "static").iterdir()) if file.suffix in TYPES}
        self._env = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        self._env.filters.update(
            id=text.id_html, shown=text.shown, data=text.data_html, short=text.short_data, num=text.number,
            rate=text.rate, secs=text.seconds, moment=text.moment, ticking=text.ticking,
        )  # fmt: skip
        self._env.globals.update(
            draw=charts.draw, bar=charts.bar, fill_level=charts.fill_level, span_labels=charts.span_labels,
            sections=SECTIONS, version=holdfast.__version__,
        )  # fmt: skip
        # Blocks are also drawn by themselves, and then nothing that a template imports at its top is there.
        self._env.globals["m"] = self._env.get_template("macros.html").module

    def context(self, request: Request, section: str) -> dict[str, Any]:
        """What every template may use."""
        root = root_of(request)

        def url(*parts: text.Id) -> str:
            return f"{root}/" + "/".join(text.token(part) for part in parts if part != "")

        def asset(name: str) -> str:
            return f"{root}/static/{self.assets[name].digest}/{name}"

        caller = caller_of(request)
        scopes = caller.scopes if caller else ()
        return {
            "root": root, "url": url, "asset": asset, "section": section, "can_write": "write" in scopes,
            "can_operate": "operate" in scopes, "caller": caller, "flash": "", "live": False, "now": 0.0,
            "signed_in": access.COOKIE in request.cookies,
        }  # fmt: skip

    def blocks(self, template: str, context: Mapping[str, Any]) -> dict[str, str]:
        """The live parts of a page: its blocks whose names begin with `live_`."""
        found = self._env.get_template(template)
        made = found.new_context(dict(context))
        return {name: "".join(block(made)) for name, block in found.blocks.items() if name.startswith("live_")}

    def part(self, template: str, context: Mapping[str, Any]) -> str:
        """A template that is no page."""
        return self._env.get_template(template).render(context)

    def html(self, request: Request, template: str, context: Mapping[str, Any], status: int = 200) -> Response:
        """A page as an answer. A message that waits for the reader is shown in it, once."""
        flash = unquote(request.cookies.get(FLASH, ""))[:LONGEST_FLASH]
        body = self._env.get_template(template).render({**context, "flash": flash}).encode("utf-8", "backslashreplace")
        headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding, Cookie"}
        if len(body) > SMALL and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, 4, mtime=0), "gzip"
        response = Response(body, status, headers, "text/html; charset=utf-8")
        if flash:
            response.delete_cookie(FLASH, path=root_of(request) or "/", httponly=True, samesite="strict")
        return response

    def trouble(self, request: Request, section: str, told: Problem) -> Response:
        """An error as a page that says what to do."""
        context = {**self.context(request, section), "problem": told, "page_title": told.title}
        answer = self.html(request, "error.html", context, told.status)
        answer.headers.update(told.headers)
        return answer

    async def static(self, request: Request) -> Response:
        """A file whose address changes with its content: it may be kept for ever."""
        asset = self.assets.get(request.path_params["name"])
        if asset is None or request.path_params["digest"] != asset.digest:
            return Response("no such file", 404, media_type="text/plain")
        headers = {
            "Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff",
            "Vary": "Accept-Encoding",
        }  # fmt: skip
        body = asset.body
        if len(body) > SMALL and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = asset.packed, "gzip"
        return Response(body, 200, headers, asset.type)

    async def icon(self, request: Request) -> Response:
        """Browsers ask for this on every page that names no icon, such as a picture or JSON."""
        return Response(self.assets["icon.svg"].body, 200, {"Cache-Control": "max-age=86400"}, "image/svg+xml")


def _asset(file: Path) -> Asset:
    body = file.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:12]
    return Asset(file.name, body, gzip.compress(body, 9, mtime=0), TYPES[file.suffix], digest)


# -- requests ---------------------------------------------------------------------------------------------------------


def root_of(request: Request) -> str:
    """Where the node is mounted: `` or `/holdfast`."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def caller_of(request: Request) -> access.Caller | None:
    """Who asks, as the endpoint has found out; None on the page where one signs in."""
    return request.scope.get("holdfast.caller")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Bounded; no files."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise TooLarge(f"send a form of at most {LONGEST_FORM} bytes")
    fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100)
    return {name: value.replace("\r\n", "\n") for name, value in fields}


def count_of(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A number of the query, within its bounds; nonsense is the default."""
    given = request.query_params.get(name, "")
    return max(least, min(most, int(given))) if given.isdecimal() and len(given) < 10 else default


async def measured(request: Request, kind: str, most: int) -> tuple[list[tuple[str, Any]], int]:
    """The collections of a kind with what the node's last sample says of each, and how many more there are.

    One measurement serves all who look. None: it was not measured yet, or could not be."""
    node = node_of(request)
    names = await node.names(KINDS[kind])
    sample = (await node.sampler.fresh()).get(kind, {})
    return [(name, sample.get(name)) for name in names[:most]], max(0, len(names) - most)


def goto(request: Request, address: str, flash: str = "") -> Response:
    """On to another page of the dashboard, with a message for the reader.

    The message is a cookie of ours and not part of the address: nobody can make a link that says something."""
    response = RedirectResponse(address, 303)
    if flash:
        response.set_cookie(
            FLASH, quote(flash[:LONGEST_FLASH]), max_age=60, path=root_of(request) or "/", httponly=True,
            samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
    return response


def piece(request: Request, name: str) -> text.Id:
    """An id from the path."""
    return text.untoken(request.path_params[name])


def named(request: Request, name: str) -> str:
    """The name of a collection from the path."""
    return text.name_of(request.path_params[name])


def json_or_text(given: str) -> Any:
    """What somebody typed: JSON where it is some, else the text itself. What begins like JSON is meant to be some."""
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        if given.lstrip()[:1] in ("{", "["):
            raise ConfigurationError(f"mend the data: it begins like JSON and is none ({error})") from None
        return given
