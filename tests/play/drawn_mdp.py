"""An environment of one's own that can be drawn."""

from typing import Any

import gymnasium as gym
import numpy as np

from tests.known_mdps import STATES, RandomMDP


class DrawnMDP(RandomMDP):
    """A frame is black, with a white column at the state."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - as Gymnasium's

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        frame_HWC = np.zeros((20, STATES, 3), dtype=np.uint8)
        frame_HWC[:, self._state] = 255
        return frame_HWC


gym.register("DrawnMDP-v0", entry_point=f"{__name__}:DrawnMDP", max_episode_steps=40)
