"""What counts of a page: a part of it by CSS selector, JSONPath or regular expression."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.monitor.page import PageFailed, PageUnreadable, json_of, kind_of, parsed, text_of, visible

MOST_BYTES = 2 * 1_048_576
"""A page that is larger is not read."""
MOST_MATCHES = 1000
MOST_PATTERN = 2000
"""Characters of a selector, path or regular expression."""
_ATTRIBUTE = re.compile(r"(.*\S)\s*::attr\(\s*([A-Za-z_:][\w:.-]*)\s*\)", re.DOTALL)

ExtractFrom = Callable[[bytes, str], Any]
"""Takes a body and its content type, answers a JSON value."""
_Part = Any


class NothingFound(PageFailed):
    """Nothing on the page matches. It is a failure and no change to nothing."""


class Extract:
    """Takes a body and its content type, answers what counts of it. Made by `make_extract`.

    It reads in the process that calls it, and what a stranger wrote may keep a parser or a regular expression busy for
    minutes, with the interpreter locked. A `Reader` does the same in a process that can be ended."""

    __slots__ = ("_attribute", "_path", "_pattern", "_selector", "css", "empty_ok", "json", "regex", "text")

    def __init__(
        self, css: str | None, json: str | None, regex: str | None, text: bool, empty_ok: bool
    ) -> None:  # fmt: skip
        self.css, self.json, self.regex, self.text, self.empty_ok = css, json, regex, text, empty_ok
        self._selector, self._attribute = ("", "") if css is None else _checked_selector(css)
        self._path = None if json is None else _checked_path(json)
        self._pattern = None if regex is None else _checked_pattern(regex)

    @property
    def options(self) -> dict[str, Any]:
        """`make_extract(**options)` makes the same again."""
        return {"css": self.css, "json": self.json, "regex": self.regex, "text": self.text, "empty_ok": self.empty_ok}

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.options.items() if value)
        return f"make_extract({given})"

    def __call__(self, body: bytes, content_type: str = "") -> Any:
        """Raises NothingFound or PageUnreadable."""
        return json.loads(self.encoded(body, content_type))

    def encoded(self, body: bytes, content_type: str = "") -> bytes:
        """The same, as JSON."""
        if len(body) > MOST_BYTES:
            raise PageUnreadable(f"choose a smaller page: this one has more than {MOST_BYTES} bytes")
        try:
            found = self._found(body, content_type)
            return json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        except HoldfastError:
            raise
        except MemoryError:
            raise PageUnreadable("choose a smaller page: this one needs too much memory") from None
        except (ValueError, RecursionError) as error:  # infinite numbers, half characters, too deep
            raise PageUnreadable(f"check the page: what was found is no JSON value ({type(error).__name__})") from None

    def _found(self, body: bytes, content_type: str) -> Any:
        if self.css is not None:
            parts = self._select(body, content_type)
        elif self._path is not None:
            parts = self._look_up(body)
        else:
            parts = [self._whole(body, content_type)]
        if self._pattern is not None:
            parts = _at_most(itertools.chain.from_iterable(self._match(_as_text(part)) for part in parts))
        # JSON says what it means, also by an empty list. An empty element is what a page shows that is not ready.
        plain = self._path is not None and self._pattern is None
        if not parts or not (plain or any(part not in ("", None, {}, []) for part in parts)):
            if self.empty_ok:
                return parts[0] if len(parts) == 1 else (parts or None)
            raise NothingFound(self._nothing())
        return parts[0] if len(parts) == 1 else parts

    def _nothing(self) -> str:
        sought = " and ".join(f"{name} {value!r}" for name, value in self.options.items() if isinstance(value, str))
        return f"check {sought}: nothing on the page matches" if sought else "check the page: there is no text on it"

    def _whole(self, body: bytes, content_type: str) -> Any:
        kind = "text" if self.text else kind_of(body, content_type)
        if kind == "json" and self._pattern is None:
            return json_of(body)
        if kind == "html":
            return visible(parsed(text_of(body, content_type)).body)
        if kind == "binary":
            # What cannot be shown can still be seen to change.
            return f"sha256:{sha256(body).hexdigest()}" if body else ""
        return text_of(body, content_type).replace("\r\n", "\n").strip()

    def _select(self, body: bytes, content_type: str) -> list[_Part]:
        nodes = _at_most(parsed(text_of(body, content_type)).css(self._selector))
        if not self._attribute:
            return [visible(node) for node in nodes]
        return [value for node in nodes if (value := node.attributes.get(self._attribute)) is not None]

    def _look_up(self, body: bytes) -> list[_Part]:
        from jsonpath import JSONPathError

        value = json_of(body)
        try:
            # It takes text for a document that is still to be parsed.
            found = self._path.finditer(json.dumps(value) if isinstance(value, str) else value)  # type: ignore[union-attr]
            return _at_most(match.obj for match in found)
        except JSONPathError as error:
            raise PageUnreadable(f"check the JSONPath against the page: {_first_line(error)}") from None

    def _match(self, text: str) -> list[_Part]:
        assert self._pattern is not None
        return [_groups(match) for match in _at_most(self._pattern.finditer(text))]


def make_extract(
    *, css: str | None = None, json: str | None = None, regex: str | None = None, text: bool = False,
    empty_ok: bool = False,
) -> Extract:  # fmt: skip
    """What counts of a page. Raises ConfigurationError for what can never match.

    `css`: the visible text of the elements that this selector matches; `a.next::attr(href)` is an attribute of them.
    `json`: what this JSONPath matches. `regex`: applied to each of these, or to the text of the page; its groups are
    what counts, as a dict where they have names. One match is its value, several are a list, at most 1000. Without any
    of them: the value of a JSON body, the visible text of HTML, the text of any other text, a digest of anything else.
    `text`: take the body as text, as it is, whatever its type.

    No match, and nothing but empty ones, is NothingFound: a page that is broken for a moment is no change to nothing.
    With `empty_ok` it is one. Values of JSON may be empty. White space in HTML counts as one space; scripts and styles
    are left out."""
    for name, value in (("css", css), ("json", json), ("regex", regex)):
        if value is not None and not (isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= MOST_PATTERN):
            raise ConfigurationError(f"pass {name} as text of 1 to {MOST_PATTERN} characters")
    if css is not None and json is not None:
        raise ConfigurationError("choose one of css and json: a page is HTML or JSON")
    if text and (css is not None or json is not None):
        raise ConfigurationError("leave out text=True, or css and json: text takes the page as it is")
    return Extract(css, json, regex, bool(text), bool(empty_ok))


def _checked_selector(css: str) -> tuple[str, str]:
    selector, attribute = css, ""
    if found := _ATTRIBUTE.fullmatch(css.strip()):
        selector, attribute = found[1], found[2].lower()
    document = parsed("<p></p>")
    from selectolax.lexbor import SelectolaxError

    try:
        document.css(selector)
    except SelectolaxError:
        raise ConfigurationError(f"check the CSS selector {css!r}: it cannot be read") from None
    return selector, attribute


def _checked_path(path: str) -> Any:
    try:
        import jsonpath
    except ImportError:
        raise ConfigurationError("pip install '.[monitor]' in Holdfast's clone to use JSONPath") from None
    try:
        return jsonpath.compile(path)
    except (jsonpath.JSONPathError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"check the JSONPath {path!r}: {_first_line(error)}") from None


def _checked_pattern(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"check the regular expression {regex!r}: {_first_line(error)}") from None


def _groups(match: re.Match[str]) -> _Part:
    if match.re.groupindex:
        return match.groupdict()
    groups = match.groups()
    return match.group() if not groups else groups[0] if len(groups) == 1 else list(groups)


def _as_text(value: _Part) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _at_most(parts: Any) -> list[_Part]:
    found = list(itertools.islice(parts, MOST_MATCHES + 1))
    if len(found) > MOST_MATCHES:
        raise PageUnreadable(f"choose a narrower selector: it matches more than {MOST_MATCHES} times")
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
