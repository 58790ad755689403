"""Evaluate the members of a round, and the consensus of their answers, at fixed consumption."""

import numpy as np

from fedhql.engines.build import build_batch
from fedhql.engines.evaluation import (
    Evaluation,
    consensus,
    evaluate,
    moments_of,
    points_passed,
)
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.federation import rule_named
from fedhql.remote.server.journal import MemberRecord
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.service.service_records import Played, ServiceRecords
from fedhql.settings.served import ServedSettings


class MemberEvaluations:
    """Plays greedy episodes with the members' answers. To them these are ordinary queries."""

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

        A member that has passed two points since its last evaluation is evaluated twice. In
        continuous mode it may have passed many; there it is evaluated once.
        """
        if not self.has(moment) or not self._cohort.names:
            return
        members = [self._roster.members[name] for name in self._cohort.names]
        left = {member.name: self._due(member, moment) for member in members}
        played: list[Played] = []
        while due := [member for member in members if left[member.name] > 0]:
            number = len(played)
            result = self._play(members, moment, number)
            heard = [member for member in due if member.name not in self._cohort.silent]
            played.append(Played(members, heard, result))
            left = {name: count - 1 for name, count in left.items()}
            if self._roster.settings.mode == "continuous":
                break
        if played:
            self._records.evaluated(round_, moment, played)

    def _due(self, member: MemberRecord, moment: str) -> int:
        settings = self._settings
        budget, interval = settings.budget.env_steps_per_agent, settings.evaluation_interval
        passed = points_passed(member.account.consumed, interval, budget)
        return passed - member.evaluations.get(moment, 0)

    def _play(self, members: list[MemberRecord], moment: str, number: int) -> Evaluation:
        """Play with every member; `number` counts the evaluations of this round."""
        evaluation, seed = self._settings.evaluation, self._settings.seed
        streams = [
            (Stream.EVALUATION, m.number, m.evaluations.get(moment, 0) + number) for m in members
        ]
        shared = self._records.consensus_evaluations(moment) + number
        seeds_PE = np.stack(
            [
                *(seeds_for(seed, *of, count=evaluation.episodes) for of in streams),
                seeds_for(seed, Stream.CONSENSUS, shared, count=evaluation.episodes),
            ]
        )
        batch = build_batch(self._settings, seeds_PE.size)
        try:
            return evaluate(
                self._cohort.query_each,
                batch,
                seeds_PE,
                discount=self._settings.environment.discount,
                episode_step_limit=evaluation.episode_step_limit,
                centre=self._centre,
            )
        finally:
            batch.close()
