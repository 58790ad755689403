"""Evaluate the members of a round, and the consensus of their answers, at fixed consumption."""

from collections.abc import Mapping

import numpy as np

from fedhql.engines.build import build_batch
from fedhql.engines.evaluation import Evaluation, evaluate, moments_of, points_passed
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.federation import rule_named
from fedhql.federation.consensus import consensus
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.service.service_records import Played, ServiceRecords
from fedhql.settings.served import ServedSettings
from fedhql.storage.records import CONSENSUS


class MemberEvaluations:
    """Plays greedy episodes with the members' answers: values, and how their agents act."""

    def __init__(
        self,
        settings: ServedSettings,
        cohort: RemoteCohort,
        roster: Roster,
        records: ServiceRecords,
    ) -> None:
        self._settings, self._cohort, self._roster = settings, cohort, roster
        self._records = records
        federation = settings.federation
        self._centre = consensus(rule_named(federation.rule, federation.model_dump()))

    def has(self, moment: str) -> bool:
        """Return whether the settings have members evaluated at this moment."""
        chosen = moments_of(self._settings.evaluation.moments)
        return self._roster.settings.evaluate_members and moment in chosen

    def take(self, moment: str, round_: int) -> None:
        """Take the evaluations that are due for the members of the round, and record them.

        A member that has passed two points since its last evaluation is evaluated twice. One that
        missed evaluations is not evaluated more often than a round can make it due; in continuous
        mode, where it may have passed many points, it is evaluated once.
        """
        if not self.has(moment) or not self._cohort.names:
            return
        members = [self._roster.members[name] for name in self._cohort.names]
        passed = {member.name: self._passed(member) for member in members}
        passed[CONSENSUS] = max(passed.values())
        done = {member.name: member.evaluations.get(moment, 0) for member in members}
        done[CONSENSUS] = self._records.consensus_evaluations(moment)
        left = {name: min(passed[name] - done[name], self._most_at_once()) for name in passed}
        played: list[Played] = []
        while due := {name for name, count in left.items() if count > 0}:
            numbers = {name: passed[name] - left[name] for name in passed}
            result = self._play(members, numbers)
            played.append(Played(members, due - self._cohort.silent, result))
            left = {name: count - 1 for name, count in left.items()}
        if played:
            self._records.evaluated(round_, moment, played, passed)

    def _passed(self, member: MemberRecord) -> int:
        settings = self._settings
        budget, interval = settings.budget.env_steps_per_agent, settings.evaluation_interval
        return points_passed(member.account.consumed, interval, budget)

    def _most_at_once(self) -> int:
        if self._roster.settings.mode == "continuous":
            return 1
        federation = self._settings.federation
        server = federation.horizon_steps * federation.query_batch
        round_ = federation.self_learning_env_steps + server
        return 1 + round_ // self._settings.evaluation_interval

    def _play(self, members: list[MemberRecord], numbers: Mapping[str, int]) -> Evaluation:
        """Play with every member; `numbers` are those of the evaluations, by name."""
        evaluation, seed = self._settings.evaluation, self._settings.seed
        streams: list[tuple[Stream, *tuple[int, ...]]] = [
            (Stream.EVALUATION, member.number, numbers[member.name]) for member in members
        ]
        streams.append((Stream.CONSENSUS, numbers[CONSENSUS]))
        seeds_PE = np.stack([seeds_for(seed, *of, count=evaluation.episodes) for of in streams])
        batch = build_batch(self._settings, seeds_PE.size)
        try:
            return evaluate(
                self._cohort.act_each,
                batch,
                seeds_PE,
                discount=self._settings.environment.discount,
                episode_step_limit=evaluation.episode_step_limit,
                centre=self._centre,
            )
        finally:
            batch.close()
