"""One request to an OpenAI-compatible endpoint: bounded in time and size, no redirects, no secret in what is told."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx

LONGEST_RETRY_AFTER = 60.0
_MOST_BYTES = 1024 * 1024
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY = re.compile(r"[!-~]{1,4096}")


class Trouble(Exception):
    """A request that brought nothing usable. `final`: asking again would bring the same.

    `pause` is what the server asked for, `used` says that it may have worked for it, and counted that.
    """

    def __init__(
        self, reason: str, *, final: bool = False, status: int | None = None, pause: float | None = None,
        used: bool = False,
    ) -> None:  # fmt: skip
        self.reason, self.final, self.status, self.pause, self.used = reason, final, status, pause, used
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote, and the tokens it counted, if it did."""

    content: str
    tokens: int | None
    cut: bool


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    total_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Secret:
    """Is not printed, whatever prints it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not _KEY.fullmatch(value):
            raise ConfigurationError("pass an api_key of printable ASCII characters without spaces")
        self._value = value

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> str:
        return self._value


class Endpoint:
    """Where the model is asked."""

    def __init__(self, base_url: str, api_key: str | None, proxy: str | None) -> None:
        parts = urlsplit(base_url) if isinstance(base_url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("pass a base_url like https://host/v1")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ConfigurationError("pass a base_url without credentials, ? and #; the key goes into api_key")
        self.base_url = base_url.rstrip("/")
        self._secret = None if api_key is None else _Secret(api_key)
        self._proxy = proxy
        self._tls: Any = None

    def __repr__(self) -> str:
        return f"Endpoint({self.base_url!r})"

    def client(self) -> httpx.AsyncClient:
        """One for each run: it belongs to the loop that made it. What is slow to make, the TLS context, is kept.

        The environment is not asked: a proxy or a .netrc of the machine would get what users said."""
        import httpx

        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        # Compression is declined, because a small answer could become a huge one.
        headers = {"Accept-Encoding": "identity"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._secret.reveal()}"
        return httpx.AsyncClient(
            headers=headers, verify=self._tls, trust_env=False, proxy=self._proxy, follow_redirects=False
        )

    async def ask(self, client: httpx.AsyncClient, body: dict[str, Any], seconds: float) -> Answer:
        """Raises Trouble. Gives up after so many seconds, however slowly bytes arrive."""
        import httpx

        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(client, body, seconds)
        except (TimeoutError, httpx.TimeoutException):
            raise Trouble(f"no answer within {seconds:.3g} s", used=True) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # its text may quote what was sent
            sent = not isinstance(error, (httpx.ConnectError, httpx.InvalidURL, httpx.ProxyError))
            raise Trouble(f"the connection failed ({type(error).__name__})", used=sent) from None

    async def _exchange(self, client: httpx.AsyncClient, body: dict[str, Any], seconds: float) -> Answer:
        request = client.build_request("POST", f"{self.base_url}/chat/completions", json=body, timeout=seconds)
        response = await client.send(request, stream=True)
        try:
            raw = await _bounded(response)
        finally:
            await response.aclose()
        status = response.status_code
        if status != 200:
            raise self._refused(status, raw, response.headers)
        return _answer(raw)

    def _refused(self, status: int, raw: bytes, headers: httpx.Headers) -> Trouble:
        if 300 <= status < 400:
            return Trouble("it redirects, and redirects are not followed", final=True, status=status)
        again = status == 429 or status >= 500
        pause = _retry_after(headers) if again else None
        return Trouble(f"status {status}{self._code(raw)}", final=not again, status=status, pause=pause)

    def _code(self, raw: bytes) -> str:
        """The short code of the error, if there is one. Its text may quote the key or what users said."""
        secret = "" if self._secret is None else self._secret.reveal()
        with suppress(msgspec.DecodeError, KeyError, TypeError, RecursionError):
            code = msgspec.json.decode(raw)["error"]["code"]
            if isinstance(code, str) and _CODE.fullmatch(code) and code not in secret and (secret or " ") not in code:
                return f", {code}"
        return ""


async def _bounded(response: httpx.Response) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Trouble("it answers compressed, though asked not to", final=True, status=response.status_code)
    found = bytearray()
    async for chunk in response.aiter_raw():
        found += chunk
        if len(found) > _MOST_BYTES:
            raise Trouble(f"the answer has more than {_MOST_BYTES} bytes", final=True, status=response.status_code)
    return bytes(found)


def _answer(raw: bytes) -> Answer:
    try:
        completion = msgspec.json.decode(raw, type=_Completion)
        choice = completion.choices[0]
    except (msgspec.DecodeError, IndexError, RecursionError, UnicodeDecodeError):
        raise Trouble("the answer is no chat completion", status=200, used=True) from None
    tokens = None if completion.usage is None else completion.usage.total_tokens
    return Answer(choice.message.content or "", tokens, choice.finish_reason == "length")


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds to wait, at most a minute. A date is held against the server's own clock, not ours."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return min(float(text), LONGEST_RETRY_AFTER)
    with suppress(TypeError, ValueError):
        wait = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        return min(max(wait, 0.0), LONGEST_RETRY_AFTER)
    return None
