"""The documents: every page is in the site, links lead somewhere, and examples run.

A console or Python block is run, page by page in one folder, in its order. The Python blocks of a
page are one script, with smaller budgets and phases. Marks before a block:

    <!-- not run: REASON -->   its commands are only parsed
    <!-- terminal N -->        it runs beside the blocks that follow, until one has no such mark

A block with title="NAME" is the content of that file.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from docs import generate
from fedhql.cli.main import app
from fedhql.settings.experiment import read_settings
from fedhql.settings.served import read_served_settings
from tests.cli.running import FEDHQL

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
PORTS = ("7443", "8080")
SMALLER = {r"budget=[\d_]+": "budget=700", "1_000": "300"}  # in Python blocks


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    title: str | None = None
    mark: str = ""

    @property
    def is_run(self) -> bool:
        return self.language in ("console", "python") and not self.mark.startswith("not run: ")


def blocks(page: Path) -> list[Block]:
    return [
        Block(match["language"], match["text"], match["title"], match["mark"] or "")
        for match in BLOCK.finditer(page.read_text())
    ]


def steps(page: Path) -> list[Block]:
    """Return the blocks of a page, with those of Python that are run as one, where the first is."""
    found = blocks(page)
    parts = [each for each in found if each.language == "python" and each.is_run and not each.title]
    if not parts:
        return found
    script = "\n".join(part.text for part in parts)
    for pattern, instead in SMALLER.items():
        script = re.sub(pattern, instead, script)
    first = found.index(parts[0])
    rest = [each for each in found[first:] if each not in parts]
    return [*found[:first], Block("python", script), *rest]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [page for page in DOCUMENTS if any(each.is_run for each in blocks(page))],
    ids=named,
)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    path = os.pathsep.join([str(FEDHQL.parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "NO_COLOR": "1"}
    beside: list[subprocess.Popen[bytes]] = []
    try:
        for block in steps(page):
            text = re.sub("|".join(PORTS), lambda match: ports[match.group()], block.text)
            if block.title:
                (tmp_path / block.title).write_text(text)
            elif block.is_run:
                shell = ["bash", "-euo", "pipefail", "-c"]
                program = shell if block.language == "console" else [sys.executable, "-c"]
                if block.mark.startswith("terminal "):
                    beside.append(subprocess.Popen([*program, text], cwd=tmp_path, env=environment))
                    continue
                while beside:
                    assert beside.pop().wait(timeout=240) == 0
                done = subprocess.run(
                    [*program, text],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    finally:
        for process in beside:
            process.kill()
            process.wait()


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_marks_are_known_and_commands_and_options_exist(page: Path) -> None:
    for block in blocks(page):
        assert re.fullmatch(r"|terminal \d+|not run: .+", block.mark), block
        assert block.language != "bash" or block.mark.startswith("not run: "), block
        if block.language == "console":
            for words in _commands(block.text):
                _parse(words)


def test_every_page_is_in_the_site_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)
    in_site = [page for page in _leaves(settings["nav"]) if "/" not in page]
    assert sorted(in_site) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", DOCUMENTS, ids=named)
def test_links_between_files_and_headings_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, heading in LINK.findall(text):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if heading and file.suffix == ".md":
            assert heading in _headings(file), f"{target}#{heading}"


def test_the_reference_pages_are_what_their_script_writes() -> None:
    again = "run: python docs/generate.py"
    assert (DOCS / "settings.md").read_text() == generate.settings_page(), again
    assert (DOCS / "cli.md").read_text() == generate.cli_page(), again


@pytest.mark.parametrize("page", ["settings.md", "cli.md"])
def test_every_setting_and_option_has_a_meaning(page: str) -> None:
    rows = [row for row in (DOCS / page).read_text().splitlines() if row.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []
    # These are texts of --help, too, and a wheel has no docs/.
    assert [row for row in rows if "docs/" in row] == []


def test_the_how_to_lists_every_extra_for_users() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = (DOCS / "how-to.md").read_text().partition("| extra | what for |")[2]
    listed = set(re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], flags=re.MULTILINE))
    for_developers = {"all", "check", "docs", "test"}
    assert listed - for_developers == set(project["optional-dependencies"]) - for_developers


def test_the_settings_files_of_the_how_to_are_valid() -> None:
    example, service = (each.text for each in blocks(DOCS / "how-to.md") if each.language == "toml")
    assert read_served_settings(service).service.members == ("north", "south", "west")
    settings = read_settings(example)
    assert [agent.kind for agent in settings.agents] == ["dqn", "my_agents:MyAgent"]


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site spell them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _leaves(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for inside in nav.values():
            yield from _leaves(inside)
    elif isinstance(nav, list):
        for inside in nav:
            yield from _leaves(inside)


def _commands(text: str) -> Iterator[list[str]]:
    """Return the arguments of each `fedhql` in a console block."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word not in (";", "&", "&&", "|", ">"):
                command.append(word)
            elif command:
                if Path(command[0]).name == "fedhql":
                    yield command[1:]
                command = []


def _parse(words: list[str]) -> None:
    """Raise the command line's usage error if a command or an option does not exist."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    command.make_context("fedhql", list(words))


def _free_ports(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
