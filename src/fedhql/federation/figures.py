"""The figures of a round, and the messages about answers that the server cannot use."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhql.errors import NoUsableAnswers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundFigures:
    """The figures of one federation round; the three numbers are means over server steps."""

    server_env_steps: int
    spread: float  # the rule's, over agents, at the chosen actions
    td_error: float  # |r + γ max q̄' - q̄|, what FedTD moves by when α_s is 1
    loss: float  # agents' squared error to the broadcast targets, before they improve
    refused_answers: int

    @classmethod
    def of_sums(
        cls, sums: Sequence[float], server_env_steps: int, refused_answers: int
    ) -> "RoundFigures":
        """Build the figures from the sums of spread, TD error and loss over all transitions."""
        spread, td_error, loss = (float(total) / max(server_env_steps, 1) for total in sums)
        return cls(server_env_steps, spread, td_error, loss, refused_answers)


def count_refused(
    refused: Counter[str], agent: str, why: str, count: int = 1, *, cell: str = ""
) -> None:
    """Add refused answers of an agent to `refused`; log a warning at the agent's first ones."""
    if agent not in refused:
        whose = f"{cell}: {agent}" if cell else agent
        log.warning(
            "%s: %s; left out whenever that happens, counted, and not logged again", whose, why
        )
    refused[agent] += count


def no_usable_answers(reasons: Mapping[str, str], *, cell: str = "") -> NoUsableAnswers:
    """Return the error of an exchange in which every agent was refused, with each one's reason."""
    where = f"{cell}: " if cell else ""
    each = ", ".join(f"{agent}: {why}" for agent, why in reasons.items())
    return NoUsableAnswers(f"{where}no agent gave an answer that can be used ({each})")
