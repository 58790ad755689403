"""The paper's server: equations on arrays, a cohort seam, budgets. It can see no agent."""

from fedhql.federation.budget import Budget
from fedhql.federation.cohort import Answers, Cohort, InProcessCohort
from fedhql.federation.moments import (
    Moments,
    fed_ucb_bernstein_of,
    fed_ucb_of,
    merged,
    moments,
)
from fedhql.federation.server import (
    FederationServer,
    RoundFigures,
    RoundProgress,
    Rule,
    ServerEnvironments,
)
from fedhql.federation.td import fed_td
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein

__all__ = [
    "Answers",
    "Budget",
    "Cohort",
    "FederationServer",
    "InProcessCohort",
    "Moments",
    "RoundFigures",
    "RoundProgress",
    "Rule",
    "ServerEnvironments",
    "fed_td",
    "fed_ucb",
    "fed_ucb_bernstein",
    "fed_ucb_bernstein_of",
    "fed_ucb_of",
    "merged",
    "moments",
]
