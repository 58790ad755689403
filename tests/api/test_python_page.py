"""docs/python.md: every block of Python runs, in order, and no argument or name is left out."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import fedhql

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


def named(text: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z_]+)`", text))


def test_every_block_runs_in_order(tmp_path: Path) -> None:
    """As one script without a guard, with smaller budgets and phases."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    script, lowered = re.subn(r"budget=[\d_]+", "budget=700", "\n".join(blocks))
    assert lowered == 6
    assert "1_000" in script
    (tmp_path / "page.py").write_text(script.replace("1_000", "300"))
    done = subprocess.run(
        [sys.executable, "page.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "curves.png").exists()
    assert "\nTrue\n" in done.stdout  # the resumed study has finished


def test_every_argument_is_explained() -> None:
    table = PAGE.partition("| argument | meaning | default |")[2].partition("\n\n")[0]
    explained = set().union(*(named(row.split("|")[1]) for row in table.splitlines()[2:]))
    arguments = set(inspect.signature(fedhql.study).parameters)
    assert explained - {"seed", "federate"} == arguments
    assert set(inspect.signature(fedhql.federate).parameters) - {"seed"} < arguments


def test_every_public_name_is_listed() -> None:
    listed = named(PAGE.partition("## Public names")[2].partition("They are")[0])
    assert listed == set(fedhql.__all__) - {"__version__"}


def test_every_method_of_a_result_is_explained() -> None:
    table = PAGE.partition("## What a result has")[2].partition("| | |")[2].partition("\n\n")[0]
    public = {name for name in vars(fedhql.Result) if not name.startswith("_")}
    assert public - set(re.findall(r"\w+", table)) == set()
