"""The paper's server: equations on arrays, a cohort seam, budgets. It can see no agent."""

from fedhql.federation.budget import Budget
from fedhql.federation.cohort import Answers, Cohort, InProcessCohort, PooledAnswers
from fedhql.federation.moments import (
    Moments,
    fed_ucb_bernstein_of,
    fed_ucb_of,
    merged,
    moments,
)
from fedhql.federation.rules import (
    OF_SUMS,
    RULES,
    Rule,
    bellman_weighted,
    bernstein,
    hampel,
    mean_std,
    median_mad,
    rule_named,
    trimmed,
)
from fedhql.federation.server import (
    FederationServer,
    RoundFigures,
    RoundProgress,
    ServerEnvironments,
)
from fedhql.federation.td import all_action_targets, fed_td
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein

__all__ = [
    "OF_SUMS",
    "RULES",
    "Answers",
    "Budget",
    "Cohort",
    "FederationServer",
    "InProcessCohort",
    "Moments",
    "PooledAnswers",
    "RoundFigures",
    "RoundProgress",
    "Rule",
    "ServerEnvironments",
    "all_action_targets",
    "bellman_weighted",
    "bernstein",
    "fed_td",
    "fed_ucb",
    "fed_ucb_bernstein",
    "fed_ucb_bernstein_of",
    "fed_ucb_of",
    "hampel",
    "mean_std",
    "median_mad",
    "merged",
    "moments",
    "rule_named",
    "trimmed",
]
