"""The resources that an agent asks of the node it runs on."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, model_validator

# Reserved for an agent that asks for nothing: Ray cannot reserve an empty bundle, and could put the
# agent on a node without cores. A thousand such agents fit on one core.
LEAST_CPU = 0.001

SMALLEST = 0.0001  # the smallest amount that Ray counts


class Resources(BaseModel):
    """The resources of one agent. An agent that asks for nothing runs on any node with a core."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpus: NonNegativeFloat = 0.0
    """Cores that Ray reserves for the agent's actor."""
    gpus: NonNegativeFloat = 0.0
    """GPUs that Ray reserves: a share of one, or a whole number."""
    custom: dict[str, PositiveFloat] = Field(
        {}, description="a table of custom resources of the nodes, each a number > 0"
    )
    """Amounts of the resources that `ray start --resources` names."""

    @model_validator(mode="after")
    def _as_ray_counts(self) -> "Resources":
        """Reject amounts and names that Ray would refuse or misread after work has begun."""
        if own := sorted({"CPU", "GPU", "memory", "object_store_memory"} & self.custom.keys()):
            raise ValueError(f"{own[0]} is reserved by Ray; allowed: cpus, gpus, your own names")
        for name, amount in self.demanded().items():
            if amount < SMALLEST:
                raise ValueError(f"{amount:g} {name}: allowed: 0, or at least {SMALLEST}")
            if name == "GPU" and amount > 1 and amount != int(amount):
                raise ValueError(f"{amount:g} {name}: allowed: up to 1, or a whole number")
        return self

    def demanded(self) -> dict[str, float]:
        """Return the amounts that are not zero, by Ray's names."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **self.custom}
        return {name: amount for name, amount in wanted.items() if amount}

    def reserved(self) -> dict[str, float]:
        return self.demanded() or {"CPU": LEAST_CPU}

    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": self.custom}


def in_words(demanded: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in demanded.items()) or "nothing"
