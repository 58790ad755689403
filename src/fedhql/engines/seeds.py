"""All randomness of an experiment, as seeds: functions of what they are for."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """What randomness is for. A stream is a function of (seed, stream, numbers): no state."""

    AGENT = 0
    SERVER = 1
    EVALUATION = 2
    BEST = 3  # the best states, evaluated once more


def seeds_for(seed: int, stream: Stream, *numbers: int, count: int) -> NDArray[np.uint32]:
    sequence = np.random.SeedSequence(seed, spawn_key=(stream, *numbers))
    return sequence.generate_state(count).astype(np.uint32)
