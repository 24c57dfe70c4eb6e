"""Every example is explained, tested, and what its README says to type is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir() and not path.name.startswith("_"))


def test_there_are_examples_of_each_kind() -> None:
    assert {path.name for path in PROJECTS} == {"celery_project", "chat", "crawler_fleet", "memory_service"}


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_an_example_is_explained_and_run(project: Path) -> None:
    readme = (project / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 40, "a few lines"
    typed = re.findall(r"python (?:examples/\w+/)?(\w+\.py)", readme)
    assert typed
    assert [name for name in typed if not (project / name).is_file()] == []
    targets = re.findall(r"holdfast work (\w+):hf", readme) + re.findall(r"celery -A (\w+)", readme)
    assert [name for name in targets if not (project / f"{name}.py").is_file()] == []
    assert f"(../../examples/{project.name})" in (ROOT / "docs" / "how-to" / "examples.md").read_text("utf-8")
    started = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*_example.py")]
    assert any(f'"{project.name}"' in text for text in started), "no test starts it"
    assert all(len(path.read_text("utf-8").splitlines()) <= 150 for path in project.glob("*.py"))
