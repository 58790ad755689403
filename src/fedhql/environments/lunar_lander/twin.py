"""The record of LunarLander-v3 as a twin. It loads JAX only when a function is called."""

from functools import cache
from typing import TYPE_CHECKING

from fedhql.environments.twins import Array, Numbers, Twin

if TYPE_CHECKING:
    from fedhql.environments.lunar_lander.episode import Options

_START_DRAWS = 18  # episode.START_DRAWS


@cache  # agents share a compiled program only if their twin is the same object
def lunar_lander(
    gravity: float = -10.0,
    enable_wind: bool = False,
    wind_power: float = 15.0,
    turbulence_power: float = 1.5,
) -> Twin:
    """Return the twin of LunarLander-v3 with Gymnasium's options; actions are discrete."""

    def options() -> "Options":
        from fedhql.environments.lunar_lander.episode import Options

        return Options(gravity, enable_wind, wind_power, turbulence_power)

    def start(draws: Numbers) -> Numbers:
        from fedhql.environments.lunar_lander import episode

        return episode.start(options(), draws)

    def step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
        from fedhql.environments.lunar_lander import episode

        return episode.step(options(), state, action)

    def observe(state: Numbers) -> Numbers:
        from fedhql.environments.lunar_lander import episode

        return episode.observe(state)

    return Twin(8, 4, 1000, _START_DRAWS, start, step, observe, is_costly=True)
