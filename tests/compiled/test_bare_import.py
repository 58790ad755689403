"""The compiled engine runs where only jax, numpy and optax are installed."""

import subprocess
import sys

ABSENT = (
    "gymnasium",
    "pydantic",
    "rich",
    "typer",
    "matplotlib",
    "torch",
    "stable_baselines3",
    "envpool",
    "tomli_w",
    "annotated_types",
)


def test_a_cpu_does_not_load_triton() -> None:
    """JAX deprecates Pallas' Triton backend; without a GPU nothing may depend on it."""
    script = (
        "import sys\n"
        "import fedhql.compiled.grid, fedhql.agents.dqn.agent\n"
        "print('jax.experimental.pallas.triton' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_the_grid_can_be_imported_on_a_bare_machine() -> None:
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({ABSENT}))\n"  # an import of None fails
        "import fedhql.compiled.grid\n"
        "from fedhql.environments.twins import TWINS\n"
        "print(sorted(TWINS)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Acrobot-v1\n"), done.stderr
