"""Lua scripts: read from the rooms' `lua/` folders, with their headers parsed and their includes put in.

A script file is one atomic operation. Its header is a promise that tests hold against the body:

    #!lua flags=allow-oom
    -- locks/release       retry: safe
    -- KEYS  1 lock        hash
    -- ARGV  1 token
    -- returns released | not_held

A line `-- include NAME` puts `lua/_NAME.lua` of the same room (or of the engine) in its place, once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from holdfast.engine.resp import Arg, pack
from holdfast.errors import ConfigurationError

_TITLE = re.compile(r"^-- (?P<name>[a-z_]+/[a-z_]+)\s+retry: (?P<retry>safe|opid|never)$", re.M)
_FLAGS = re.compile(r"^#!lua(?: flags=(?P<flags>[a-z,-]+))?$", re.M)
_RETURNS = re.compile(r"^-- returns (?P<words>[^\n]+)$", re.M)
_INCLUDE = re.compile(r"^-- include ([a-z_]+)$", re.M)


@dataclass(frozen=True, slots=True)
class Script:
    """One atomic operation, ready to be sent."""

    name: str
    source: str
    retry: str
    """safe: repeating changes nothing more. opid: it carries an operation id. never: its outcome can be unknown."""
    flags: tuple[str, ...]
    returns: tuple[str, ...]
    sha: bytes = field(repr=False)

    def pack(self, keys: Sequence[Arg], args: Sequence[Arg]) -> bytes:
        return pack(b"EVALSHA", self.sha, len(keys), *keys, *args)

    def pack_load(self) -> bytes:
        return pack(b"SCRIPT", b"LOAD", self.source)


def read_lua(room: str, name: str) -> str:
    return (resources.files("holdfast") / room / "lua" / f"{name}.lua").read_text("utf-8")


class Scripts:
    """All scripts of the installed version. `overrides` replaces an include: tests use it to move the clock."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        self._overrides = dict(overrides or {})
        self._loaded: dict[str, Script] = {}

    def get(self, name: str) -> Script:
        script = self._loaded.get(name)
        if script is None:
            script = self._loaded[name] = self._load(name)
        return script

    def _include(self, room: str, name: str) -> str:
        if name in self._overrides:
            return self._overrides[name]
        for place in (room, "engine"):
            if (resources.files("holdfast") / place / "lua" / f"_{name}.lua").is_file():
                return read_lua(place, f"_{name}")
        raise ConfigurationError(f"reinstall holdfast: the script include {name!r} is missing")

    def _load(self, name: str) -> Script:
        room, _, file = name.partition("/")
        text = read_lua(room, file)
        title, flags, returns = _TITLE.search(text), _FLAGS.search(text), _RETURNS.search(text)
        if not (title and flags and returns) or title["name"] != name:
            raise ConfigurationError(f"reinstall holdfast: the header of script {name!r} cannot be read")
        seen: set[str] = set()

        def expand(match: re.Match[str]) -> str:
            part = match.group(1)
            if part in seen:
                return ""
            seen.add(part)
            return _INCLUDE.sub(expand, self._include(room, part))

        source = _INCLUDE.sub(expand, text)
        return Script(
            name=name,
            source=source,
            retry=title["retry"],
            flags=tuple((flags["flags"] or "").split(",")) if flags["flags"] else (),
            returns=tuple(word.strip() for word in returns["words"].split("|")),
            sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode(),
        )
