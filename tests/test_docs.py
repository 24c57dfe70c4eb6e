"""What the documentation shows runs as it stands, and what it says of the code is made from the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.sync import Holdfast
from holdfast.testing import LocalServer

ROOT = Path(__file__).parent.parent
LONGEST = 60.0
"""Seconds that one example may take. It takes one; a machine that is busy with other tests may need more."""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


check_docs = load(ROOT / "tools" / "check_docs.py")
make_docs = load(ROOT / "tools" / "make_docs.py")

BLOCKS = [
    pytest.param(block.text, id=f"{path.relative_to(ROOT)}:{block.line}")
    for path in check_docs.pages_to_check(ROOT)
    for block in check_docs.blocks(path.read_text("utf-8"))
    if block.runs
]
EXAMPLES = [
    pytest.param(path.read_text("utf-8"), id=str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "examples").glob("*.py"))
]


# -- what is shown runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*BLOCKS, *EXAMPLES])
def test_it_runs_as_it_stands(text: str, tmp_path: Path) -> None:
    # Given a block as a file in an empty directory, without a server but the embedded one
    tested = re.search(r"^def test_", text, re.M) is not None
    file = tmp_path / ("test_example.py" if tested else "example.py")
    file.write_text(text, "utf-8")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if tested else ["-W", "error"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    # when it is run, expect it to end well
    done = subprocess.run(
        [sys.executable, *command, str(file)], cwd=tmp_path, env=environ, timeout=LONGEST, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never retrieved" not in done.stderr, done.stderr


def test_the_readme_begins_with_twelve_lines() -> None:
    first = next(b for b in check_docs.blocks((ROOT / "README.md").read_text("utf-8")) if b.runs)
    assert len(first.text.splitlines()) == 12
    assert 'Holdfast("embedded:")' in first.text


def test_the_rights_in_the_operators_page_are_enough() -> None:
    # Given a server with a user that has exactly what the page says
    text = (ROOT / "docs" / "how-to" / "operate.md").read_text("utf-8")
    (line,) = [b.text for b in check_docs.blocks(text) if b.text.startswith("ACL SETUSER")]
    with LocalServer() as server:
        server.call(*line.split())
        url = server.url.replace("redis://", "redis://app:password@")
        # when that user does what a user can do, on one connection and with a hand-over
        with Holdfast(url) as one, Holdfast(url) as two:
            lease = one.lock("a", ttl=0.6).acquire()
            waiting = two.lock("a")
            with pytest.raises(Exception, match="somebody else has it"):
                waiting.acquire(wait=0.1)
            assert not lease.wait_lost(0.5)  # renewed meanwhile
            lease.release()
            with waiting:
                assert two.list_locks()[0].held
                assert one.force_release("a", reason="test", fence=1) == 0
            gone = one.lock("b", ttl=0.6).acquire()
            assert two.force_release("b", reason="test") == 1
            assert [(entry.kind, entry.name) for entry in two.audit("b")] == [("lock", "b")]
            assert gone.wait_lost(10)
            key = one.guard_key("a", "hash")
            assert one.guarded("a", 1, ("HSET", key, "field", "value")) == [1]
            assert one.ping() >= 0


# -- the checker finds what is wrong --------------------------------------------------------------------------------


def write(root: Path, **pages: str) -> list[str]:
    """The problems of these pages; docs/index.md links to all of them unless it is given."""
    pages.setdefault("index", " ".join(f"[{name}]({name}.md)" for name in pages))
    for name, text in pages.items():
        path = root / "docs" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return check_docs.problems_of(check_docs.pages_to_check(root), root)


def test_good_pages_have_no_problems(tmp_path: Path) -> None:
    a = "# A page\n[there](b.md#two-words-and-code) [here](#a-page) [out](https://example.org/x)\n`[not](a link)`\n"
    assert write(tmp_path, a=a, b="## Two words, and `code`\n```python\nawait_ = 1\n```\n") == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[x](nowhere.md)", "leads nowhere"),
        ("[x](b.md#gone)", "names a heading that is not there"),
        ("# A\n[x](#b)", "names a heading that is not there"),
        ("```python\nx =\n```", "is not Python"),
        ("```python norun\nx = 1\n```", "mark it"),
        ("```\nx\n```", "say what this code block is"),
        ("```text\nx\n", "not closed"),
    ],
)
def test_a_bad_page_is_found(tmp_path: Path, text: str, complaint: str) -> None:
    (problem,) = write(tmp_path, a=text, b="# B\n")
    assert complaint in problem
    assert problem.startswith("docs/a.md")


def test_a_page_that_the_index_does_not_link_to_is_found(tmp_path: Path) -> None:
    assert write(tmp_path, index="# Index\n", a="# A\n") == ["docs/index.md does not link to docs/a.md"]


@dataclass
class Bare:
    number: int

    def act(self) -> None: ...


def test_a_public_name_without_a_docstring_is_refused() -> None:
    reference = make_docs.Reference()
    reference.cls(Bare)
    assert reference.missing == {"Bare", "Bare.act"}
    assert make_docs.gaps(reference.missing) == ["write a docstring for Bare", "write a docstring for Bare.act"]


def test_a_setting_without_doc_is_refused() -> None:
    @dataclass
    class Loose:
        good: int = field(default=1, metadata={"doc": "What it means."})
        bad: int = 1

    reference = make_docs.Reference()
    reference.settings_table(Loose, "X_")
    assert reference.missing == {"Settings.bad"}


def test_stale_missing_and_left_over_pages_are_listed(tmp_path: Path) -> None:
    for name, text in {"same.md": "a", "old.md": "a", "left.md": "a"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert make_docs.stale({"same.md": "a", "old.md": "b", "new.md": "c"}, tmp_path) == ["left.md", "new.md", "old.md"]


def test_pages_are_the_same_in_every_terminal() -> None:
    """And whatever order sets have: each process has its own."""
    code = "import make_docs; print(sorted(make_docs.Reference().pages().items()))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT / "tools", env={**os.environ, "COLUMNS": columns, "TERM": term},
            timeout=LONGEST, capture_output=True, text=True, check=True,
        ).stdout
        for columns, term in (("30", "dumb"), ("300", "xterm-256color"))
    }  # fmt: skip
    assert len(printed) == 1
    assert "0x" not in printed.pop()
