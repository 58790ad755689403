"""fedhql doctor: what is installed here, and what is not."""

import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from fedhql.cli import doctor
from fedhql.cli.main import app
from fedhql.environments import compiled


def lines() -> dict[str, str]:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    rows = (line.split(maxsplit=1) for line in done.output.splitlines())
    return {name: found for name, found in rows if name != "compile"}


def test_everything_is_here() -> None:
    found = lines()
    assert found["cartpole-n5"] == "--engine compiled"
    assert found["lunarlander-n10"] == "--engine compiled"
    assert found["[sb3]"] == found["[remote]"] == "installed"
    assert "[test]" not in found


def test_what_is_missing_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    here = doctor._is_installed
    gone = ("torch", "box2d-py", "box2d")
    monkeypatch.setattr(doctor, "_is_installed", lambda each: each.name not in gone and here(each))
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    found = lines()
    assert found["[sb3]"] == "missing: torch; pip install 'fedhql[sb3]'"
    assert found["[remote]"] == "installed"
    for extra in ("[box2d]", "[envpool]"):  # through gymnasium[box2d], or box2d-py on ARM
        missing, _, command = found[extra].partition("; ")
        assert missing.startswith("missing: ")
        assert "box2d" in missing
        assert command == f"pip install 'fedhql{extra}'"
    slower = found["lunarlander-n5"]
    assert slower.startswith("--engine messages; the compiled engine with LunarLander-v3 needs")
    assert slower.endswith("pip install 'fedhql[envpool]'")


@pytest.mark.parametrize(
    ("text", "expected"), [("numpy>=2", True), ("numpy<1", False), ("no-such-package", False)]
)
def test_another_version_is_not_installed(text: str, expected: bool) -> None:
    assert doctor._is_installed(Requirement(text)) == expected
