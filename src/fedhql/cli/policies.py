"""Commands about the policies that a run has kept: export."""

from pathlib import Path
from typing import Annotated

import typer

from fedhql.engines.kept_agents import STATES, kept_agents
from fedhql.storage.records import CONSENSUS

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
Seed = Annotated[
    int | None, typer.Option(metavar="K", help="A seed of the run.  [default: the lowest]")
]
State = Annotated[
    str, typer.Option(metavar="|".join(STATES), help="Which state of each agent to take.")
]


def export(
    run: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write.")],
    policy: Annotated[
        str,
        typer.Option(
            metavar=f"{CONSENSUS}|agentN",
            help=f"{CONSENSUS}: act on the centre of all agents' values by the run's rule.",
        ),
    ] = CONSENSUS,
    arm: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="An arm of the run.  [default: fedhql, if it was run]"),
    ] = None,
    seed: Seed = None,
    state: State = STATES[0],
) -> None:
    """Write a policy that NumPy alone can run: an agent, or the consensus of all agents.

    fedhql.policy.load_policy(DIR) returns it, with q_values(states) and act(states).
    """
    agents = kept_agents(run, arm, seed, state)
    agents.export(policy, out)
    typer.echo(f"wrote {out}: {policy} of {agents.cell}, {state} states")
