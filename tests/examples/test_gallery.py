"""docs/examples.md shows every example, with a test that exists and names it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    line for line in (ROOT / "docs/examples.md").read_text().splitlines() if line.startswith("| [`")
]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").iterdir() if not path.name.startswith(("_", "."))
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_in_the_gallery_and_in_a_test(example: Path) -> None:
    (row,) = [row for row in ROWS if f"](../examples/{example.name})" in row]
    tests = [ROOT / "docs" / path for path in re.findall(r"\]\((\.\./tests/[^)]+)\)", row)]
    assert tests
    assert any(example.stem in test.read_text() for test in tests)
