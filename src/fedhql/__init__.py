"""Federated heterogeneous Q-learning: black-box agents that learn from each other's values."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedhql.contract import (
    Acting,
    BlackBoxAgent,
    Checkpointable,
    Closable,
    Diagnosable,
    Exportable,
)
from fedhql.errors import FedHQLError

if TYPE_CHECKING:
    from fedhql.api.load_policy import load_policy
    from fedhql.api.result import Result, load
    from fedhql.api.study import federate, study
    from fedhql.engines.cell_records import Progress
    from fedhql.policy import Policy
    from fedhql.results.curves import Curve

__version__ = "0.2.0"

__all__ = [
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
]

# Loaded when they are asked for: `import fedhql` stays fast, for workers and members, too.
_MODULES = {
    "Curve": "fedhql.results.curves",
    "Policy": "fedhql.policy",
    "Progress": "fedhql.engines.cell_records",
    "Result": "fedhql.api.result",
    "federate": "fedhql.api.study",
    "load": "fedhql.api.result",
    "load_policy": "fedhql.api.load_policy",
    "study": "fedhql.api.study",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedhql' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
