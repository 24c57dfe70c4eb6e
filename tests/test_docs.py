"""What the documentation shows runs as it stands, and what it says of the code is made from the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from holdfast.keys import shard_of
from support.nursery import Fresh

ROOT = Path(__file__).parent.parent
NOTHING: Any = ()
LONGEST = 60.0
"""Seconds that one example may take. It takes one; a machine that is busy with other tests may need more."""

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "no:schemathesis")
"""Without what a project need not have, and what takes longer than the example."""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


check_docs = load(ROOT / "tools" / "check_docs.py")
docs_code = load(ROOT / "tools" / "docs_code.py")
docs_pages = load(ROOT / "tools" / "docs_pages.py")
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
    command = [*PYTEST, str(file)] if tested else ["-W", "error", str(file)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    # when it is run, expect it to end well
    with (subprocess.Popen if tested else Fresh)(
        [sys.executable, *command], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, out + err
    assert "never retrieved" not in err, err


def test_the_readme_begins_with_lines_that_run() -> None:
    first = next(b for b in check_docs.blocks((ROOT / "README.md").read_text("utf-8")) if b.runs)
    assert len(first.text.splitlines()) <= 30
    assert 'Holdfast("embedded:")' in first.text


def test_the_keys_in_the_architecture_page_are_where_it_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    shown = re.findall(r"^hf:\{[a-z.]+\.(\d+)\}:(?:u|c|a|g|r|s|user|lock|q\.lock|guard):(\S+) ", text, re.M)
    assert {"report:42", "user-7", "talk-1", "ann"} == {name for _, name in shown}
    assert [(name, int(shard)) for shard, name in shown] == [(name, shard_of(name.encode())) for _, name in shown]


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
        ("| a | b |\n| --- | --- |\n| x | this goes\non |", "is not closed"),
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


class Row(NamedTuple):
    """A row."""

    one: int
    """Said in
    two lines."""
    two: Any = NOTHING


class Shape(Protocol):
    """What a thing must have."""

    @property
    def name(self) -> str: ...
    def act(self) -> None: ...


def test_fields_of_named_tuples_are_a_table_with_one_line_each() -> None:
    reference = make_docs.Reference()
    text = reference.cls(Row)
    assert "| `one` | `int` | Said in two lines. |" in text
    assert "NOTHING" not in text
    assert "A kind of" not in text
    assert reference.missing == set()


def test_a_shape_may_have_bare_properties_but_no_bare_methods() -> None:
    reference = make_docs.Reference()
    assert "| `name` | `str` |" in reference.cls(Shape)
    assert reference.missing == {"Shape.act"}


def test_a_public_name_on_no_page_is_found() -> None:
    pages = make_docs.Reference().pages()
    assert make_docs.unlisted(pages) == []
    del pages["sessions.md"]
    assert "put Saved on a page of the reference" in make_docs.unlisted(pages)


def test_hidden_options_are_left_out() -> None:
    class Option:
        param_type_name, opts, required, default, envvar, help = "option", ["--inner"], False, False, None, None

        def __init__(self, hidden: bool) -> None:
            self.name, self.hidden = "inner", hidden

    class Command:
        params: ClassVar[list[Option]] = [Option(hidden=True)]

    reference = make_docs.Reference()
    assert reference._options("holdfast x", Command) == ""
    assert reference.missing == set()
    Command.params = [Option(hidden=False)]
    reference._options("holdfast x", Command)
    assert reference.missing == {"holdfast x --inner"}


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
