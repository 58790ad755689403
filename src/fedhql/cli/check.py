"""The command that checks one agent against the contract."""

import sys
import time
from typing import Annotated

import tomli_w
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedhql.cli.common import fail
from fedhql.settings.experiment import read_settings
from fedhql.settings.overrides import apply_override

MARKS = {True: "ok", False: "FAILED", None: "-"}


def check(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="module:Class, or a kind such as dqn.")
    ],
    env: Annotated[
        str, typer.Option(metavar="ID", help="The environment of the experiment.")
    ] = "CartPole-v1",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the agent; repeatable."),
    ] = None,
    env_steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="The length of a self-learning phase.")
    ] = 1_000,
) -> None:
    """Check an agent against the contract: shapes, numbers, exact save and restore, times.

    Exit with 1 if a check fails; a warning does not count.
    """
    from fedhql.engines.check_agent import check_agent  # here, because it loads environments

    content = {
        "environment": {"id": env, "discount": 0.99},
        "federation": {"self_learning_env_steps": env_steps},
        "budget": {"env_steps_per_agent": 4 * env_steps},
        "agents": [{"kind": kind}],
    }
    for override in set_ or []:
        apply_override(content, f"agents.1.{override}")
    settings = read_settings(tomli_w.dumps(content))
    table, failed = Table("check", "", "what was seen", box=None), 0
    for finding in check_agent(settings, env_steps, time.perf_counter):
        mark = "warning" if finding.warning else MARKS[finding.passed]
        seen = "; ".join(filter(None, (finding.detail, finding.warning)))
        table.add_row(finding.what, mark, Text(seen))
        failed += finding.passed is False
    Console(file=sys.stdout).print(table)
    if failed:
        fail(f"{failed} of the checks failed", 1)
