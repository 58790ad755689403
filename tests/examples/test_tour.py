"""The notebook runs in a real kernel, with smaller budgets and fewer seeds."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_notebook_runs_from_agents_to_a_report(tmp_path: Path) -> None:
    outputs = [output for cell in run_small(tmp_path) for output in cell["outputs"]]
    assert (tmp_path / "tour-report.html").exists()
    shown = [output["data"] for output in outputs if "data" in output]
    assert any("image/png" in data for data in shown)
    assert any("bold-sarsa" in data["text/plain"] for data in shown)
    # Of the line that changes, the notebook keeps the last, once for each of the two runs.
    lines = [data["text/plain"] for data in shown if data["text/plain"].startswith("fedhql: ")]
    assert [line.partition(",")[0] for line in lines] == [
        "fedhql: 100% of 1 cell",
        "fedhql: 100% of 4 cells",
    ]


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads(TOUR.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


def run_small(home: Path) -> list[dict[str, Any]]:
    """Return the code cells after they have run."""
    small = re.sub(r"budget=[\d_]+", "budget=1_500", TOUR.read_text())
    notebook = nbformat.reads(small.replace("seeds=5", "seeds=2"), as_version=4)  # type: ignore[no-untyped-call]  # untyped there
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(home)}}).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
