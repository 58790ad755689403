"""Members in JavaScript: examples/remote/node with its packages, in a folder of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

INSTALL = "apt-get install nodejs npm"
REQUIRED = "FEDHQL_TESTS_REQUIRE_NODE"  # set in CI: then a missing Node is a failure
INSTALL_SECONDS = 120.0
PATIENCE_SECONDS = 60.0
ROOT = Path(__file__).parents[2]
EXAMPLE, PROTO = Path("examples/remote/node"), Path("src/fedhql/remote/wire.proto")


def skip_or_fail(missing: str) -> None:
    """Skip the test, or fail it where Node is required."""
    if REQUIRED in os.environ:
        pytest.fail(f"{missing}, and {REQUIRED} is set")
    pytest.skip(missing)


def require_node() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        skip_or_fail(f"no node or npm on the path ({INSTALL})")


def install(directory: Path) -> Path:
    """Copy the example to `directory`, install its packages, and return the copy's folder.

    The copy keeps the layout of the repository, because the member loads wire.proto from there.
    """
    require_node()
    copy = directory / EXAMPLE
    shutil.copytree(ROOT / EXAMPLE, copy, ignore=shutil.ignore_patterns("node_modules"))
    (directory / PROTO).parent.mkdir(parents=True)
    shutil.copy(ROOT / PROTO, directory / PROTO)
    command = ["npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        skip_or_fail(f"{' '.join(command)} took more than {INSTALL_SECONDS:g} s")
    if done.returncode != 0:
        skip_or_fail(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return copy


@dataclass
class NodeMembers:
    """Processes of Node members. Tests can kill and restart each of them."""

    example: Path
    directory: Path
    certificates: Path | None = None
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def join(self, name: str, address: str, *options: str) -> None:
        command = ["node", "member.mjs", address, "--as", name, "--home", self.directory / name]
        if self.certificates is not None:
            command += ["--certs", self.certificates]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*map(str, command), *options], cwd=self.example, stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def finish(self, name: str) -> int:
        """Wait until a member ends by itself, and return its exit code."""
        return self.running.pop(name).wait(PATIENCE_SECONDS)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def close(self) -> None:
        for name in tuple(self.running):
            self.kill(name)
