"""The command line. Needs `holdfast[node]`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from holdfast.cli.app import app
    except ImportError as error:
        sys.exit(f"pip install '.[node]' in Holdfast's clone to use the command line: {error.name} is missing")
    app()
