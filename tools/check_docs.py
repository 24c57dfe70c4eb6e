"""Are the pages sound? Links and headings exist, code blocks say what they are. Used by make_docs.py and the tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """A fenced code block."""

    line: int
    kind: str
    text: str

    @property
    def runs(self) -> bool:
        return self.kind == "python"


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    start, kind, inside = 0, "", [""]
    for at, line in enumerate(text.split("\n"), 1):
        if not line.startswith("```"):
            inside.append(line)
        elif start:
            found.append(Block(start, kind, "\n".join(inside) + "\n"))
            start = 0
        else:
            start, kind, inside = at, line[3:].strip(), []
    if start:
        found.append(Block(start, "not closed", ""))
    return found


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def links(text: str) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [link for link in found if not re.match(r"[a-z+]+:", link)]


def open_rows(text: str) -> list[str]:
    """Rows that go on in the next line, which ends the table."""
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [line for line in plain.split("\n") if line.startswith("|") and not line.rstrip().endswith("|")]


def pages_to_check(root: Path) -> list[Path]:
    top = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path for path in top if path.exists()] + sorted((root / "docs").rglob("*.md"))


def problems_of(paths: Sequence[Path], root: Path) -> list[str]:
    """Links that lead nowhere, pages that nobody links to, blocks that are not marked or do not compile."""
    problems = []
    linked: set[Path] = set()
    for path in paths:
        text, name = path.read_text("utf-8"), path.relative_to(root)
        for link in links(text):
            target, _, anchor = link.partition("#")
            at = (path.parent / target).resolve() if target else path
            if path == root / "docs" / "index.md":
                linked.add(at)
            if not at.exists():
                problems.append(f"{name}: the link {link} leads nowhere")
            elif anchor and at.suffix == ".md" and anchor not in anchors(at.read_text("utf-8")):
                problems.append(f"{name}: {link} names a heading that is not there")
        problems += [f"{name}: the table row {row[:60]!r} is not closed" for row in open_rows(text)]
        problems += [f"{name}:{block.line}: {problem}" for block in blocks(text) if (problem := problem_of(block))]
    index = root / "docs" / "index.md"
    lost = [path for path in paths if (root / "docs") in path.parents and path not in linked and path != index]
    return problems + [f"docs/index.md does not link to {path.relative_to(root)}" for path in lost]


def problem_of(block: Block) -> str:
    if block.kind == "not closed":
        return "this code block is not closed"
    if not block.kind:
        return "say what this code block is, ```text if nothing else"
    if block.kind.startswith("python") and block.kind not in ("python", "python no-run"):
        return f"mark it ```python or ```python no-run, not {block.kind!r}"
    if block.runs:
        try:
            compile(block.text, "block", "exec")
        except SyntaxError as error:
            return f"this block is not Python: {error}"
    return ""
