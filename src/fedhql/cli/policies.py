"""Commands about the policies that a run has kept: export, play."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhql.engines.kept_agents import STATES, KeptAgents, kept_agents
from fedhql.storage.records import CONSENSUS

if TYPE_CHECKING:
    from fedhql.play.picture import Row
    from fedhql.play.rollouts import Scene

ALL = "all"

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The directory of a run, or the home of a member."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="K", help="A seed of the run.  [default: the lowest]")
]
State = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(STATES),
        help="Which state of each agent to take."
        f"  [default: best; in the {CONSENSUS} and of a member, last]",
    ),
]


def export(
    run: Run,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The directory to write.")],
    policy: Annotated[
        str | None,
        typer.Option(
            metavar=f"{CONSENSUS}|NAME",
            help=f"{CONSENSUS}: act on the centre of all agents' values by the run's rule."
            f"  [default: {CONSENSUS}; of a member, its agent]",
        ),
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="An arm of the run.  [default: fedhql, if it was run]"),
    ] = None,
    seed: Seed = None,
    state: State = None,
) -> None:
    """Write a policy that NumPy alone can run: an agent, or the consensus of all agents.

    fedhql.load_policy(DIR) returns it, with q_values(states) and act(states).
    """
    agents = kept_agents(run, arm, seed, state)
    chosen = policy or agents.default
    agents.export(chosen, out)
    states = f"{agents.state_of(chosen)} states"
    typer.echo(f"wrote {out}: {chosen} of {agents.cell or agents.path}, {states}")


def play(
    run: Run,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"NAME|{CONSENSUS}|{ALL}",
            help=f"Whom to watch. Repeat for several.  [default: {ALL}, which is every agent]",
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM",
            help="An arm of the run. Repeat for several, one below the other."
            "  [default: fedhql, if it was run]",
        ),
    ] = None,
    seed: Seed = None,
    state: State = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.gif|FILE.mp4", help="Write a file.  [default: open a window]"),
    ] = None,
    episode_seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Every episode starts from this seed.")
    ] = 0,
    fps: Annotated[
        float | None,
        typer.Option(
            metavar="F",
            min=1,
            help="Pictures per second. If the environment has more steps per second, steps are "
            "left out, so that the speed stays about the same.  [default: the environment's]",
        ),
    ] = None,
    max_steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Stop episodes after so many steps.")
    ] = 1000,
    scale: Annotated[
        float, typer.Option(metavar="X", min=0.05, max=4, help="Size of the frames.")
    ] = 0.5,
) -> None:
    """Watch policies of a run, or a member's, play one episode each, side by side, with returns."""
    # Matplotlib and pygame take a second to load, and no other command needs them here.
    from fedhql.play.output import require_display, show, writer_for
    from fedhql.play.picture import Painter, Row
    from fedhql.play.rollouts import drawable_environment, own_fps, rollouts

    arms: Sequence[str | None] = arm or [None]
    cells = [kept_agents(run, each, seed, state) for each in arms]
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if out is None:
        require_display(os.environ)
        present = show
    else:
        present = partial(writer_for(out), out)
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # frames for a file need no display
    names = [_watched(cell, agent or [ALL]) for cell in cells]
    policies = [
        cell.policy(name) for cell, of_cell in zip(cells, names, strict=True) for name in of_cell
    ]
    titles = [_title(cell, of_cell) for cell, of_cell in zip(cells, names, strict=True)]
    rows = [Row(title, of_cell) for title, of_cell in zip(titles, names, strict=True)]
    painter, task = Painter(rows, scale), cells[0].settings.environment
    with ExitStack() as stack:
        # They close after the window: Gymnasium's also close pygame.
        environments = [
            stack.enter_context(closing(drawable_environment(task.id, task.options)))
            for _ in policies
        ]
        steps_per_second = own_fps(environments[0])
        fps = fps or steps_per_second
        moments = rollouts(
            list(zip(policies, environments, strict=True)),
            seed=episode_seed,
            max_steps=max_steps,
            every=max(1, round(steps_per_second / fps)),
        )
        present((painter.paint(scenes) for scenes in _reported(moments, rows)), fps)
    if out is not None:
        typer.echo(f"wrote {out}")


def _title(cell: KeptAgents, names: Sequence[str]) -> str:
    states = {name: cell.state_of(name) for name in names}
    if len(set(states.values())) == 1:
        return f"{cell.title}, {states[names[0]]} states"
    return f"{cell.title}, best states, {CONSENSUS} of the last"


def _watched(cell: KeptAgents, chosen: Sequence[str]) -> list[str]:
    names = [name for each in chosen for name in (cell.names if each == ALL else [each])]
    return list(dict.fromkeys(names))


def _reported(moments: "Iterable[list[Scene]]", rows: "Sequence[Row]") -> "Iterator[list[Scene]]":
    """Yield the moments. Print the returns after the last one."""
    for scenes in moments:
        yield scenes
    players = [f"{row.title}, {name}" for row in rows for name in row.names]
    for player, scene in zip(players, scenes, strict=True):
        typer.echo(f"{player}: {'final' if scene.ended else 'return so far'} {scene.total:.4g}")
