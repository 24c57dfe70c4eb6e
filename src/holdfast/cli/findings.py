"""What a check of `holdfast doctor` answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; it may be meant so."""
    WARNING = "warning"
    """It weakens a promise, or will be a problem."""
    PROBLEM = "problem"
    """It breaks a promise, or something stands still."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    what: str
    """One line."""
    fix: str = ""
    """A line to type, or what to do."""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.OK, what)


def note(check: str, what: str, fix: str = "") -> Finding:
    return Finding(check, Level.NOTE, what, fix)


def warning(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.PROBLEM, what, fix)
