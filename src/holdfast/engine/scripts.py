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
from collections.abc import Sequence
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

    def as_eval(self, payload: bytes) -> bytes:
        """The same call with the script's text instead of its digest."""
        text = self.source.encode()
        sha = pack(b"EVALSHA", self.sha)[4:]
        return payload.replace(sha, pack(b"EVAL", text)[4:], 1)

    def pack_load(self) -> bytes:
        return pack(b"SCRIPT", b"LOAD", self.source)


class Scripts:
    """All scripts of the installed version."""

    def __init__(self) -> None:
        self._loaded: dict[str, Script] = {}

    def get(self, name: str) -> Script:
        script = self._loaded.get(name)
        if script is None:
            script = self._loaded[name] = self._load(name)
        return script

    def names(self) -> list[str]:
        """Of all of them, as room/name."""
        rooms = [room for room in resources.files("holdfast").iterdir() if (room / "lua").is_dir()]
        files = [(room.name, file.name) for room in rooms for file in (room / "lua").iterdir()]
        return sorted(
            f"{room}/{name.removesuffix('.lua')}"
            for room, name in files
            if name.endswith(".lua") and not name.startswith("_")
        )

    def read(self, room: str, name: str) -> str | None:
        """The text of a script or include (`_name`). Tests override it to move the clock or to put a bug back."""
        file = resources.files("holdfast") / room / "lua" / f"{name}.lua"
        return file.read_text("utf-8") if file.is_file() else None

    def _include(self, room: str, name: str) -> str:
        text = self.read(room, f"_{name}") or self.read("engine", f"_{name}")
        if text is None:
            raise ConfigurationError(f"reinstall holdfast: the script include {name!r} is missing")
        return text

    def _load(self, name: str) -> Script:
        room, _, file = name.partition("/")
        text = self.read(room, file) or ""
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
