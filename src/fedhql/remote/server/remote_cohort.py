"""Members far away, as the server's cohort: plain calls here, messages over there."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from fedhql.contract import Actions, States, Values
from fedhql.errors import NoUsableAnswers
from fedhql.federation import Answers, PooledAnswers
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.secure_query import ask_for_sum
from fedhql.remote.wire import pack_improvement
from fedhql.remote.wire_pb2 import Improvement

Result = TypeVar("Result")


class RemoteCohort:
    """Whoever was enlisted for the round. For any thread but the one the roster's loop runs in."""

    def __init__(self, roster: Roster, loop: asyncio.AbstractEventLoop, action_count: int) -> None:
        self._roster, self._loop, self._action_count = roster, loop, action_count
        self.names: tuple[str, ...] = ()
        self.silent: set[str] = set()  # who did not answer a `query_each` since they were enlisted
        self._late: set[str] = set()  # with secure aggregation, likewise
        self._improvement: Improvement | None = None

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """In the roster's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def in_loop(self, do: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """A plain call there: the roster, and its journal, know one thread only."""

        async def call() -> Result:
            return do(*arguments, **named)

        return self.call(call())

    def enlist(self, names: Sequence[str]) -> None:
        self.names, self.silent, self._late = tuple(names), set(), set()

    def self_learn(self, env_steps: int, facts: dict[str, Any] | None = None) -> None:
        """Each of them that long, or as long as its budget lasts; `facts` go with the beginning."""
        self.in_loop(self._roster.learn, self.names, env_steps, facts)
        self.finish_learning()

    def finish_learning(self) -> None:
        """Nobody is waited for for ever."""
        self.call(self._finish_learning())

    def query(self, states: States) -> Answers | PooledAnswers:
        roster, quorum = self._roster, self._roster.settings.quorum
        if roster.secure_value_bound is not None:
            asked = ask_for_sum(roster, self.names, states, quorum, self._late)
            pooled, theirs = self.call(asked)
            return PooledAnswers(pooled, *self._who(theirs))
        answers = self.call(ask(roster, dict.fromkeys(self.names, states), quorum))
        members, refused = self._who(answers)
        # In float64, as `usable_answers` of an in-process cohort does.
        q_NBA = np.array([answers[self.names[n]] for n in members], dtype=np.float64)
        return Answers(q_NBA, members, refused)

    def _who(self, answered: Collection[str]) -> tuple[tuple[int, ...], dict[int, str]]:
        """Places of those who did, and what is to be said of those who did not."""
        members = tuple(n for n, name in enumerate(self.names) if name in answered)
        refused = {n: "nothing usable in time" for n in range(len(self.names)) if n not in members}
        return members, refused

    def query_each(self, states: Sequence[States]) -> Sequence[Values]:
        """Whoever does not answer gets NaN here and a place among the silent."""
        asked = {
            name: of_member
            for name, of_member in zip(self.names, states, strict=True)
            if len(of_member) and name not in self.silent
        }
        answers = self.call(ask(self._roster, asked, 0)) if asked else {}
        self.silent |= asked.keys() - answers.keys()
        return [
            answers.get(name, np.full((len(s), self._action_count), np.nan, dtype=np.float32))
            for name, s in zip(self.names, states, strict=True)
        ]

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Written down with the step it belongs to, then broadcast with what comes next."""
        if not np.isfinite(targets).all():  # every member would leave
            raise NoUsableAnswers(
                "a FedTD target is not a finite number: a reward is not, or service.value_bound "
                "is too large"
            )
        number = self._roster.improvements + 1
        self._improvement = pack_improvement(number, states, actions, targets)

    def finish_step(self, server_env_steps: int, facts: Callable[[], dict[str, Any]]) -> None:
        """The step's improvement, cost and position in one piece; from now on it counts."""
        self.call(self._finish_step(server_env_steps, facts()))

    def reserve(self, wanted: int, least: int) -> int:
        """What those enlisted can pay for together, up to `wanted`; nobody learns it away.

        Whoever could not pay its share of `least`, the first step, is not enlisted any more: the
        others do not wait for it. For the roster's loop.
        """
        roster = self._roster
        left = {name: roster.members[name].left(roster.env_steps_per_member) for name in self.names}
        payers: tuple[str, ...] = ()
        while payers != self.names:  # the fewer they are, the more it is for each
            payers = self.names
            self.names = tuple(name for name in payers if left[name] * len(payers) >= least)
        N = len(self.names)
        granted = min(int(min((left[name] for name in self.names), default=0) * N), wanted)
        roster.reserved = {name: Fraction(granted, N) for name in self.names}
        return granted

    def close(self) -> None:
        """The members' connections are the listener's."""

    async def _finish_learning(self) -> None:
        roster, members = self._roster, self._roster.members

        def learned() -> bool:
            done = [name for name in self.names if not members[name].learning]
            here = [name for name in roster.present() if name in self.names]
            return all(name in done for name in here) and len(done) >= min(
                roster.settings.quorum, len(self.names)
            )

        if not await roster.wait_until(learned, roster.settings.learning_deadline_seconds):
            late = [name for name in self.names if members[name].learning]
            roster.tell(f"still learning, not waited for: {', '.join(late)}", level="warning")

    async def _finish_step(self, server_env_steps: int, facts: dict[str, Any]) -> None:
        roster, improvement = self._roster, self._improvement
        assert improvement is not None
        charged = [roster.members[name] for name in self.names]
        each = Fraction(server_env_steps, len(charged))
        for member in charged:
            member.share = str(Fraction(member.share) + each)
            roster.reserved[member.name] -= each
        roster.server_env_steps += server_env_steps
        kept_from = roster.window.add(improvement)  # nobody is told before it is written
        roster.journal.write(
            facts={
                **facts,
                "improvements": improvement.number,
                "server_env_steps": roster.server_env_steps,
            },
            members=charged,
            improvement=improvement,
            kept_from=kept_from,
        )
