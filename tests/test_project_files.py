"""The files that people look for at the top of a project say the same version as the package."""

import re
from pathlib import Path

import yaml

import fedhql

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedhql.__version__
    assert f"\n## {fedhql.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["preferred-citation"]["title"] == "FedHQL: Federated Heterogeneous Q-Learning"


def test_the_bibtex_of_the_home_page_is_the_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    people = [f"{each['family-names']}, {each['given-names']}" for each in paper["authors"]]
    entries = (ROOT / "docs" / "index.md").read_text().partition("```bibtex\n")[2]
    fields = re.findall(r"^  (\w+) += \{(.*?)\},?$", entries, flags=re.DOTALL | re.MULTILINE)
    assert [(key, " ".join(value.split())) for key, value in fields] == [
        ("title", paper["title"]),
        ("author", " and ".join(people)),
        ("journal", paper["journal"]),
        ("year", str(paper["year"])),
        ("title", citation["title"]),
        ("author", f"{{{citation['authors'][0]['name']}}}"),
        ("version", citation["version"]),
        ("license", citation["license"]),
    ]
