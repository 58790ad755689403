"""The README is short, and its two commands are those of the Makefile and of CI."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(import fedhql\n.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block.replace("budget=50_000, seeds=3", "budget=300, seeds=1"), names)
    assert (tmp_path / "report.html").exists()
    assert names["policy"].act(np.zeros((3, 4), dtype=np.float32)).shape == (3,)


def test_make_run_runs_the_command_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(r"^\.venv/bin/(fedhql run .*?)$(?=\n```)", README, re.M)
    assert f"$(BIN)/{command}" in makefile


def test_ci_runs_make_check_and_make_test() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make check" in ci
    assert "make test" in ci


def test_the_readme_shows_a_picture() -> None:
    assert re.search(r"!\[.+\]\(docs/.+\.png\)", README)
