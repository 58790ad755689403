"""A picture shows every frame where its caption is, whole and inside."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhql.play.picture import GAP, LEAST_WIDTH, LINE, Painter, Row
from fedhql.play.rollouts import Scene

HEIGHT, WIDTH = 80, 160


def scene(colour: int, total: float = 0.0, ended: bool = False) -> Scene:
    return Scene(np.full((HEIGHT, WIDTH, 3), colour, dtype=np.uint8), total, ended)


def painted(rows: list[Row], scenes: list[Scene], scale: float = 1.0) -> NDArray[np.uint8]:
    return np.asarray(Painter(rows, scale).paint(scenes))


def corner(row: int, column: int) -> tuple[int, int]:
    """Return where the frame of a tile begins, if each row has a title and one line of tiles."""
    top = GAP + row * (LINE + LINE + HEIGHT + GAP) + LINE + LINE
    return top, GAP + column * (WIDTH + GAP)


def test_arms_are_below_each_other_and_agents_beside() -> None:
    rows = [Row("alone", ["agent1", "agent2"]), Row("federated", ["agent1", "agent2"])]
    picture = painted(rows, [scene(40), scene(80), scene(120), scene(160)])
    for n, colour in enumerate((40, 80, 120, 160)):
        top, left = corner(*divmod(n, 2))
        inside = picture[top + 1 : top + HEIGHT - 1, left + 1 : left + WIDTH - 1]
        assert inside.shape == (HEIGHT - 2, WIDTH - 2, 3)
        assert (inside == colour).all()
    assert picture.shape[:2] == (corner(2, 0)[0] - 2 * LINE, corner(0, 2)[1])


@pytest.mark.parametrize(("agents", "columns"), [(1, 1), (6, 6), (7, 4), (10, 5), (13, 5)])
def test_long_rows_are_wrapped_evenly(agents: int, columns: int) -> None:
    names = [f"agent{n}" for n in range(agents)]
    picture = painted([Row("", names)], [scene(n + 1) for n in range(agents)])
    lines = -(-agents // columns)
    assert picture.shape[1] == GAP + columns * (WIDTH + GAP)
    assert picture.shape[0] == GAP + LINE + lines * (LINE + HEIGHT + GAP)
    assert {*range(1, agents + 1)} <= {*picture[..., 0].ravel().tolist()}


def test_the_caption_says_who_how_much_and_whether_it_is_final() -> None:
    def caption(total: float, ended: bool = False, name: str = "agent1") -> bytes:
        picture = painted([Row("", [name])], [scene(0, total, ended)])
        return picture[GAP + LINE : GAP + 2 * LINE].tobytes()

    variants = [caption(7), caption(8), caption(7, ended=True), caption(7, name="agent2")]
    assert len({*variants}) == 4
    assert caption(7) == variants[0]


def test_sizes_are_even_for_video_codecs_and_wide_enough_for_captions() -> None:
    for scale in (0.05, 0.33, 0.5, 1.01, 1.02):
        height, width, _ = painted([Row("alone", ["agent1"])], [scene(0)], scale).shape
        assert height % 2 == width % 2 == 0
        assert width >= LEAST_WIDTH + 2 * GAP
