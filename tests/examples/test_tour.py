"""The notebook: its cells run in order. They are executed as plain code, without Jupyter."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_notebook_runs_from_agents_to_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell(source, names) for source in code_cells()]
    assert (tmp_path / "tour-report.html").exists()
    assert any(isinstance(value, Figure) for value in shown)
    assert "bold-sarsa" in capsys.readouterr().out
    assert names["policy"].act(names["np"].arange(16)).shape == (16,)


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads(TOUR.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


def code_cells() -> list[str]:
    """Return the code with smaller budgets and fewer seeds."""
    cells = json.loads(TOUR.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    small = re.sub(r"budget=[\d_]+", "budget=1_500", "\0".join(sources))
    return small.replace("seeds=5", "seeds=2").split("\0")


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell. Return the value of its last expression, which a notebook would show."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, type_ignores=[]), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
