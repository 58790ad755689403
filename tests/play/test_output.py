"""Pictures become files that others can open, or a window."""

import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image, ImageSequence

from fedhql.errors import MissingExtra, SettingsError
from fedhql.play.output import HOLD_SECONDS, require_display, show, writer_for

COLOURS = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]


def pictures() -> Iterator[Image.Image]:
    return (Image.new("RGB", (64, 48), colour) for colour in COLOURS)


def test_a_gif_has_every_picture_and_holds_the_last(tmp_path: Path) -> None:
    path = tmp_path / "new" / "play.gif"
    writer_for(path)(path, pictures(), 10)
    with Image.open(path) as gif:
        assert gif.info["loop"] == 0
        frames = [
            (frame.convert("RGB").getpixel((5, 5)), frame.info["duration"])
            for frame in ImageSequence.Iterator(gif)
        ]
    assert [colour for colour, _ in frames] == COLOURS
    assert [duration for _, duration in frames] == [100, 100, 100 + 1000 * HOLD_SECONDS]


def test_the_same_pictures_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gif", "b.gif"):
        writer_for(tmp_path / name)(tmp_path / name, pictures(), 10)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


# The reader, which only this test uses, leaves pipes open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_mp4_has_every_picture(tmp_path: Path) -> None:
    reason = "needs ffmpeg: pip install 'fedhql[play]'"
    pytest.importorskip("imageio_ffmpeg", reason=reason)
    imageio = pytest.importorskip("imageio.v2", reason=reason)
    path = tmp_path / "new" / "play.mp4"
    writer_for(path)(path, pictures(), 10)
    with closing(imageio.get_reader(path)) as reader:
        brightest = [int(frame.mean(axis=(0, 1)).argmax()) for frame in reader]
        assert reader.get_meta_data()["fps"] == 10
    assert [colour for colour, _ in groupby(brightest)] == [0, 1, 2]
    assert len(brightest) == pytest.approx(3 + 10 * HOLD_SECONDS, abs=1)
    assert [each.name for each in path.parent.iterdir()] == ["play.mp4"]


class FakeWriter:
    """Takes what imageio's writer of FFMPEG takes; counts the frames."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.options, self.frames = path, options, 0

    def append_data(self, frame: Any) -> None:
        assert frame.shape == (48, 64, 3)
        self.frames += 1

    def close(self) -> None:
        self.path.write_text(f"{self.frames} frames, {self.options['fps']} fps")


def fake_imageio(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = ModuleType("imageio.v2")
    fake.get_writer = FakeWriter
    monkeypatch.setitem(sys.modules, "imageio", ModuleType("imageio"))
    monkeypatch.setitem(sys.modules, "imageio.v2", fake)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", ModuleType("imageio_ffmpeg"))


def test_an_mp4_is_there_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_imageio(monkeypatch)
    path = tmp_path / "play.mp4"

    def broken() -> Iterator[Image.Image]:
        yield from pictures()
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="broke"):
        writer_for(path)(path, broken(), 10)
    assert list(tmp_path.iterdir()) == []
    writer_for(path)(path, pictures(), 10)
    assert path.read_text() == f"{3 + 10 * HOLD_SECONDS} frames, 10 fps"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("missing", ["imageio_ffmpeg", "imageio.v2"])
def test_without_imageio_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    message = r"--out FILE.mp4 needs an optional package: pip install 'fedhql\[play\]'"
    with pytest.raises(MissingExtra, match=message):
        writer_for(Path("play.mp4"))


def test_other_formats_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--out play.avi: allowed: FILE.gif or FILE.mp4"):
        writer_for(Path("play.avi"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a window needs no variable")
def test_without_a_display_a_file_is_suggested() -> None:
    with pytest.raises(SettingsError, match=r"no display for a window .*: --out FILE.gif"):
        require_display({})
    require_display({"DISPLAY": ":0"})
    require_display({"WAYLAND_DISPLAY": "wayland-0"})


def test_a_window_shows_all_pictures_and_stays_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = []

    def watched() -> Iterator[Image.Image]:
        for n, picture in enumerate(pictures()):
            yield picture
            shown.append(pygame.display.get_surface().get_at((5, 5))[:3])
            if n == len(COLOURS) - 1:
                pygame.event.post(pygame.event.Event(pygame.QUIT))

    show(watched(), 1000)
    assert shown == COLOURS
    pygame.quit()


def test_a_window_can_be_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame.display.init()
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
    left = pictures()
    show(left, 1000)
    assert len(list(left)) == len(COLOURS) - 1
    pygame.quit()
