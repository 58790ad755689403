"""A member's agent: it carries out orders and saves its progress.

The agent's state is saved together with the number of improvements it has applied. So each
improvement is applied once, even if the process is killed.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhql.contract import (
    Actions,
    BlackBoxAgent,
    Checkpointable,
    Closable,
    Diagnosable,
    States,
    Values,
    keeping,
)
from fedhql.errors import MemberStopped
from fedhql.federation.cohort import actions_of, greedy_answer_of, values_of
from fedhql.remote.wire import WireError, fingerprint, unpack
from fedhql.remote.wire_pb2 import Improvement, Learn, Order, Report, Task, Tensor, Welcome
from fedhql.storage.checkpoints import Checkpoints
from fedhql.storage.files import whole_directory, write_atomically
from fedhql.storage.run_directory import LAST, MEMBER_LEDGER
from fedhql.storage.tracking import Tracker

log = logging.getLogger(__name__)
IMPROVEMENTS = "place.json"
NOT_KEPT = "its agent has neither save(directory) and restore(directory) nor export(directory)"


@dataclass
class _Ledger:
    """Learning that was charged to the budget; kept even if the agent's state is lost."""

    federation: str = ""
    phase: int = 0
    phase_env_steps: int = 0
    env_steps: int = 0  # of all phases; older versions did not count them
    finished: bool = False


@dataclass
class AppliedImprovements:
    """The improvements that the agent has applied; saved with it."""

    applied: int = 0
    skipped: int = 0
    last: int = 0  # fingerprint of the last one; 0 if it was skipped or never received


@contextmanager
def saving_in(home: Path) -> Iterator[None]:
    """Raise MemberStopped if the disk refuses, for then nothing would be done exactly once."""
    try:
        yield
    except OSError as error:
        raise MemberStopped(
            f"{home} cannot be written ({error.strerror or error}); mend that, then run the same "
            "command"
        ) from error


