"""What the README tells a user to type works, and is what CI runs."""

import re
from pathlib import Path

from fedhql.settings.experiment import read_settings
from fedhql.settings.served import read_served_settings
from tests.cli.running import TABULAR, succeed, write_file

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_users_own_agent_runs_as_it_stands(tmp_path: Path) -> None:
    agent = next(block for block in blocks("python") if "class LinearAgent" in block)
    assert len(agent.splitlines()) < 40
    (tmp_path / "linear.py").write_text(agent)
    text = TABULAR.format(budget=2_000).partition("[[agents]]")[0]
    text = text.replace("FrozenLake-v1", "CartPole-v1")
    file = write_file(tmp_path, text + '[[agents]]\nkind = "linear:LinearAgent"\n' * 2)
    output = succeed("run", file, "--out", "run", cwd=tmp_path)
    assert "agent2" in output


def test_the_experiment_file_and_the_federation_are_valid() -> None:
    example, served = blocks("toml")
    assert read_served_settings(served).service.members == ("north", "south", "west")
    settings = read_settings(example)
    assert [agent.kind for agent in settings.agents] == ["dqn", "my_agents:MyAgent"]


def test_make_run_is_the_command_it_says_it_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (told,) = re.findall(
        r"^\.venv/bin/(fedhql run .*?)$(?=\n```)", README.replace("\\\n    ", ""), re.M
    )
    assert f"$(BIN)/{told}" in makefile


def test_ci_calls_what_the_readme_tells() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make check" in ci
    assert "make test" in ci


def test_there_is_a_picture() -> None:
    assert re.search(r"!\[.+\]\(docs/.+\.png\)", README)


def test_every_linked_file_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
