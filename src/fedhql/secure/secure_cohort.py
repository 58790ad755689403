"""Secure aggregation in one process, with the same computation as between owners."""

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhql.contract import Actions, States, Values
from fedhql.errors import NoUsableAnswers
from fedhql.federation import PlainCohort, PooledAnswers
from fedhql.secure.fixed_point import LEAST_MEMBERS, FixedPoint, unusable
from fedhql.secure.masks import Masker, unmasked_sum


class SecureCohort:
    """Wrap a cohort: mask the answers of every agent before they are added up.

    All agents belong to one owner, so this hides nothing. It shows what secure aggregation does to
    learning, with the code that runs between owners.
    """

    def __init__(
        self,
        cohort: PlainCohort,
        *,
        value_bound: float,
        draw_key: Callable[[], X25519PrivateKey] = X25519PrivateKey.generate,
    ) -> None:
        self._cohort, self._value_bound, self._exchanges = cohort, value_bound, 0
        self.names = cohort.names
        self._maskers = [Masker(name, "one process", draw_key()) for name in self.names]

    def query(self, states: States) -> PooledAnswers:
        answers = self._cohort.query(states)
        values = dict(zip(answers.members, answers.q_NBA, strict=True))
        found = {n: unusable(q_BA, self._value_bound) for n, q_BA in values.items()}
        refused = {**answers.refused, **{n: why for n, why in found.items() if why is not None}}
        members = tuple(n for n in values if n not in refused)
        if len(members) < LEAST_MEMBERS:
            reasons = ", ".join(f"{self.names[n]}: {why}" for n, why in refused.items())
            raise NoUsableAnswers(
                f"secure aggregation needs {LEAST_MEMBERS} agents with usable answers; there are "
                f"{len(members)} ({reasons}); federation.secure_value_bound limits the values"
            )
        fixed = FixedPoint(len(members), self._value_bound)
        cohort = {self.names[n]: self._maskers[n].public_key for n in members}
        self._exchanges += 1
        masked = [
            # `about` is empty: in one process all agents are asked the same question.
            self._maskers[n].masked(fixed.encoded(values[n]), (1, self._exchanges), cohort, b"")
            for n in members
        ]
        sums_2BA = unmasked_sum(masked).reshape(2, *answers.q_NBA.shape[1:])
        return PooledAnswers(fixed.moments(sums_2BA), members, refused)

    def self_learn(self, env_steps: int) -> None:
        self._cohort.self_learn(env_steps)

    def improve(self, states: States, actions: Actions, targets: Values) -> None:
        self._cohort.improve(states, actions, targets)

    def close(self) -> None:
        self._cohort.close()
