"""A cohort of remote members: turns plain method calls into messages."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from fedhql.acting import GreedyAnswer, greedy_in
from fedhql.contract import Actions, States, Values
from fedhql.errors import NoUsableAnswers
from fedhql.federation import Answers, PooledAnswers
from fedhql.remote.server.deadlines import Work
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.secure_query import ask_for_sum
from fedhql.remote.wire import pack_improvement
from fedhql.remote.wire_pb2 import Improvement

Result = TypeVar("Result")


class RemoteCohort:
    """The members enlisted for a round. Use it from any thread except the roster's event loop."""

    def __init__(self, roster: Roster, loop: asyncio.AbstractEventLoop, action_count: int) -> None:
        self._roster, self._loop, self._action_count = roster, loop, action_count
        self.names: tuple[str, ...] = ()
        self.silent: set[str] = set()  # members that missed an `act_each` since `enlist`
        self._improvement: Improvement | None = None

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine in the roster's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def in_loop(self, do: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Call a function in the roster's loop, the only thread that may use roster and journal."""

        async def call() -> Result:
            return do(*arguments, **named)

        return self.call(call())

    def enlist(self, names: Sequence[str]) -> None:
        self.names, self.silent = tuple(names), set()

    def self_learn(self, env_steps: int, facts: dict[str, Any] | None = None) -> None:
        """Let each member learn for `env_steps` or until its budget ends.

        The journal gets `facts` in the same transaction as the start of the phase.
        """
        self.in_loop(self._roster.learn, self.names, env_steps, facts)
        self.finish_learning()

    def finish_learning(self) -> None:
        """Wait until the members that are not late have learned, at most until their deadline."""
        self.call(self._finish_learning())

    def query(self, states: States) -> Answers | PooledAnswers:
        roster = self._roster
        if roster.secure_value_bound is not None:
            query = ask_for_sum(roster, self.names, states)
            pooled, answered = self.call(query)
            return PooledAnswers(pooled, *self._split_by_answer(answered))
        answers = self.call(ask(roster, dict.fromkeys(self.names, states))).answers
        members, refused = self._split_by_answer(answers)
        # float64, as in `usable_answers` of an in-process cohort.
        q_NBA = np.array([answers[self.names[n]] for n in members], dtype=np.float64)
        return Answers(q_NBA, members, refused)

    def _split_by_answer(self, answered: Collection[str]) -> tuple[tuple[int, ...], dict[int, str]]:
        """Return the indices of members that answered, and a reason for each other that is here.

        Nobody need be warned of a member that has left.
        """
        members = tuple(n for n, name in enumerate(self.names) if name in answered)
        here = (n for n, name in enumerate(self.names) if name in self._roster.sessions)
        return members, {n: "no usable answer in time" for n in here if n not in members}

    def act_each(self, states: Sequence[States]) -> Sequence[GreedyAnswer]:
        """Ask each member about its own states; values are NaN for members that do not answer.

        Those members join `silent` and are not asked again until the next `enlist`. A member that
        sends no actions acts greedily in its values.
        """
        asked = {
            name: of_member
            for name, of_member in zip(self.names, states, strict=True)
            if len(of_member) and name not in self.silent
        }
        answers: dict[str, GreedyAnswer] = {}
        if asked:
            exchange = self.call(ask(self._roster, asked, 0, act=True))
            for name, values in exchange.answers.items():
                actions = exchange.actions.get(name)
                greedy = greedy_in(values)
                answers[name] = greedy if actions is None else GreedyAnswer(values, actions)
        self.silent |= asked.keys() - answers.keys()
        return [
            answers.get(name) or self._no_answer(len(of_member))
            for name, of_member in zip(self.names, states, strict=True)
        ]

    def _no_answer(self, B: int) -> GreedyAnswer:
        return greedy_in(np.full((B, self._action_count), np.nan, dtype=np.float32))

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        """Prepare an improvement. `finish_step` writes it; the next orders broadcast it.

        Raise NoUsableAnswers if a target is not finite.
        """
        if not np.isfinite(targets).all():  # every member would reject it and leave
            raise NoUsableAnswers(
                "a FedTD target is not a finite number; either a reward is not finite, or "
                "service.value_bound is too large"
            )
        number = self._roster.improvements + 1
        self._improvement = pack_improvement(number, states, actions, targets)

    def finish_step(self, server_env_steps: int, facts: Callable[[], dict[str, Any]]) -> None:
        """Commit the step: write its improvement, cost and position in one transaction."""
        self.call(self._finish_step(server_env_steps, facts()))

    def reserve(self, wanted: int, least: int) -> int:
        """Reserve env steps of the enlisted members for the round; return how many, up to `wanted`.

        Members cannot spend reserved env steps on self-learning. A member that cannot pay its share
        of `least`, the first step, leaves the round. Call this in the roster's loop.
        """
        roster = self._roster
        left = {name: roster.members[name].left(roster.env_steps_per_member) for name in self.names}
        payers: tuple[str, ...] = ()
        while payers != self.names:  # each member that leaves raises the share of the others
            payers = self.names
            self.names = tuple(name for name in payers if left[name] * len(payers) >= least)
        N = len(self.names)
        granted = min(int(min((left[name] for name in self.names), default=0) * N), wanted)
        roster.reserved = {name: Fraction(granted, N) for name in self.names}
        return granted

    def close(self) -> None:
        """Do nothing: the listener owns the connections."""

    async def _finish_learning(self) -> None:
        roster, members = self._roster, self._roster.members

        def awaited() -> list[str]:
            here = [name for name in roster.present() if name in self.names]
            return [n for n in here if members[n].learning and roster.is_ready(n)]

        def learned() -> bool:
            done = [name for name in self.names if not members[name].learning]
            return not awaited() and len(done) >= min(roster.settings.quorum, len(self.names))

        def unfinished() -> list[str]:  # and absent, if the quorum needs them
            return [name for name in self.names if members[name].learning]

        with roster.waits.waiting("self-learning", lambda: awaited() or unfinished()):
            await roster.wait_until(learned, roster.settings.learning_deadline_seconds)
        for name in awaited():
            roster.miss(roster.sessions[name], Work.LEARNING)

    async def _finish_step(self, server_env_steps: int, facts: dict[str, Any]) -> None:
        roster, improvement = self._roster, self._improvement
        assert improvement is not None
        charged = [roster.members[name] for name in self.names]
        each = Fraction(server_env_steps, len(charged))
        for member in charged:
            member.charge(server_env_steps, len(charged))
            roster.reserved[member.name] -= each
        roster.server_env_steps += server_env_steps
        # No order goes out before the write below: this coroutine does not await.
        kept_from = roster.catch_up_window.add(improvement)
        roster.write(
            facts={
                **facts,
                "improvements": improvement.number,
                "server_env_steps": roster.server_env_steps,
            },
            members=charged,
            improvement=improvement,
            kept_from=kept_from,
        )
        if roster.failure is not None:
            raise roster.failure
