"""The Ray actor that hosts one agent."""

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.cluster.versions import require_versions
from fedhql.contract import BlackBoxAgent, Checkpointable, Closable, Diagnosable, keeping
from fedhql.federation.cohort import greedy_answer_of, require_contract, values_of


class AgentHost:
    """Host one agent in a Ray actor.

    Arrays travel as bytes that are packed once for all agents. Ray passes bytes on unchanged, but
    would serialise arrays again for every agent.
    """

    def __init__(self, name: str, action_count: int) -> None:
        """Do nothing that can fail: Ray does not pass on an exception from here in full."""
        self._name, self._action_count = name, action_count
        self._agent: Any = None

    def build(
        self, build: Callable[[], BlackBoxAgent], versions: dict[str, str]
    ) -> tuple[bool, bool, str]:
        """Build the agent and check it against the contract.

        Return whether it can be saved, whether it can be kept, and the name of its class.
        """
        require_versions(versions)
        self._agent = build()
        require_contract(self._name, self._agent)
        can_be_saved = isinstance(self._agent, Checkpointable)
        return can_be_saved, keeping(self._agent) is not None, type(self._agent).__qualname__

    def self_learn(self, env_steps: int) -> None:
        self._agent.self_learn(env_steps)

    def q_values(self, packed: bytes) -> bytes:
        states = pickle.loads(packed)
        return values_of(self._name, self._agent, states, self._action_count).tobytes()

    def act(self, packed: bytes) -> tuple[bytes, bytes]:
        """Return the agent's values and how it acts."""
        states = pickle.loads(packed)
        answer = greedy_answer_of(self._name, self._agent, states, self._action_count)
        return answer.values.tobytes(), answer.actions.tobytes()

    def improve(self, packed: bytes) -> None:
        self._agent.improve(*pickle.loads(packed))

    def save(self) -> dict[str, bytes]:
        return self._files_of(self._agent.save)

    def restore(self, files: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory(prefix="fedhql-") as home:
            write_files(Path(home), files)
            self._agent.restore(Path(home))

    def keep(self) -> dict[str, bytes]:
        write = keeping(self._agent)
        assert write is not None  # `build` said whether it can be kept
        return self._files_of(write)

    def diagnostics(self) -> dict[str, float]:
        return self._agent.diagnostics() if isinstance(self._agent, Diagnosable) else {}

    def close(self) -> None:
        if isinstance(self._agent, Closable):
            self._agent.close()

    def _files_of(self, write: Callable[[Path], None]) -> dict[str, bytes]:
        """Return the files that `write` creates: the caller has no access to this file system."""
        with tempfile.TemporaryDirectory(prefix="fedhql-") as home:
            write(Path(home))
            return read_files(Path(home))


def pack(*arrays: np.ndarray[Any, Any]) -> bytes:
    return pickle.dumps(arrays if len(arrays) > 1 else arrays[0], protocol=5)


def read_files(home: Path) -> dict[str, bytes]:
    """Return the content of every file below a directory, by relative path."""
    found = sorted(path for path in home.rglob("*") if path.is_file())
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in found}


def write_files(home: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
