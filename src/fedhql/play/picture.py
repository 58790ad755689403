"""Lay out scenes as one picture: a title for each row, a name and a return for each scene."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from fedhql.play.rollouts import Scene

MOST_COLUMNS = 6  # longer rows are wrapped
GAP, LINE, FONT_SIZE = 12, 18, 12  # pixels
LEAST_WIDTH = 120  # pixels; room for a name and a return
INK, FINAL_INK, FRAME_INK = "black", "firebrick", "lightgrey"

Point = tuple[int, int]


@dataclass(frozen=True)
class Row:
    """The scenes that share a title."""

    title: str
    names: Sequence[str]


class Painter:
    """Paints the scenes of several rows, given in their order, with frames scaled by `scale`."""

    def __init__(self, rows: Sequence[Row], scale: float) -> None:
        self._rows, self._scale = rows, scale
        most = max(len(row.names) for row in rows)
        self._columns = -(-most // -(-most // MOST_COLUMNS))
        # Matplotlib's font has the Greek letters that label arms.
        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        self._font = ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), FONT_SIZE)
        self._bold = ImageFont.truetype(str(fonts / "DejaVuSans-Bold.ttf"), FONT_SIZE)

    def paint(self, scenes: Sequence[Scene]) -> Image.Image:
        height, width, _ = scenes[0].frame_HWC.shape
        frame = max(1, round(width * self._scale)), max(1, round(height * self._scale))
        tile = max(frame[0], LEAST_WIDTH), LINE + frame[1]
        picture = Image.new("RGB", self._size(tile), "white")
        draw = ImageDraw.Draw(picture)
        for title, at in self._titles(tile):
            draw.text(at, title, INK, self._bold)
        for (name, (left, top)), scene in zip(self._tiles(tile), scenes, strict=True):
            word, ink = ("final", FINAL_INK) if scene.ended else ("return", INK)
            draw.text((left, top), name, INK, self._font)
            right = left + tile[0], top
            draw.text(right, f"{word} {scene.total:.4g}", ink, self._font, anchor="ra")
            corner = left + (tile[0] - frame[0]) // 2, top + LINE
            drawn = Image.fromarray(scene.frame_HWC).resize(frame, Image.Resampling.BOX)
            picture.paste(drawn, corner)
            opposite = corner[0] + frame[0] - 1, corner[1] + frame[1] - 1
            draw.rectangle((corner, opposite), outline=FRAME_INK)
        return picture

    def _size(self, tile: Point) -> Point:
        width = GAP + self._columns * (tile[0] + GAP)
        height = GAP + sum(self._height(row, tile) for row in self._rows)
        return width + width % 2, height + height % 2  # video codecs need even numbers

    def _height(self, row: Row, tile: Point) -> int:
        return LINE + -(-len(row.names) // self._columns) * (tile[1] + GAP)

    def _titles(self, tile: Point) -> Iterator[tuple[str, Point]]:
        top = GAP
        for row in self._rows:
            yield row.title, (GAP, top)
            top += self._height(row, tile)

    def _tiles(self, tile: Point) -> Iterator[tuple[str, Point]]:
        for row, (_, (left, top)) in zip(self._rows, self._titles(tile), strict=True):
            for n, name in enumerate(row.names):
                down, along = divmod(n, self._columns)
                yield name, (left + along * (tile[0] + GAP), top + LINE + down * (tile[1] + GAP))
