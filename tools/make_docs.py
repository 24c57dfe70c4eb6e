"""Writes docs/reference from the code, and checks every page. `--check` writes nothing and fails on what is stale.

The reference says what the code says: docstrings, signatures, fields, settings, commands and script headers. A public
name without a docstring fails here, so that nobody finds an empty page. Pages are the same on every machine: nothing
of the terminal, of an address in memory or of a set's order gets in.

Also checked, in README.md, CONTRIBUTING.md, CHANGELOG.md and docs: relative links lead to a file and a heading, every
page is linked from docs/index.md, and code blocks are marked. A block ```python runs as it stands
(tests/test_docs.py runs it); ```python no-run does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from check_docs import pages_to_check, problems_of
from docs_code import REFERENCE, ROOT
from docs_pages import Reference


def gaps(missing: set[str]) -> list[str]:
    """Public names that nobody explains."""
    return [f"write a docstring for {name}" for name in sorted(missing)]


def unlisted(pages: Mapping[str, str]) -> list[str]:
    """Public names that are on no page."""
    from holdfast import __all__ as names
    from holdfast.memory import __all__ as more

    headings = {line[3:] for text in pages.values() for line in text.split("\n") if line.startswith("## ")}
    return [f"put {name} on a page of the reference" for name in sorted({*names, *more}) if name not in headings]


def stale(pages: Mapping[str, str], directory: Path) -> list[str]:
    """Pages that differ from the code, are not there, or are there and should not be."""
    there = {path.name: path.read_text("utf-8") for path in directory.glob("*.md")}
    return sorted(name for name in {*pages, *there} if pages.get(name) != there.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on what is stale or broken")
    check = parser.parse_args().check
    reference = Reference()
    pages = reference.pages()
    if problems := gaps(reference.missing) + unlisted(pages):
        sys.exit("\n".join(problems))
    old = stale(pages, REFERENCE)
    if not check:
        REFERENCE.mkdir(parents=True, exist_ok=True)
        for name in old:
            if name in pages:
                (REFERENCE / name).write_text(pages[name], "utf-8")
            else:
                (REFERENCE / name).unlink()
    problems = problems_of(pages_to_check(ROOT), ROOT)
    if check and old:
        problems.insert(0, f"stale: {', '.join(f'docs/reference/{name}' for name in old)}. Run `make docs`.")
    if problems:
        sys.exit("\n".join(problems))
    print("the reference is fresh and every link leads somewhere" if not old else f"written: {', '.join(old)}")


if __name__ == "__main__":
    main()
