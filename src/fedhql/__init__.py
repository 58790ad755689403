"""Federated heterogeneous Q-learning: black-box agents that learn from each other's values."""

from fedhql.contract import (
    Acting,
    BlackBoxAgent,
    Checkpointable,
    Closable,
    Diagnosable,
    Exportable,
)
from fedhql.errors import FedHQLError

__version__ = "0.2.0"

__all__ = [
    "Acting",
    "BlackBoxAgent",
    "Checkpointable",
    "Closable",
    "Diagnosable",
    "Exportable",
    "FedHQLError",
    "__version__",
]
