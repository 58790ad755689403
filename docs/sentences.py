"""Print the words, the sentences and the sentences above 30 words of each document.

    python docs/sentences.py                  # README.md and every page
    python docs/sentences.py docs/deploy.md   # these pages, with their long sentences

Code and tables do not count, and an inline code is one word.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
LONG = 30


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence of a Markdown text."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "\n", text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for paragraph in _paragraphs(text.splitlines()):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "CODE", paragraph))
        parts = re.split(r"(?<=[.!?])[)*\"]*\s+(?=[(*\"\[]*[A-ZΑ-Ωκλεα-ω0-9])", plain)
        words = ([word for word in part.split() if re.search(r"\w", word)] for part in parts)
        found += [each for each in words if each]
    return found


def _paragraphs(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        item = re.match(r"\s*(?:[-*]|\d+\.) +", line)
        if line.strip() and not item and not re.match(r"#|\||    ", line):
            paragraph.append(line)
            continue
        yield " ".join(paragraph)
        paragraph = [line[item.end() :]] if item else []


def main(pages: list[Path]) -> None:
    shown = pages or [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
    print(f"{'page':24}{'words':>8}{'sentences':>11}{f'above {LONG}':>10}{'longest':>9}")
    for page in shown:
        said = sentences(page.read_text(encoding="utf-8"))
        long = [words for words in said if len(words) > LONG]
        count, longest = sum(map(len, said)), max(map(len, said), default=0)
        print(f"{page.name:24}{count:>8}{len(said):>11}{len(long):>10}{longest:>9}")
        if pages:
            for words in long:
                print(f"  {len(words)}: {' '.join(words)}")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
