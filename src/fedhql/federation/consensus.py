"""The consensus policy's values: the centre of all agents' answers by a federation's rule."""

from collections.abc import Callable, Sequence

import numpy as np

from fedhql.contract import Values
from fedhql.federation.attacks import attacked
from fedhql.federation.reading import FromValues
from fedhql.federation.rules import Rule

Centre = Callable[[Sequence[Values]], Values]  # N answers (B, A) each -> their centre (B, A)


def consensus(rule: Rule, attack: int = 0, attackers: int = 0) -> Centre:
    """Return the centre by a federation's rule, of answers among which attackers lie.

    All agents have the same weight. If no answer is usable, the centre is NaN.
    """

    def centre(answers: Sequence[Values]) -> Values:
        q_NBA = np.array(answers, dtype=np.float64)
        if attackers:
            usable_N = np.isfinite(q_NBA).all(axis=(1, 2))
            q_NBA = attacked(q_NBA, attack, attackers, 0, usable=usable_N)
        q_NBA = q_NBA[np.isfinite(q_NBA).all(axis=(1, 2))]
        if len(q_NBA) == 0:
            return np.full(np.shape(answers[0]), np.nan, dtype=np.float32)
        weights_N = np.zeros(len(q_NBA)) if rule.weighted else None
        return FromValues(q_NBA, (rule,), weights_N=weights_N).centre().astype(np.float32)

    return centre
