"""`fedhql`: run experiments and suites, report them, export their policies, show presets."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhql import __version__
from fedhql.agents.kinds import backbones
from fedhql.api.progress import BAR, LiveDisplay
from fedhql.api.study import study
from fedhql.cli import certificates, check, doctor, network, policies, status, studies
from fedhql.cli.common import (
    INTERRUPTED,
    Address,
    On,
    ProgressStyle,
    Track,
    command_to_continue,
    engine_and_executor,
    fail,
    parse_seeds,
    print_notes,
    require_style,
    warn,
    warnings_to_stderr,
)
from fedhql.cli.display import returns_tables
from fedhql.engines.choice import AUTO, ENGINES
from fedhql.errors import FedHQLError
from fedhql.federation.attacks import ATTACKS
from fedhql.running.executors import LOCAL
from fedhql.running.worker_processes import WorkerFailed
from fedhql.settings.presets import preset_description, preset_names, preset_text

app = typer.Typer(
    help="Federated heterogeneous Q-learning: black-box agents learn from each other's values.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich would read [default: ...] as markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line. Report a user's mistake in one line on stderr, with exit code 2."""
    # Find the user's agents and environments in the working directory, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))
    try:
        app()
    except FedHQLError as error:
        fail(" ".join(str(error).split()), error.exit_code)  # a library may put newlines into it
    except WorkerFailed as error:
        go_on = f"go on from its last checkpoint: {command_to_continue(sys.argv)}"
        fail(f"a worker failed; {go_on}\n{error}", 1)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="A preset's name, or a TOML file.")
    ],
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="The directory for results: a path or any fsspec URL."),
    ],
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM",
            help="independent (agents alone), fedhql, or fedhql with other settings: "
            "exploration=3, or attack=noise,attackers=1. Repeat for several. With --resume, they "
            "are added to the arms of the run."
            "  [default: independent and fedhql, or the resumed run's]",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,...",
            help="Every arm runs once with each seed; 2 is one seed. With --resume, they are added "
            "to the run's.  [default: 0, or the resumed run's]",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Env steps per agent, including its share of the server's "
            "(budget.env_steps_per_agent).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a setting: federation.exploration=3, agents.2.hidden=[8,8] for agent2, "
            "agents.learning_starts=1000 for all agents. Repeat for several.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="|".join((AUTO, *ENGINES)),
            help="What computes the run. messages: any agents, each an object. compiled: arms and "
            "seeds of our own DQN in one program. auto: compiled if possible, else messages; with "
            "--on ray always messages, with each agent as an actor.",
        ),
    ] = AUTO,
    on: On = LOCAL,
    address: Address = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(backbones()),
            help="Run every DQN agent as ours (dqn) or as that of stable-baselines3 (sb3).",
        ),
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(ATTACKS),
            help="What the --attackers answer to the server's queries.",
        ),
    ] = None,
    attackers: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="Also run every federated arm with its last K agents lying to the server, as "
            "arms attack=NAME,attackers=K.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in DIR, or start it. The result is the same, byte for byte.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Processes side by side.  [default: the number of cores]"
        ),
    ] = None,
    progress: ProgressStyle = BAR,
    figures: Annotated[
        bool, typer.Option("--figures/--no-figures", help="Draw the figures at the end.")
    ] = True,
    track: Track = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", hidden=True)] = False,
) -> None:
    """Run an experiment: every arm with every seed. Then write a table, curves and a summary.

    Everything goes to DIR: settings.toml, manifest.json, evaluations.csv, federation.csv,
    summary.json, figures/, and each agent's best and last state under agents/.
    """
    engine, on = engine_and_executor(engine, on)
    if tensorboard:
        warn("--tensorboard is deprecated: write --track tensorboard")
        track = ["tensorboard", *(track or [])]
    require_style(progress)
    console = Console()
    try:
        with LiveDisplay(console, style=progress) as display:
            # After the display has started, so that warnings appear above the bars.
            warnings_to_stderr()
            result = study(
                budget=budget,
                experiment=experiment,
                settings=settings or [],
                backbone=backbone,
                arms=arm or None,
                seeds=parse_seeds(seeds) if seeds else None,
                attack=attack,
                attackers=attackers,
                engine=engine,
                on=on,
                address=address,
                jobs=jobs,
                out=out,
                resume=resume,
                figures=figures,
                track=track or (),
                progress=display,
            )
    except KeyboardInterrupt:  # typer would only print "Aborted"
        fail(f"interrupted; go on: {command_to_continue(sys.argv)}", INTERRUPTED)
    for table in returns_tables(result.run, console):
        console.print(table)
    print_notes(console, result.run)
    console.print(f"results: {out}", soft_wrap=True, highlight=False, markup=False)


app.command()(studies.suite)
app.command()(studies.report)
app.command()(studies.compare)
app.command()(studies.archive)
app.command()(check.check)
app.command()(doctor.doctor)
app.command()(policies.export)
app.command()(policies.play)
app.command()(network.serve)
app.command()(network.join)
app.command()(network.release)
app.command()(status.status)
app.add_typer(certificates.app, name="certs")


@app.command()
def presets() -> None:
    """List the experiments that ship with fedhql."""
    for name in preset_names():
        typer.echo(f"{name:28} {preset_description(name)}")


@app.command()
def show(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="One that `presets` lists.")],
) -> None:
    """Print a preset's file, as a start for one of your own."""
    typer.echo(preset_text(preset), nl=False)
