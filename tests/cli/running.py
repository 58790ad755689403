"""The command line as a user runs it: a process of its own."""

import shlex
import subprocess
import sys
from pathlib import Path

FEDHQL = Path(sys.executable).with_name("fedhql")

TABULAR = """
[environment]
id = "FrozenLake-v1"
discount = 0.95
[federation]
query_batch = 8
self_learning_env_steps = 300
[budget]
env_steps_per_agent = {budget}
[evaluation]
episodes = 3
[[agents]]
kind = "tabular"
[[agents]]
kind = "tabular"
exploration = "boltzmann"
temperature = 0.1
[[agents]]
kind = "tabular"
exploration = "ucb"
"""

SB3 = """
[environment]
id = "{env_id}"
discount = 0.99
[federation]
query_batch = 16
horizon_steps = 4
self_learning_env_steps = 200
[budget]
env_steps_per_agent = {budget}
[evaluation]
episodes = 2
[[agents]]
kind = "sb3-dqn"
hidden = [16]
learning_starts = 100
target_update_interval = 100
learning_rate = 0.005
improvement_steps = 8
[[agents]]
kind = "sb3-dqn"
hidden = [8, 8]
activation = "tanh"
learning_starts = 100
target_update_interval = 100
learning_rate = 0.01
improvement_steps = 8
[[agents]]
kind = "sb3-dqn"
hidden = [4]
learning_starts = 100
target_update_interval = 100
improvement_steps = 8
"""


def command(*arguments: object) -> list[str]:
    """Return a command line; a run draws no figures, which take seconds, unless it is told to."""
    figures = "--figures" in arguments or arguments[:1] != ("run",)
    return [str(FEDHQL), *map(str, arguments), *([] if figures else ["--no-figures"])]


def fedhql(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=cwd, check=False)


def succeed(*arguments: object, cwd: Path | None = None) -> str:
    done = fedhql(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_command(output: str) -> list[str]:
    """Return the words of the command in the one line that an interrupt leaves."""
    (line,) = output.splitlines()
    said, _, told = line.partition("interrupted; go on: ")
    assert said == "fedhql: error: "
    return shlex.split(told)


def write_file(directory: Path, text: str) -> Path:
    path = directory / "experiment.toml"
    path.write_text(text)
    return path
