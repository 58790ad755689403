"""Runs made by hand, with a budget of 100 env steps: fractions of it read as percentages."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import ArrayLike

from fedhql.results.curves import Arms, Curve, Run
from fedhql.storage.records import EvaluationRow, RecordFile
from fedhql.storage.run_directory import Cell, RunDirectory

BUDGET = 100
PHASE = 5
MANIFEST: dict[str, Any] = {"seeds": [0, 1, 2], "arms": ["independent", "fedhql"], "cores": 2}


def curve(
    consumed: ArrayLike, *returns_of_agents: ArrayLike, own: ArrayLike | None = "consumed"
) -> Curve:
    """A curve whose agents have taken `own` env steps: by default all that were consumed."""
    consumed_E = np.array(consumed, dtype=float)
    same = isinstance(own, str)
    own_E = None if own is None else consumed_E if same else np.array(own, dtype=float)
    return Curve(consumed_E, np.array(returns_of_agents, dtype=float), own_E)


def settings(
    agents: int = 1,
    env_id: str = "CartPole-v1",
    kind: str = "dqn",
    **federation: Any,
) -> dict[str, Any]:
    own = {"rule": "mean-std", "exploration": 1.0, "self_learning_env_steps": PHASE}
    return {
        "environment": {"id": env_id},
        "federation": own | federation,
        "budget": {"env_steps_per_agent": BUDGET},
        "agents": [{"kind": kind} for _ in range(agents)],
    }


def run_of(
    arms: Arms,
    name: str = "handmade",
    *,
    best_returns: Mapping[Cell, Any] | None = None,
    settings_: dict[str, Any] | None = None,
    **of_settings: Any,
) -> Run:
    """With as many agents as its curves have."""
    found = [len(curve.returns_NE) for seeds in arms.values() for curve in seeds.values()]
    chosen = settings_ or settings(**({"agents": max(found, default=1)} | of_settings))
    return Run(name, chosen, MANIFEST, arms, dict(best_returns or {}))


def learning_run(
    *,
    agents: int = 2,
    seeds: int = 3,
    arms: Sequence[str] = (),
    name: str = "handmade",
    **more: Any,
) -> Run:
    """Every agent climbs, the higher its number the steeper; seeds differ a little."""
    names = arms or ("independent", "fedhql", "exploration=0")
    return run_of(
        {
            arm: {
                seed: curve(
                    np.arange(1.0, 11) * 10 - place - seed / 7,
                    *(np.arange(1.0, 11) * (n + 1) + place + seed for n in range(agents)),
                )
                for seed in range(seeds)
            }
            for place, arm in enumerate(names)
        },
        name,
        **more,
    )


def write_run(run: Run, path: Path) -> RunDirectory:
    """The files a run of fedhql leaves behind, as far as reports read them."""
    directory = RunDirectory(path)
    path.mkdir(parents=True)
    directory.settings.write_text(tomli_w.dumps(run.settings))
    directory.write_manifest(run.manifest)
    with closing(RecordFile(directory.evaluations, EvaluationRow)) as file:
        for arm, seeds in run.arms.items():
            for seed, of_seed in seeds.items():
                file.append(rows_of(arm, seed, of_seed))
    for cell, returns in run.best_returns.items():
        directory.cell(cell).mkdir(parents=True)
        named = dict(zip(run.agents, returns, strict=True))
        directory.best_returns(cell).write_text(json.dumps(named))
    return directory


def rows_of(arm: str, seed: int, of_seed: Curve) -> list[EvaluationRow]:
    return [
        EvaluationRow(
            arm,
            seed,
            f"agent{n + 1}",
            int(consumed),
            float(consumed),
            float(of_seed.returns_NE[n, e]),
            float(of_seed.best[n, e]),
        )
        for e, consumed in enumerate(of_seed.consumed_E)
        for n in range(len(of_seed.returns_NE))
    ]
