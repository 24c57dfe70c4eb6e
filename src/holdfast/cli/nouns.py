"""`holdfast locks` lists, `holdfast locks NAME` looks at one, `holdfast locks release NAME` does something."""

from __future__ import annotations

import difflib
from typing import Any

import typer
from typer.core import TyperGroup

LIKE = 0.75
"""A word that is so much like a command is a mistake in writing, not a name."""


class Noun(TyperGroup):
    """Without a word its `list` is meant; with one that is no command of it, the command that looks at one thing.

    Both only read, so that a mistake in writing changes nothing."""

    named = "show"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Completion asks for the commands themselves.
        if not ctx.resilient_parsing:
            args = [*self._meant(args, ctx.help_option_names), *args]
        return super().parse_args(ctx, args)

    def _meant(self, args: list[str], helps: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first in self.commands or first in helps:
            return []
        if not first or first.startswith("-"):
            return ["list"]
        return [] if difflib.get_close_matches(first, self.commands, 1, LIKE) else [self.named]


class Inspected(Noun):
    named = "inspect"


class Counted(Noun):
    named = "status"


def noun(about: str, kind: type[Noun] = Noun) -> typer.Typer:
    """A group of commands about one thing."""
    return typer.Typer(help=about, cls=kind, no_args_is_help=False)
