"""A cohort with attackers, which answer the server's queries with false values."""

from collections.abc import Sequence

import numpy as np

from fedhql.contract import Actions, States, Values
from fedhql.federation import Answers, PlainCohort
from fedhql.federation.attacks import attack_number, attacked
from fedhql.federation.cohort import usable_answers
from fedhql.settings.sections import AttackSettings


def under_attack(cohort: PlainCohort, attack: AttackSettings) -> PlainCohort:
    """Return the cohort as the server sees it: with attackers, if the attack has any."""
    return AttackedCohort(cohort, attack) if attack.attackers else cohort


class AttackedCohort:
    """A cohort whose last agents lie when the server queries them, but not in evaluations."""

    def __init__(self, cohort: PlainCohort, attack: AttackSettings) -> None:
        self._cohort, self._attackers = cohort, attack.attackers
        self._attack = attack_number(attack.name)
        self._exchange = 0  # in this round

    @property
    def names(self) -> Sequence[str]:
        return self._cohort.names

    def self_learn(self, env_steps: int) -> None:
        """Let the agents learn. The next query begins a new round."""
        self._cohort.self_learn(env_steps)
        self._exchange = 0

    def query(self, states: States) -> Answers:
        answers = self._cohort.query(states)
        members = list(answers.members)
        usable_N = np.isin(np.arange(len(self.names)), members)
        q_NBA = np.full((len(self.names), *answers.q_NBA.shape[1:]), np.nan)
        q_NBA[members] = answers.q_NBA
        said_NBA = attacked(q_NBA, self._attack, self._attackers, self._exchange, usable=usable_N)
        self._exchange += 1
        return usable_answers(list(said_NBA))

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        self._cohort.improve(states, actions, targets)

    def close(self) -> None:
        self._cohort.close()
