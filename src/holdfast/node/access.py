"""Who may do what: tokens with scopes, compared in constant time; loopback without one."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from holdfast import ConfigurationError, HoldfastError
from holdfast.node.problems import Refused
from holdfast.node.state import node_of
from holdfast.settings import NodeSettings

SCOPES = ("read", "write", "operate")
SHORTEST = 16
COOKIE = "holdfast_session"
LONGEST_FORM = 8192
KNOWN_PEERS = 4096
FORWARDED = ("via", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
GUESSES = 5.0
"""Wrong tokens in a second that one address may try."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Token:
    """One token. Only its digest is kept."""

    name: str
    scopes: frozenset[str]
    digest: bytes = field(repr=False)
    session: str = field(repr=False)
    """What a browser that signed in with it keeps instead of it. Another token makes it worthless."""

    @classmethod
    def of(cls, name: str, scopes: frozenset[str], digest: bytes) -> Token:
        mark = hmac.new(digest, b"holdfast browser session", hashlib.sha256).hexdigest()
        return cls(name, scopes, digest, f"{quote(name, safe='')}.{mark}")


@dataclass(slots=True)
class Bucket:
    """So many in a second, and twice as many at once."""

    rate: float
    left: float
    at: float

    def take(self, now: float, cost: float) -> float:
        """0.0, or how many seconds to wait."""
        self.left = min(max(1.0, 2 * self.rate), self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return (1 - self.left) / self.rate
        self.left -= cost
        return 0.0


class Access:
    """The tokens of a node, and how much each caller may still do."""

    def __init__(self, config: NodeSettings) -> None:
        self.tokens = tokens_of(config)
        self.hosts = frozenset(config.hosts.lower().split())
        self._rate = config.rate
        self._buckets: dict[str, Bucket] = {}
        self._welcome: set[tuple[str, str]] = set()
        """Addresses, with the token that was right from there."""

    def caller(self, connection: HTTPConnection) -> Caller:
        """Raises Refused: 401 without a known token, 403 from elsewhere, 429 for too many requests."""
        if not self.tokens:
            if not self._from_here(connection):
                raise Refused(403, "not-from-here", "start the node with a token to use it from another machine")
            found = Caller("local", frozenset(SCOPES))
        else:
            found = self._known(connection)
        self._limit(found.name, self._rate)
        return found

    def charge(self, caller: Caller, cost: float) -> None:
        """One request that is as much work as several. Raises Refused."""
        self._limit(caller.name, self._rate, cost)

    def slow_down(self, connection: HTTPConnection) -> None:
        """Somebody is about to guess. Raises Refused where that is too often."""
        self._limit(_peer(connection), GUESSES)

    def sign_in(self, given: str) -> Token | None:
        """The token that this is, if it is one."""
        return self._by_token(given)

    def check_bind(self, host: str) -> None:
        """Anybody who reaches this address may do everything without a token: refuse all but loopback."""
        if not self.tokens and not _loopback(host):
            raise ConfigurationError(
                f"pass --token-file, or set HOLDFAST_NODE_TOKEN, to listen on {host}: without one anybody there may do "
                "everything. `holdfast up --new-token` makes one"
            )

    def _from_here(self, connection: HTTPConnection) -> bool:
        peer = connection.client
        if peer is not None and not _loopback(peer.host):
            return False
        if any(name in connection.headers for name in FORWARDED):
            return False  # it came through a proxy, from wherever
        # A page of another site that got this address under its own name (DNS rebinding) has its own name here.
        host = connection.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return (_loopback(name) and not name.startswith("/")) or name in self.hosts

    def _known(self, connection: HTTPConnection) -> Caller:
        kind, _, given = connection.headers.get("authorization", "").partition(" ")
        cookie = "" if kind else connection.cookies.get(COOKIE, "")
        if kind or cookie:
            found = self._by_session(cookie) if cookie else None
            if kind.lower() == "bearer":
                found = self._by_token(given.strip())
            peer = _peer(connection)
            if found is None or (peer, found.name) not in self._welcome:
                # Before the answer: else only wrong guesses would wait, and a right one be told at once. Whoever got
                # in from there before goes on: others behind the same proxy may guess.
                self._limit(peer, GUESSES, cost=0.0 if found else 1.0)
            if found is not None:
                if len(self._welcome) >= KNOWN_PEERS:
                    self._welcome.clear()
                self._welcome.add((peer, found.name))
                return Caller(found.name, found.scopes)
        asked = {"WWW-Authenticate": "Bearer"}
        raise Refused(401, "no-token", "send a token that is known: Authorization: Bearer …", asked)

    def _by_token(self, given: str) -> Token | None:
        """Every token is compared, whichever fits: how long it takes tells nothing."""
        digest, found = _digest(given), None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _by_session(self, cookie: str) -> Token | None:
        given, found = cookie.encode(), None
        for token in self.tokens:
            if hmac.compare_digest(token.session.encode(), given):
                found = token
        return found

    def _limit(self, who: str, rate: float, cost: float = 1.0) -> None:
        now = time.monotonic()
        bucket = self._buckets.get(who)
        if bucket is None:
            if not cost:
                return
            if len(self._buckets) >= KNOWN_PEERS:
                self._buckets.clear()
            bucket = self._buckets[who] = Bucket(rate, max(1.0, 2 * rate), now)
        wait = bucket.take(now, cost)
        if wait:
            raise Refused(
                429, "too-many-requests", f"wait {wait:.1f} s: only {rate:g} requests in a second are allowed",
                {"Retry-After": str(int(wait) + 1)},
            )  # fmt: skip


def tokens_of(config: NodeSettings) -> tuple[Token, ...]:
    """Raises ConfigurationError, which never quotes a token."""
    found = [] if not config.token else [Token.of("operator", frozenset(SCOPES), _checked("token", config.token))]
    for entry in config.tokens.split():
        name, equals, rest = entry.partition("=")
        words, colon, text = rest.partition(":")
        scopes = frozenset(words.split("+"))
        if not (name and equals and colon) or not scopes <= set(SCOPES):
            raise ConfigurationError("write tokens as name=scope+scope:token; scopes are read, write and operate")
        found.append(Token.of(name, scopes, _checked(f"the token of {name}", text)))
    if len({token.name for token in found}) < len(found) or len({token.digest for token in found}) < len(found):
        raise ConfigurationError("give each token a name of its own, and each name a token of its own")
    return tuple(found)


def new_token() -> str:
    return secrets.token_urlsafe(24)


def _checked(what: str, text: str) -> bytes:
    if len(text) < SHORTEST or not text.isascii() or not text.isprintable():
        raise ConfigurationError(f"make {what} at least {SHORTEST} characters long, of plain ASCII")
    return _digest(text)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _loopback(host: str) -> bool:
    if host in ("localhost", "127.0.0.1", "::1") or not host:
        return host != ""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.startswith("/")  # a Unix socket


def _peer(connection: HTTPConnection) -> str:
    return f"peer {connection.client.host if connection.client else ''}"


# -- for pages and handlers ---------------------------------------------------------------------------------------


def require(request: HTTPConnection, scope: str) -> Caller:
    """Who asks, if that one may do this. Raises Refused."""
    caller: Caller | None = request.scope.get("holdfast.caller")
    if caller is None:
        caller = request.scope["holdfast.caller"] = node_of(request).access.caller(request)
    if scope not in caller.scopes:
        raise Refused(403, "not-allowed", f"use a token with the scope {scope}: {caller.name} has none")
    return caller


async def operate(
    request: HTTPConnection, action: str, target: str, reason: str, work: Callable[[], Awaitable[str]]
) -> str:
    """Do something that an operator asked for. It is in the audit log before it is done, and then what came of it."""
    caller, node = require(request, "operate"), node_of(request)
    if not reason.strip():
        raise ConfigurationError("give a reason: it goes into the audit log")
    entry = await node.hf.fleet.record(action, target, reason.strip(), by=caller.name)
    try:
        outcome = await work()
    except Exception as error:
        # Of an error that is not ours only the type: its text may be nobody's business.
        await node.quietly(entry, f"failed: {error if isinstance(error, HoldfastError) else type(error).__name__}")
        raise
    await node.quietly(entry, outcome or "done")
    return outcome


async def login(request: Request) -> Response:
    """A form with a token, answered with a cookie and the way back."""
    root, access = request.scope.get("root_path", ""), node_of(request).access
    access.slow_down(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise Refused(413, "body-too-large", f"send a form of at most {LONGEST_FORM} bytes")
    form = dict(parse_qsl(body.decode("utf-8", "replace")))
    back = form.get("next", "")
    if not back.startswith(f"{root}/") or back.startswith("//") or "\\" in back:
        back = f"{root}/"
    token = access.sign_in(form.get("token", "").strip())
    if token is None:
        return RedirectResponse(f"{root}/login?wrong=1&next={quote(back, safe='')}", 303)
    answer = RedirectResponse(back, 303)
    answer.set_cookie(
        COOKIE, token.session, max_age=30 * 86_400, path=f"{root}/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


async def logout(request: Request) -> Response:
    """Forget who this browser is."""
    root = request.scope.get("root_path", "")
    answer = RedirectResponse(f"{root}/login", 303)
    answer.delete_cookie(COOKIE, path=f"{root}/")
    return answer
