"""What a run has found, as arrays, tables, pictures, pages and policies."""

import shutil
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedhql.api.given_agents import GivenAgents
from fedhql.engines.kept_agents import kept_agents
from fedhql.errors import MissingExtra, SettingsError
from fedhql.policy import Policy
from fedhql.results.answer import answer
from fedhql.results.curves import Curve, Run
from fedhql.results.load import load_run
from fedhql.results.notes import notes
from fedhql.results.report import write_report
from fedhql.results.statistics import LEVEL, require_level
from fedhql.results.summary import returns_table
from fedhql.results.unfinished import unfinished_cells
from fedhql.storage.arm_names import INDEPENDENT
from fedhql.storage.records import CONSENSUS, ROUND
from fedhql.storage.run_directory import Cell

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

PLOTS = ("mean", "agents")


class Result:
    """The evaluations of a run, finished or not; `fedhql.load` reads one from a directory."""

    def __init__(
        self,
        path: Path,
        run: Run,
        given: GivenAgents | None = None,
        *,
        learned_in: Cell | None = None,
        temporary: bool = False,
    ) -> None:
        """Describe the run in `path`. A temporary directory is removed together with the result.

        `learned_in` is the cell in which live agents have learned.
        """
        self.path = path
        self.run = run
        self._given = given or GivenAgents()
        self._learned_in = learned_in
        if temporary:
            weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<fedhql.Result of {self.run.title}: arms {self.arms}, seeds {self.seeds}>"

    @property
    def agents(self) -> list[str]:
        """Return the names of the agents."""
        return self.run.agents

    @property
    def arms(self) -> list[str]:
        """Return the arms that have been evaluated, such as "independent" and "fedhql"."""
        return self.run.ordered_arms

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for curves in self.run.arms.values() for seed in curves})

    @property
    def settings(self) -> dict[str, Any]:
        """Return the experiment as its settings file says it, with every default."""
        return self.run.settings

    @property
    def finished(self) -> bool:
        """Return whether every arm has spent its budget with every seed."""
        return not unfinished_cells(self.run)

    @property
    def curves(self) -> Mapping[str, Mapping[int, Curve]]:
        """Return the curve of each arm and seed: `curves["fedhql"][0].returns_NE`."""
        return self.run.arms

    def summary(self) -> str:
        """Return whether federated is better than alone, a table of all agents, and notes."""
        parts = [answer(self.run)] if INDEPENDENT in self.run.arms else []
        parts += [returns_table(self.run).text(), *map(str, notes(self.run))]
        if len(self.arms) == 1 and self.arms != [INDEPENDENT]:
            parts += ["one arm: fedhql.study compares with agents alone"]
        return "\n\n".join(parts)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each arm, seed, agent and evaluation; "consensus" is one more agent.

        The columns are those of evaluations.csv up to "after", but "budget_env_steps" is the
        consumption at which the evaluation was due.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtra.named("pandas", "Result.to_pandas") from error
        run = self.run
        further = {arm: of for arm, of in run.after_rounds.items() if run.moment(arm) != ROUND}
        parts = [
            pandas.DataFrame(
                {
                    "arm": arm,
                    "seed": seed,
                    "agent": name,
                    "own_env_steps": np.nan if curve.own_E is None else curve.own_E.astype(int),
                    "budget_env_steps": curve.consumed_E,
                    "mean_return": curve.returns_NE[n],
                    "best_mean_return": curve.best[n],
                    "after": after or run.moment(arm),
                }
            )
            for arms, names, after in (
                (run.arms, self.agents, None),
                (further, self.agents, ROUND),
                (run.consensus, [CONSENSUS], None),
            )
            for arm, seeds in arms.items()
            for seed, curve in seeds.items()
            for n, name in enumerate(names)
        ]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    def plot(self, what: str = "mean") -> "Figure":
        """Draw the curves: "mean" over agents on both measures, or "agents" one by one."""
        from fedhql.results.figures import agents_figure, welfare_figure

        if what not in PLOTS:
            raise SettingsError(f"plot({what!r}): allowed: {', '.join(map(repr, PLOTS))}")
        draw = welfare_figure if what == "mean" else agents_figure
        return draw([self.run], np.random.default_rng(0))

    def report(self, path: Path | str, *, level: float = LEVEL) -> Path:
        """Write the report as `path` (.html) and the same as Markdown. Return the page's path."""
        require_level(level)
        return write_report([self.run], Path(path), np.random.default_rng(0), level=level)[0]

    def policy(
        self,
        agent: str = CONSENSUS,
        *,
        arm: str | None = None,
        seed: int | None = None,
        state: str | None = None,
    ) -> Policy:
        """Return the policy of an agent, or the consensus of all, with `act` and `q_values`.

        The default is the arm and seed in which live agents have learned, otherwise the first arm
        that federates and its lowest seed. `state` is "best" or "last"; the default is an agent's
        best state, and the last states in the consensus. The last state of a live agent is the
        agent as it is now. Raise AgentRefused if the run has not kept that state.
        """
        if (here := self._learned_in) is not None:
            arm, seed = arm or here.arm, here.seed if seed is None else seed
        kept = kept_agents(self.path, arm, seed, state, build=self._given.build)
        if kept.cell == here:
            live = {self.agents[n]: agent for n, agent in self._given.live.items()}
            kept = replace(kept, live=live)
        return kept.policy(agent)


def load(path: Path | str) -> Result:
    """Return the result of a run from its directory, or from the archive of one.

    Raise RunDirectoryError if the directory holds no run.
    """
    return Result(Path(path), load_run(path))
