"""The examples and commands of the README work, and CI runs them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.settings.experiment import read_settings
from fedhql.settings.served import read_served_settings
from tests.cli.running import TABULAR, succeed, write_file

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_agent_of_the_readme_runs(tmp_path: Path) -> None:
    agent = next(block for block in blocks("python") if "class LinearAgent" in block)
    assert len(agent.splitlines()) < 40
    (tmp_path / "linear.py").write_text(agent)
    text = TABULAR.format(budget=2_000).partition("[[agents]]")[0]
    text = text.replace("FrozenLake-v1", "CartPole-v1")
    file = write_file(tmp_path, text + '[[agents]]\nkind = "linear:LinearAgent"\n' * 2)
    output = succeed("run", file, "--out", "run", cwd=tmp_path)
    assert "agent2" in output
    checked = succeed("check", "linear:LinearAgent", "--env", "CartPole-v1", cwd=tmp_path)
    assert "FAILED" not in checked


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = next(block for block in blocks("python") if "class LinearAgent" in block)
    (tmp_path / "linear.py").write_text(agent)
    study = next(block for block in blocks("python") if "fedhql.study" in block)
    study = study.replace("budget=50_000, seeds=3", "budget=300, seeds=1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    exec(study, names)
    assert (tmp_path / "report.html").exists()
    assert names["policy"].act(np.zeros((3, 4), dtype=np.float32)).shape == (3,)


def test_the_settings_files_of_the_readme_are_valid() -> None:
    example, service = blocks("toml")
    assert read_served_settings(service).service.members == ("north", "south", "west")
    settings = read_settings(example)
    assert [agent.kind for agent in settings.agents] == ["dqn", "my_agents:MyAgent"]


def test_make_run_runs_the_command_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (command,) = re.findall(
        r"^\.venv/bin/(fedhql run .*?)$(?=\n```)", README.replace("\\\n    ", ""), re.M
    )
    assert f"$(BIN)/{command}" in makefile


def test_ci_runs_make_check_and_make_test() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make check" in ci
    assert "make test" in ci


def test_the_readme_shows_a_picture() -> None:
    assert re.search(r"!\[.+\]\(docs/.+\.png\)", README)


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
