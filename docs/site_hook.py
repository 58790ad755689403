"""A hook of mkdocs: pages link to files of the repository, and the site shows those files.

A link such as `](../src/fedhql/contract.py)` works where the repository is browsed. In the site it
leads to a page with the file's text, or with the cells of a notebook. A link to a directory becomes
its text.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

FENCE = "~" * 8
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?!https?:|mailto:)[^)#\s]+)(#[^)]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".mjs": "javascript", ".md": "md"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside docs/ that a page links to."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    targets = {
        path
        for page in pages
        for _, target, _ in LINK.findall(page.content_string)
        if (path := _target(page.src_uri, target)).is_file() and DOCS not in path.parents
    }
    for path in sorted(targets):
        files.append(
            File.generated(
                config, _page(path), content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV
            )
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page at those pages."""
    up = "../" * page.file.src_uri.count("/")

    def _replaced(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        path = _target(page.file.src_uri, target)
        if path.is_dir():
            return text
        if path.is_file() and DOCS not in path.parents:
            return f"[{text}]({up}{_page(path)})"
        return match.group()

    return markdown if page.file.generated_by else LINK.sub(_replaced, markdown)


def _target(page: str, target: str) -> Path:
    return (DOCS / page).parent.joinpath(target).resolve()


def _page(path: Path) -> str:
    return f"source/{path.relative_to(ROOT).as_posix()}.md"


def _shown(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    head = "---\nsearch:\n  exclude: true\nhide: [toc]\n---\n"
    shown = (
        _cells(text) if path.suffix == ".ipynb" else _code(text, LANGUAGES.get(path.suffix, "text"))
    )
    return f"{head}# `{name}`\n\n{shown}\n"


def _code(text: str, language: str) -> str:
    return f"{FENCE}{language}\n{text}\n{FENCE}"


def _cells(notebook: str) -> str:
    """Return the cells of a notebook as Markdown, without outputs; links become their text."""
    shown = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        shown.append(_code(text, "python") if is_code else LINK.sub(r"\1", text))
    return "\n\n".join(shown)
