"""The files that people look for at the top of a project say the same version as the package."""

from pathlib import Path

import yaml

import fedhql

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == fedhql.__version__
    assert f"\n## {fedhql.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["preferred-citation"]["title"] == "FedHQL: Federated Heterogeneous Q-Learning"
