"""Derive every seed of an experiment from its purpose."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """The purpose of a seed. Seeds are a pure function of (seed, stream, numbers)."""

    AGENT = 0
    SERVER = 1
    EVALUATION = 2
    BEST = 3  # the final evaluation of the best states
    CONSENSUS = 4  # evaluations of the consensus policy


def seeds_for(seed: int, stream: Stream, *numbers: int, count: int) -> NDArray[np.uint32]:
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, *numbers))
    return sequence.generate_state(count).astype(np.uint32)
