"""docs/python.md: no argument and no name is left out. tests/test_documents.py runs its blocks."""

import inspect
import re
from pathlib import Path

import fedhql

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()


def named(text: str) -> set[str]:
    return set(re.findall(r"`([A-Za-z_]+)`", text))


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
