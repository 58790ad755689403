"""Which agents share a population on a GPU."""

import jax
import pytest

from fedhql.compiled.compiled_cohort import should_pad
from fedhql.engines.build_agent import compiled_config
from fedhql.environments.compiled import find_compiled
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_names, preset_text

# LunarLander has no phase kernel. A phase of CartPole -plus, 1,250 env steps, is no multiple of
# train_freq; agents of the others train at every step.
CARTPOLE = ("cartpole-n5", "cartpole-n10")
OTHERS = (name for name in preset_names() if name.startswith(("acrobot", "mountaincar")))
WITH_KERNELS = {*CARTPOLE, *OTHERS}


@pytest.mark.parametrize("preset", preset_names())
def test_agents_of_presets_keep_their_shapes_where_all_have_kernels(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = read_settings(preset_text(preset))
    environment = find_compiled(settings.environment.id, implementation="twin")
    assert environment is not None
    configs = [compiled_config(agent) for agent in settings.agents]
    phase = settings.federation.self_learning_env_steps
    assert not should_pad(configs, environment.make_lanes, phase)  # on a CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert should_pad(configs, environment.make_lanes, phase) == (preset not in WITH_KERNELS)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert should_pad(configs, environment.make_lanes, phase)
