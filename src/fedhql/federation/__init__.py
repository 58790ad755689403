"""The paper's server: equations on arrays, the cohort interface, budgets. It imports no agent."""

from fedhql.federation.attacks import ATTACKS, AttackSpec
from fedhql.federation.budget import Account, Budget
from fedhql.federation.cohort import Answers, Cohort, InProcessCohort, PlainCohort, PooledAnswers
from fedhql.federation.figures import RoundFigures
from fedhql.federation.moments import Moments, fed_ucb_bernstein_of, fed_ucb_of, moments
from fedhql.federation.rules import (
    RULES,
    Rule,
    RuleSpec,
    bellman_weighted,
    bernstein,
    hampel,
    mean_std,
    median_mad,
    rule_named,
    rule_spec,
    sceptical,
    trimmed,
    upper_bound,
)
from fedhql.federation.server import FederationServer, RoundProgress, ServerEnvironments
from fedhql.federation.td import all_action_targets, fed_td
from fedhql.federation.ucb import fed_ucb, fed_ucb_bernstein

__all__ = [
    "ATTACKS",
    "RULES",
    "Account",
    "Answers",
    "AttackSpec",
    "Budget",
    "Cohort",
    "FederationServer",
    "InProcessCohort",
    "Moments",
    "PlainCohort",
    "PooledAnswers",
    "RoundFigures",
    "RoundProgress",
    "Rule",
    "RuleSpec",
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
    "moments",
    "rule_named",
    "rule_spec",
    "sceptical",
    "trimmed",
    "upper_bound",
]
