"""docs/reproduction.md says what the committed curves say."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.compare import compare_tables
from fedhql.results.load import load_runs
from fedhql.results.report import write_report
from fedhql.results.statistics import LEVEL

DOCS = Path(__file__).parents[2] / "docs"
HOME = DOCS / "reproduction"


@pytest.mark.parametrize("hardware", ["h200", "cpu"])
def test_reports_are_rebuilt_from_the_curves(hardware: str, tmp_path: Path) -> None:
    """As `fedhql report docs/reproduction/HARDWARE` writes them."""
    runs = load_runs(HOME / hardware)
    _, page = write_report(runs, tmp_path / hardware, np.random.default_rng(0), level=LEVEL)
    assert page.read_text() == (HOME / f"{hardware}.md").read_text()


def test_ablations_are_rebuilt_from_the_curves() -> None:
    """As `fedhql compare docs/reproduction/ablations/as-chosen docs/reproduction/ablations`."""
    runs = load_runs(HOME / "ablations" / "as-chosen", HOME / "ablations")
    tables = compare_tables(runs, LEVEL)
    rebuilt = "\n".join(table.markdown() for table in tables)
    assert rebuilt == (HOME / "ablations.md").read_text()


def test_every_table_of_the_page_is_a_rebuilt_one() -> None:
    rebuilt = "".join(path.read_text() for path in HOME.glob("*.md"))
    page = (DOCS / "reproduction.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| .*\d", line) and "`" not in line]
    assert len(rows) > 20
    assert [row for row in rows if row not in rebuilt] == []
