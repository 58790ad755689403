"""Write pictures as a GIF or an MP4 file, or show them in a window."""

import importlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedhql.errors import MissingExtra, SettingsError
from fedhql.storage.files import needing_space, write_atomically

HOLD_SECONDS = 2  # for the last picture of a file

Pictures = Iterable[Image.Image]
Write = Callable[[Path, Pictures, float], None]


def writer_for(path: Path) -> Write:
    """Return the function that writes such a file. Raise SettingsError or MissingExtra if none."""
    if path.suffix == ".gif":
        return _write_gif
    if path.suffix == ".mp4":
        _imageio()  # before anybody waits for the episodes
        return _write_mp4
    raise SettingsError(f"--out {path}: allowed: FILE.gif or FILE.mp4")


def _write_gif(path: Path, pictures: Pictures, fps: float) -> None:
    # Without dithering, what does not move does not change and takes no space.
    frames = (picture.quantize(dither=Image.Dither.NONE) for picture in _held(pictures, fps))
    content = io.BytesIO()
    next(frames).save(
        content,
        "GIF",
        save_all=True,
        append_images=frames,
        duration=round(1000 / fps),
        loop=0,
    )
    write_atomically(path, content.getvalue())


def _write_mp4(path: Path, pictures: Pictures, fps: float) -> None:
    imageio = _imageio()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.tmp.mp4")  # ffmpeg chooses the format by the name
    try:
        writer = imageio.get_writer(
            temporary,
            format="FFMPEG",
            mode="I",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",  # the one that browsers play
            macro_block_size=2,  # pictures have even sizes; the default, 16, would stretch them
        )
        with needing_space(path), closing(writer):
            for picture in _held(pictures, fps):
                writer.append_data(np.asarray(picture))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _imageio() -> Any:
    try:
        importlib.import_module("imageio_ffmpeg")  # imageio names it only when it writes
        return importlib.import_module("imageio.v2")
    except ModuleNotFoundError as error:
        raise MissingExtra.named("play", "--out FILE.mp4") from error


def _held(pictures: Pictures, fps: float) -> Iterator[Image.Image]:
    """Repeat the last picture, so that people can read it before a file ends or repeats."""
    for last in pictures:
        yield last
    for _ in range(round(HOLD_SECONDS * fps)):
        yield last


def require_display(environ: Mapping[str, str]) -> None:
    """Raise SettingsError if Linux has no display; elsewhere there is one, or SDL reports it."""
    named = any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if sys.platform == "linux" and not named:
        raise _no_display("neither DISPLAY nor WAYLAND_DISPLAY is set")


def show(pictures: Pictures, fps: float) -> None:
    """Show pictures in a window until it is closed, or Escape or Q is pressed."""
    try:
        pygame: Any = importlib.import_module("pygame")
    except ModuleNotFoundError as error:
        raise MissingExtra.named("play", "a window") from error
    screen, clock = None, pygame.time.Clock()
    for picture in pictures:
        if screen is None:
            screen = _open_window(pygame, picture.size)
        surface = pygame.image.frombytes(picture.tobytes(), picture.size, "RGB")
        screen.blit(surface, (0, 0))
        pygame.display.flip()
        if _is_closed(pygame):
            return
        clock.tick(fps)
    while not _is_closed(pygame):
        clock.tick(fps)


def _open_window(pygame: Any, size: tuple[int, int]) -> Any:
    try:
        pygame.display.init()
        screen = pygame.display.set_mode(size)
    except pygame.error as error:
        raise _no_display(str(error)) from error
    # SDL draws into memory if it finds no display, unless it was told to.
    driver = pygame.display.get_driver()
    if driver in ("dummy", "offscreen") and not os.environ.get("SDL_VIDEODRIVER"):
        raise _no_display("SDL found none")
    pygame.display.set_caption("fedhql play")
    return screen


def _is_closed(pygame: Any) -> bool:
    return any(
        event.type == pygame.QUIT
        or (event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q))
        for event in pygame.event.get()
    )


def _no_display(reason: str) -> SettingsError:
    return SettingsError(f"no display for a window ({reason}); write a file: --out FILE.gif")
