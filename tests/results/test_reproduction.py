"""docs/reproduction.md says what the committed curves say."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedhql.results.compare import compare_tables
from fedhql.results.load import load_runs
from fedhql.results.reading_answers import read_readings
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


def test_readings_are_rebuilt_from_their_answers(tmp_path: Path) -> None:
    """As `fedhql report docs/reproduction/choice-readings.csv` writes them."""
    file = HOME / "choice-readings.csv"
    rng, kept = np.random.default_rng(0), read_readings(file)
    _, page, again = write_report([], tmp_path / "choice", rng, level=LEVEL, kept=kept)
    assert page.read_text() == (HOME / "choice.md").read_text()
    assert again.read_text() == file.read_text()
    told = (DOCS / "reproduction.md").read_text().partition("## Other readings")[2]
    numbers = re.findall(r"-?\d+ \[-?\d+, \d+\]", told.partition("\n## ")[0])
    assert len(numbers) == 4
    assert [each for each in numbers if each not in page.read_text()] == []


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
