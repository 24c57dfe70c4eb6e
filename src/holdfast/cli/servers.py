"""Asking each server of a deployment something, for `holdfast doctor`."""

from __future__ import annotations

import re
from typing import Any

from holdfast import Holdfast, ServerError


class Denied(Exception):
    """The user may not ask this, or the server does not know the question."""


class Server:
    """One primary."""

    def __init__(self, hf: Holdfast, number: int, name: str) -> None:
        self._hf = hf
        self._number = number
        self.name = name
        """Where it is, if there are several; else empty."""

    @property
    def at(self) -> str:
        """For the end of a sentence."""
        return f" at {self.name}" if self.name else ""

    async def ask(self, *words: str | bytes) -> Any:
        """Answers as the server does. Raises Denied."""
        try:
            return await self._hf.command(*words, node=self._number)
        except ServerError as error:
            raise Denied(str(error)) from None

    async def info(self) -> dict[str, str]:
        """Everything that INFO says."""
        text = (await self.ask("INFO", "everything")).decode("utf-8", "replace")
        return dict(re.findall(r"^([a-zA-Z_0-9]+):([^\r\n]*)", text, re.M))

    async def config(self, name: str) -> str:
        """One value of its configuration; empty where it may not be read."""
        try:
            found = await self.ask("CONFIG", "GET", name)
        except Denied:
            return ""
        return found[1].decode() if len(found) > 1 else ""

    async def time(self) -> float:
        """Its clock, in seconds since 1970."""
        seconds, micros = await self.ask("TIME")
        return int(seconds) + int(micros) / 1e6


async def servers(hf: Holdfast) -> list[Server]:
    """Every primary."""
    found = await hf.servers()
    return [Server(hf, number, name if len(found) > 1 else "") for number, name in enumerate(found)]