class KeptAgent:
    """One member's agent in one federation, across all connections.

    It is built on the first Welcome, which brings the task.
    """

    def __init__(
        self,
        name: str,
        home: Path,
        build: Callable[[Task], BlackBoxAgent],
        clock: Callable[[], float],
        trackers: Sequence[Tracker] = (),
    ) -> None:
        """`trackers` get the agent's diagnostics after each phase. The server does not."""
        self._name, self._home, self._build, self._trackers = name, home, build, trackers
        self._agent: BlackBoxAgent | None = None
        self._can_be_saved = False
        self._welcome = Welcome()
        self._checkpoints = Checkpoints(home / "checkpoint", clock)
        self._ledger, self.improvements = _Ledger(), AppliedImprovements()
        if (path := home / MEMBER_LEDGER).exists():
            self._ledger = _Ledger(**json.loads(path.read_text()))
        latest = self._checkpoints.latest()
        self._begun = latest is not None  # otherwise it has no state of this federation
        if latest is not None:
            self.improvements = AppliedImprovements(
                **json.loads((latest / IMPROVEMENTS).read_text())
            )

    @property
    def federation(self) -> str:
        """The federation that the home belongs to; "" before the first Welcome."""
        return self._ledger.federation

    @property
    def has_finished(self) -> bool:
        """Whether the server has ended the federation for this member, whose agent is saved."""
        return self._ledger.finished

    @property
    def goes_on_in(self) -> str:
        """The federation to continue in; "" if the agent has to start anew."""
        return self._ledger.federation if self._begun else ""

    def begin(self, welcome: Welcome) -> None:
        """Build the agent, or restore it from a checkpoint. Later calls only update limits."""
        if self._agent is not None:
            self._welcome.most_states = welcome.most_states  # a server may change this setting
            return
        self._welcome = welcome
        if not self._begun:  # earlier improvements are not for this member
            self.improvements.applied = welcome.improvements
        task = welcome.task
        agent = self._build(task)
        latest = self._checkpoints.latest()
        if latest is not None and isinstance(agent, Checkpointable):
            agent.restore(latest)
        states = np.zeros((1, *task.state_shape), dtype=task.state_dtype)
        greedy_answer_of(self._name, agent, states, task.actions)
        if self._trackers and not isinstance(agent, Diagnosable):
            log.warning("%s: nothing to track: its agent has no diagnostics()", self._name)
        if keeping(agent) is None:
            log.warning("%s: the trained agent will be lost at the end: %s", self._name, NOT_KEPT)
        self._agent, self._can_be_saved = agent, isinstance(agent, Checkpointable)
        self._begun = True
        if latest is None:  # so that a restart continues from here
            self.checkpoint()
        self._ledger.federation = welcome.federation
        self._write_ledger()

    def apply(self, order: Order) -> None:
        """Apply each improvement once and in order; raise WireError if one is missing or invalid.

        Improvements that the server no longer keeps are skipped with a warning.
        """
        improvements = self.improvements
        if order.skip_through > improvements.applied:
            missed = order.skip_through - improvements.applied
            log.warning(
                "%s: skipped %d improvements that the server no longer keeps", self._name, missed
            )
            improvements.applied, improvements.skipped = (
                order.skip_through,
                improvements.skipped + missed,
            )
            improvements.last = 0
        for improvement in order.improvements:
            if improvement.number <= improvements.applied:
                continue  # a repeat: the server could not know that it had arrived
            if improvement.number != improvements.applied + 1:
                expected = improvements.applied + 1
                raise WireError(f"improvement {improvement.number}; expected: {expected}")
            self._improve(improvement)
            improvements.applied, improvements.last = improvement.number, fingerprint(improvement)

    def _improve(self, improvement: Improvement) -> None:
        assert self._agent is not None
        task = self._welcome.task
        states = self._states(improvement.states)
        B = len(states)
        actions = unpack(improvement.actions, dtype="int64", shape=(B,))
        targets = unpack(improvement.targets, dtype="float32", shape=(B,))
        if not np.isfinite(targets).all() or not ((actions >= 0) & (actions < task.actions)).all():
            raise WireError(
                f"improvement {improvement.number} has an action or target that is not allowed"
            )
        self._agent.improve(states, actions, targets)

    def q_values(self, packed_states: Tensor) -> Values:
        assert self._agent is not None
        states = self._states(packed_states)
        return values_of(self._name, self._agent, states, self._welcome.task.actions)

    def act(self, packed_states: Tensor) -> Actions | None:
        """Return how the agent acts, or None if it acts greedily in its values."""
        assert self._agent is not None
        states = self._states(packed_states)
        return actions_of(self._name, self._agent, states, self._welcome.task.actions)

    def _states(self, packed: Tensor) -> States:
        task, B = self._welcome.task, self._require_batch(packed.shape)
        return unpack(packed, dtype=task.state_dtype, shape=(B, *task.state_shape))

    def learn(self, learn: Learn) -> Report:
        """Learn one chunk of the phase, unless it is done. Return a report without its id."""
        assert self._agent is not None
        ledger = self._ledger
        if learn.phase != ledger.phase:
            ledger.phase, ledger.phase_env_steps = learn.phase, 0
        steps = min(max(1, learn.chunk_env_steps), learn.env_steps - ledger.phase_env_steps)
        if steps > 0:
            self._agent.self_learn(steps)
            ledger.phase_env_steps += steps
            ledger.env_steps += steps
            self._write_ledger()
            if ledger.phase_env_steps == learn.env_steps:
                self._track()
        return self.learned()

    def _track(self) -> None:
        if self._trackers and isinstance(self._agent, Diagnosable):
            figures = self._agent.diagnostics()
            for tracker in self._trackers:
                tracker.write(self._name, figures, self._ledger.env_steps)

    def learned(self) -> Report:
        """Return a report of what was learned in the last phase, without its id."""
        return Report(phase=self._ledger.phase, phase_env_steps=self._ledger.phase_env_steps)

    def _require_batch(self, shape: Any) -> int:
        if not shape or not 0 < shape[0] <= self._welcome.most_states:
            raise WireError(
                f"a batch of {list(shape)[:1]} states; allowed: 1 to {self._welcome.most_states}"
            )
        return int(shape[0])

    def _write_ledger(self) -> None:
        with saving_in(self._home):
            write_atomically(self._home / MEMBER_LEDGER, json.dumps(asdict(self._ledger)) + "\n")

    def checkpoint_if_due(self) -> None:
        if self._can_be_saved and self._checkpoints.due():
            self.checkpoint()

    def checkpoint(self) -> None:
        if isinstance(self._agent, Checkpointable):
            # A new number each time: a directory cannot be replaced atomically.
            latest = self._checkpoints.latest()
            number = 0 if latest is None else int(latest.name.removeprefix("round-")) + 1
            with saving_in(self._home), self._checkpoints.write(number) as directory:
                self._agent.save(directory)
                (directory / IMPROVEMENTS).write_text(json.dumps(asdict(self.improvements)))

    def save_last(self) -> str:
        """Save a checkpoint and what the owner keeps, and return what the server is told."""
        self.checkpoint()
        write, last = keeping(self._agent), self._home / LAST
        if write is not None:
            with saving_in(self._home), whole_directory(last) as directory:
                write(directory)
            log.info("%s: the trained agent is in %s", self._name, last)
        elif self._agent is not None:
            log.warning("%s: the trained agent is lost: %s", self._name, NOT_KEPT)
        return "all is saved" if self._can_be_saved else "its agent has no save and restore"

    def finish(self) -> None:
        """Remember that the server has ended the federation, and that the agent is saved."""
        self._ledger.finished = True
        self._write_ledger()

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()
        if isinstance(self._agent, Closable):
            self._agent.close()
