"""The agent that `fedhql join` builds loads only what its kind needs."""

import subprocess
import sys

BUILD = """
import sys
from fedhql.remote.wire_pb2 import Task
from fedhql.service.member_agent import agent_builder

task = Task(environment="FrozenLake-v1", discount=0.9, env_steps_per_member=10, actions=4)
task.state_dtype = "int64"
agent_builder("{kind}", [], 0, None)(task)
print("jax" in sys.modules)
"""


def loads_jax(kind: str) -> bool:
    code = BUILD.format(kind=kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


def test_only_a_member_whose_agent_needs_jax_loads_it() -> None:
    assert not loads_jax("tabular")
    assert loads_jax("dqn")
