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


@pytest.mark.parametrize("name", ["every", "nearest", "lander"])
def test_readings_are_rebuilt_from_their_answers(name: str, tmp_path: Path) -> None:
    """As `fedhql report docs/reproduction/NAME-readings.csv` writes them."""
    file = HOME / f"{name}-readings.csv"
    rng, kept = np.random.default_rng(0), read_readings(file)
    _, page, again = write_report([], tmp_path / name, rng, level=LEVEL, kept=kept)
    assert page.read_text() == (HOME / f"{name}.md").read_text()
    assert again.read_text() == file.read_text()


def test_what_is_told_of_readings_is_in_their_tables() -> None:
    told = (DOCS / "reproduction.md").read_text().partition("## Which reading")[2]
    told = told.partition("\n## ")[0]
    tables = "".join((HOME / f"{name}.md").read_text() for name in ("every", "nearest", "lander"))
    numbers = re.findall(r"-?\d+ \[-?\d+, -?\d+\]|0\.\d{3}", told)
    assert len(numbers) > 10
    assert [each for each in numbers if each not in tables] == []


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
