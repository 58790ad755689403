"""What several commands share."""

import shutil
import sys

import pytest

from fedhql.cli.common import command_to_continue


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["/bin/fedhql", "run", "a b.toml"], "/bin/fedhql run 'a b.toml' --resume"),
        (["/bin/fedhql", "run", "a.toml", "--resume"], "/bin/fedhql run a.toml --resume"),
        (["/path/fedhql", "suite", "paper"], "fedhql suite paper"),
        (["/x/fedhql/__main__.py", "run", "a.toml"], "python -m fedhql run a.toml --resume"),
    ],
)
def test_the_command_that_continues_can_be_pasted(
    argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/path/{name}")
    monkeypatch.setattr(sys, "executable", "/path/python")
    assert command_to_continue(argv) == told


def test_a_python_that_is_not_on_the_path_is_named_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/path/{name}")
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    told = command_to_continue(["/x/fedhql/__main__.py", "run", "a.toml"])
    assert told == "/venv/bin/python -m fedhql run a.toml --resume"
