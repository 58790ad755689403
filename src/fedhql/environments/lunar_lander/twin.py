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
        import jax.numpy as jnp

        from fedhql.environments.lunar_lander import episode

        return tuple(episode.started(options(), jnp.stack(draws)))

    def step(state: Numbers, action: Array) -> tuple[Numbers, Array, Array]:
        import jax.numpy as jnp

        from fedhql.environments.lunar_lander import episode

        after, reward, terminated = episode.stepped_lanes(options(), jnp.stack(state), action)
        return tuple(after), reward, terminated

    def observe(state: Numbers) -> Numbers:
        import jax.numpy as jnp

        from fedhql.environments.lunar_lander import episode

        return tuple(episode.observed(episode.episode_of(jnp.stack(state)).world))

    return Twin(8, 4, 1000, _START_DRAWS, start, step, observe, start_is_costly=True)
