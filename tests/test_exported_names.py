import subprocess
import sys

import pytest

import fedhql
import fedhql.federation


def test_the_public_names_are_complete() -> None:
    assert set(fedhql.__all__) == {
        "Acting",
        "BlackBoxAgent",
        "Checkpointable",
        "Closable",
        "Curve",
        "Diagnosable",
        "Exportable",
        "FedHQLError",
        "Policy",
        "Progress",
        "Result",
        "__version__",
        "federate",
        "load",
        "load_policy",
        "study",
    }
    assert sorted(dir(fedhql)) == sorted(fedhql.__all__)
    for module in (fedhql, fedhql.federation):
        assert all(hasattr(module, name) for name in module.__all__)


def test_importing_fedhql_loads_no_framework() -> None:
    """Workers and members import it, too; public names load what they need when asked for."""
    heavy = ("gymnasium", "jax", "matplotlib", "pydantic", "rich", "scipy", "torch", "typer")
    code = f"import fedhql, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_there_are_no_other_names() -> None:
    with pytest.raises(AttributeError, match="module 'fedhql' has no attribute 'studies'"):
        _ = fedhql.studies


def test_the_equations_are_exported_as_the_readme_says() -> None:
    assert {"fed_ucb", "fed_ucb_bernstein", "fed_td"} <= set(fedhql.federation.__all__)
