"""A cohort whose agents are Ray actors, with the interface of a cohort in this process."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.cluster.agent_host import AgentHost, pack, read_files, write_files
from fedhql.cluster.placement import bundles_for
from fedhql.cluster.resources import Resources, in_words
from fedhql.cluster.session import nodes_alive
from fedhql.contract import Actions, BlackBoxAgent, States, Values
from fedhql.errors import AgentsLost, FedHQLError
from fedhql.federation import Answers
from fedhql.federation.cohort import usable_answers
from fedhql.threads import ONE_THREAD

log = logging.getLogger(__name__)

LOST = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError)
MOST_BYTES_IN_A_CALL = 100_000  # Ray sends up to 100 KiB along with a call
PARTING_SECONDS = 5.0  # for all agents to close
PATIENCE_SECONDS = 60.0  # before a warning says that agents have not started


class RayCohort:
    """N agents, each in its own actor. If one actor is lost, calls raise `AgentsLost`."""

    def __init__(
        self,
        builders: Sequence[Callable[[], BlackBoxAgent]],
        action_count: int,
        *,
        names: Sequence[str],
        resources: Sequence[Resources],
        versions: dict[str, str],
        on_self_learned: Callable[[int], None] = lambda env_steps: None,
    ) -> None:
        self.names = tuple(names)
        self._action_count = action_count
        self._on_self_learned = on_self_learned
        # Reserve all bundles or none: two cohorts that each hold half of theirs would deadlock.
        # A node has to grant its bundle, so a dead node that Ray still lists gets no actor.
        bundles, bundle_of = bundles_for(resources, nodes_alive())
        self._bundles: Any = placement_group(bundles, strategy="SPREAD")
        # Ray must not restart an actor: one new agent among trained ones would be another run.
        host = ray.remote(max_restarts=0, max_task_retries=0)(AgentHost)
        self._hosts: list[Any] = [
            host.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._bundles, bundle),
                runtime_env={"env_vars": ONE_THREAD},
                **wanted.options(),
            ).remote(name, action_count)
            for name, wanted, bundle in zip(names, resources, bundle_of, strict=True)
        ]
        try:
            built = self._placed(
                [
                    host.build.remote(build, versions)
                    for host, build in zip(self._hosts, builders, strict=True)
                ],
                resources,
            )
        except BaseException:
            self.close()
            raise
        self.can_be_saved = all(can_be_saved for can_be_saved, _, _ in built)
        self._can_be_kept: list[bool] = [can_be_kept for _, can_be_kept, _ in built]

    def self_learn(self, env_steps: int) -> None:
        learning = [host.self_learn.remote(env_steps) for host in self._hosts]
        while learning:
            with self._errors_as_ours():
                (done, *_), learning = ray.wait(learning)
                ray.get(done)
            self._on_self_learned(env_steps)

    def query(self, states: States) -> Answers:
        packed = _for_all(pack(states))
        answers = self._results([host.q_values.remote(packed) for host in self._hosts])
        return usable_answers([self._values(answer) for answer in answers])

    def act_each(self, states: Sequence[States]) -> Sequence[GreedyAnswer]:
        asked = [n for n, batch in enumerate(states) if len(batch)]
        sent = [self._hosts[n].act.remote(pack(states[n])) for n in asked]
        answers = [greedy_in(self._values(b""))] * len(states)
        for n, (values, actions) in zip(asked, self._results(sent), strict=True):
            answers[n] = GreedyAnswer(
                self._values(values), np.frombuffer(actions, dtype=np.int64).copy()
            )
        return answers

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        packed = _for_all(pack(states, actions, targets))
        self._results([host.improve.remote(packed) for host in self._hosts])

    def save(self, directory: Path) -> None:
        saving = [host.save.remote() for host in self._hosts]
        for name in self.names:  # one after the other: together they may not fit into memory
            (directory / name).mkdir()
            write_files(directory / name, self._result(saving.pop(0)))

    def restore(self, directory: Path) -> None:
        self._results(
            [
                host.restore.remote(read_files(directory / name))
                for host, name in zip(self._hosts, self.names, strict=True)
            ]
        )

    def can_be_kept(self, n: int) -> bool:
        return self._can_be_kept[n]

    def keep(self, n: int, directory: Path) -> None:
        write_files(directory, self._result(self._hosts[n].keep.remote()))

    def diagnostics(self) -> list[dict[str, float]]:
        return list(self._results([host.diagnostics.remote() for host in self._hosts]))

    def close(self) -> None:
        """Close the agents, then end all actors, even those that are lost or still starting."""
        closing = [host.close.remote() for host in self._hosts]
        try:
            ray.get(closing, timeout=PARTING_SECONDS)
        except RayTaskError as error:
            log.warning("an agent could not be closed: %s", error)
        except (*LOST, GetTimeoutError) as error:
            log.debug("not all agents could be closed: %s", error)
        for host in self._hosts:
            ray.kill(host)
        self._hosts = []
        remove_placement_group(self._bundles)

    def _placed(self, building: list[Any], resources: Sequence[Resources]) -> list[Any]:
        """Wait until every agent is built; log a warning if that takes long."""
        with self._errors_as_ours():
            _, waiting = ray.wait(building, num_returns=len(building), timeout=PATIENCE_SECONDS)
        if waiting:
            asks = sorted({in_words(each.reserved()) for each in resources})
            is_reserved = placement_group_table(self._bundles)["state"] == "CREATED"
            log.warning(
                "%d of %d agents have not started yet%s",
                len(waiting),
                len(building),
                ""
                if is_reserved
                else f": they wait for {' or '.join(asks)}; a node that joins will be used",
            )
        return self._results(building)

    def _result(self, reference: Any) -> Any:
        return self._results([reference])[0]

    def _results(self, references: Sequence[Any]) -> list[Any]:
        with self._errors_as_ours():
            return list(ray.get(references))

    def _values(self, answer: bytes) -> Values:
        return np.frombuffer(answer, dtype=np.float32).reshape(-1, self._action_count).copy()

    @contextmanager
    def _errors_as_ours(self) -> Iterator[None]:
        """Raise a FedHQLError of an actor as it is, and AgentsLost if an actor is lost."""
        try:
            yield
        except RayTaskError as error:
            if isinstance(error.cause, FedHQLError):
                raise error.cause from None
            raise
        except LOST as error:
            raise AgentsLost(f"agents were lost ({_first_line(error)})") from error


def _for_all(packed: bytes) -> Any:
    """Return an argument for calls to all actors; a large one is stored once, for all calls."""
    return packed if len(packed) <= MOST_BYTES_IN_A_CALL else ray.put(packed)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
