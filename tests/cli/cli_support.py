"""The command line, as tests use it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from holdfast.cli.app import app
from holdfast.sync import Holdfast

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
HOSTILE = "[red]evil[/] \x1b[31m\u202e\n{x}"
"""An id that wants to be markup, to colour the terminal, to turn the line and to begin a new one."""


class Told:
    """Run a command, and see what it says."""

    def __init__(self, run: Callable[..., Result]) -> None:
        self._run = run

    def __call__(self, *words: str, code: int = 0, **env: Any) -> str:
        """What it prints."""
        done = self._run(*words, **env)
        assert done.exit_code == code, (done.exit_code, done.output)
        return done.stdout

    def done(self, *words: str, **env: Any) -> Result:
        return self._run(*words, **env)

    def json(self, *words: str, code: int = 0, **env: Any) -> Any:
        """The one document that it prints."""
        (line,) = self(*words, "--json", code=code, **env).splitlines()
        return json.loads(line)

    def coded(self, *words: str, **env: Any) -> tuple[int, Any]:
        """Its exit code and its one document."""
        done = self._run(*words, "--json", **env)
        (line,) = done.stdout.splitlines()
        return done.exit_code, json.loads(line)

    def lines(self, *words: str, code: int = 0, **env: Any) -> list[Any]:
        """The documents that it prints, one on each line."""
        return [json.loads(line) for line in self(*words, "--json", code=code, **env).splitlines()]

    def error(self, *words: str, code: int, **env: Any) -> str:
        """What it complains of."""
        done = self._run(*words, **env)
        assert done.exit_code == code, (done.exit_code, done.output)
        assert "Traceback" not in done.stderr
        return done.stderr


known = functools.cache(get_command)
"""Typer puts all commands together anew each time, which takes longer than most of them."""


def command_line(url: str, monkeypatch: pytest.MonkeyPatch) -> Told:
    """In this process, without a terminal, on this server."""
    monkeypatch.setattr("typer.testing._get_command", known, raising=False)

    def run(*words: str, **env: Any) -> Result:
        return CliRunner().invoke(app, list(words), env={"HOLDFAST_URL": url, **env}, catch_exceptions=False)

    return Told(run)


def tell_names(url: str, use: Callable[[Holdfast], Any]) -> None:
    """A process of the fleet uses something, reports it and ends."""
    with Holdfast(url, report=3600.0) as client:
        made = use(client)
        if hasattr(made, "name"):
            client._core.use(type(made).__name__.lower(), made.name)


def environment(**more: str) -> dict[str, str]:
    """As a person's shell has it."""
    ours = ("HOLDFAST_", "PYTHONUNBUFFERED")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**clean, **more}


def process(*words: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [HOLDFAST, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment(**env),
    )  # fmt: skip
