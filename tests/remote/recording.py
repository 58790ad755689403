"""An agent that records every call, so that tests can check that each came once."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Actions, States, Values
from fedhql.remote.wire import unpack
from fedhql.remote.wire_pb2 import Improvement

KIND = "tests.remote.recording:Recorder"
STATE = "told.json"


def fingerprint(states: NDArray[Any], actions: NDArray[Any], targets: NDArray[Any]) -> str:
    whole = hashlib.sha256()
    for array in (states, actions, targets):
        whole.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return whole.hexdigest()[:16]


def fingerprints(improvements: Iterable[Improvement]) -> list[str]:
    """Return the fingerprints of the improvements in a journal."""
    return [
        fingerprint(unpack(each.states), unpack(each.actions), unpack(each.targets))
        for each in improvements
    ]


class Recorder:
    """An agent whose whole state is the list of calls it got. Its answers depend on that list."""

    def __init__(
        self,
        seed: int,
        actions: int = 4,
        improve_seconds: float = 0.0,
        learn_seconds: float = 0.0,
        answer_seconds: float = 0.0,
        garbage: str = "",
        garbage_after: int = 1,
    ) -> None:
        self.seed, self.actions = seed, actions
        self.improve_seconds, self.learn_seconds = improve_seconds, learn_seconds
        self.answer_seconds, self.garbage, self.garbage_after = (
            answer_seconds,
            garbage,
            garbage_after,
        )
        self.told: list[str] = []  # fingerprints of improvements, "learn 50" for self-learning
        self.answered = 0
        self.at: Callable[[str], None] = lambda point: None  # a hook for tests that crash it

    def self_learn(self, env_steps: int) -> None:
        self.at("before learning")
        time.sleep(self.learn_seconds)
        self.told.append(f"learn {env_steps}")
        self.at("after learning")

    def q_values(self, states: States) -> Values:
        self.at("answering")
        time.sleep(self.answer_seconds)
        self.answered += 1
        rows = np.arange(len(states) * self.actions).reshape(len(states), self.actions)
        good = np.sin(rows + self.seed + len(self.told)).astype(np.float32)
        return self._spoiled(good) if self.answered > self.garbage_after else good

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        self.at("before improving")
        time.sleep(self.improve_seconds / 2)
        self.told.append(fingerprint(states, actions, targets))
        time.sleep(self.improve_seconds / 2)
        self.at("after improving")

    def save(self, directory: Path) -> None:
        self.at("before saving")
        (directory / STATE).write_text(json.dumps(self.told))
        self.at("after saving")

    def restore(self, directory: Path) -> None:
        self.told = json.loads((directory / STATE).read_text())

    def _spoiled(self, values: Values) -> Values:
        wrong = {"nan": np.nan, "inf": np.inf, "large": 1e30}
        if self.garbage in wrong:
            values[0, 0] = wrong[self.garbage]
        return values


def told(home: Path) -> list[str]:
    """Return the calls that the agent of an ended member has saved."""
    (checkpoint,) = (home / "checkpoint").glob("round-*")
    return json.loads((checkpoint / STATE).read_text())


def improvements_of(told: Iterable[str]) -> list[str]:
    return [each for each in told if not each.startswith("learn ")]


def learned_of(told: Iterable[str]) -> int:
    return sum(int(each.split()[1]) for each in told if each.startswith("learn "))
