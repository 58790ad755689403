"""A federation of real processes: one `fedhql serve` and several `fedhql join`."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cli.running import FEDHQL
from tests.remote.federating import PATIENCE_SECONDS, fact
from tests.remote.recording import KIND

ROOT = Path(__file__).parents[2]  # where tests.remote.recording can be imported


@dataclass
class Processes:
    """The processes of one federation. Tests can kill and restart each of them."""

    directory: Path
    text: str
    address: str = "127.0.0.1:0"
    certificates: Path | None = None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    def serve(self, *options: object) -> None:
        """Start the server, on the same port as before, and return when it listens."""
        file = self.directory / "federation.toml"
        file.write_text(self.text)
        log_start = len(self.log("server"))
        self.start("server", "serve", file, "--listen", self.address, "--home", self.home,
                   *self._secured(), *options)  # fmt: skip
        listens = re.compile(r"listens on port (\d+)")
        self.until(lambda: listens.search(self.log("server"), log_start) is not None, "server")
        found = listens.search(self.log("server"), log_start)
        assert found is not None, self.log("server")
        self.address = f"127.0.0.1:{found[1]}"

    def join(self, name: str, **settings: Any) -> None:
        options = [f"--set={key}={value}" for key, value in settings.items()]
        self.start(name, "join", self.address, "--agent", KIND, "--as", name,
                   "--home", self.directory / name, *self._secured(), *options)  # fmt: skip

    def start(self, name: str, *arguments: object) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [FEDHQL, *map(str, arguments)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
            )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def interrupt(self, name: str, how: signal.Signals = signal.SIGINT) -> int:
        process = self.running.pop(name)
        process.send_signal(how)
        return process.wait(PATIENCE_SECONDS)

    def finish(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the processes end by themselves, and check that they succeed."""
        for name in names or tuple(self.running):
            assert self.running.pop(name).wait(seconds) == 0, self.log(name)

    def log(self, name: str) -> str:
        path = self.directory / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def improvements(self) -> int:
        return fact(self.home, "improvements") or 0

    def until_improvements(self, more: int) -> None:
        wanted = self.improvements() + more
        self.until(lambda: self.improvements() >= wanted, "server")

    def stage(self) -> str:
        position = fact(self.home, "position")
        return "new" if position is None else str(position["stage"])

    def until_stage(self, stage: str) -> None:
        self.until(lambda: self.stage() == stage, "server")

    def until(self, reached: Callable[[], bool], *unless: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            for name in unless:
                assert self.running[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.005)

    def _secured(self) -> tuple[object, ...]:
        return ("--insecure",) if self.certificates is None else ("--certs", self.certificates)


@contextmanager
def processes(directory: Path, text: str, **options: Any) -> Iterator[Processes]:
    federation = Processes(directory, text, **options)
    try:
        yield federation
    finally:
        for name in tuple(federation.running):
            federation.kill(name)
