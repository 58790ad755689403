"""The recommended alerts: Prometheus' own tool evaluates them, on series as the server has them."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fedhql.remote.server.status import FederationStatus, MemberStatus, WaitStatus
from fedhql.service.metrics import Collector
from tests.service.test_status_page import EMPTY, STATUS

RULES = Path(__file__).parents[2] / "examples/remote/alerts.yml"
INSTALL = "apt-get install --no-install-recommends prometheus"
REQUIRED = "FEDHQL_TESTS_REQUIRE_PROMTOOL"  # set in CI: then a missing promtool is a failure
ADDED = {"job", "instance"}  # labels that Prometheus adds
Labels = Mapping[str, str]

TROUBLED = replace(
    STATUS,
    quorum=3,
    members=(
        # promtool's clock begins in 1970.
        MemberStatus(
            "ann",
            "connected",
            address="ipv4:192.0.2.7:52114",
            software="fedhql 0.1.0",
            protocol="1.1",
            last_heard="1970-01-01T00:00:00+00:00",
            certificate_expires="1970-01-05T00:00:00+00:00",
        ),
        MemberStatus("bob", "late", late_with="an answer"),
        MemberStatus("cyd", "never came"),
        MemberStatus("dan", "away"),
        MemberStatus("eve", "quarantined", quarantined="not finite"),
        MemberStatus("fay", "finished"),
    ),
    members_expected=6,
    exchange_deadline_seconds=30.0,
    waiting=WaitStatus("2 members are needed", ["bob"], "1970-01-01T00:00:00+00:00", 700.0),
    refused_connections={"not_listed": 3},
)


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    return found


def promtool(*arguments: object) -> str:
    """Run promtool and return its output; skip the test, or fail it, where there is none."""
    found = shutil.which("promtool")
    if found is None:
        missing = f"no promtool on the path ({INSTALL})"
        if REQUIRED in os.environ:
            pytest.fail(f"{missing}, and {REQUIRED} is set")
        pytest.skip(missing)
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def exposed(status: FederationStatus) -> list[tuple[str, Labels, float]]:
    """Return the samples of one scrape: name, labels, value."""
    registry = CollectorRegistry()
    registry.register(Collector(lambda: status))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def test_the_alerts_fire_when_they_should_and_not_before() -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES)
    promtool("test", "rules", RULES.with_name("alerts_test.yml"))


def test_every_alert_is_tested_both_ways_and_explained() -> None:
    tests = yaml.safe_load(RULES.with_name("alerts_test.yml").read_text())["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    for rule in rules():
        expected = [check["exp_alerts"] for check in checks if check["alertname"] == rule["alert"]]
        assert any(expected), rule["alert"]
        assert not all(expected), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}


def test_the_server_exposes_every_metric_of_the_alerts_with_its_labels() -> None:
    labels_of: dict[str, set[str]] = {}
    for name, labels, _ in exposed(TROUBLED):
        labels_of.setdefault(name, set()).update(labels)
    used = set()
    for rule in rules():
        names = set(re.findall(r"\bfedhql_\w+", rule["expr"].replace('"fedhql"', "")))
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) - ADDED
        for name in names:
            assert name in labels_of, f"{rule['alert']} uses {name}, which does not exist"
            assert shown <= labels_of[name], f"{rule['alert']} uses labels that {name} lacks"
        used |= names
    assert len(used) >= 14


def assert_firing(status: FederationStatus, expected: set[tuple[str, str]], file: Path) -> None:
    """Check which alerts fire, and for which members, if the server stays in this status."""
    series = []
    for name, labels, value in [*exposed(status), ("up", {}, 1.0)]:
        inside = {**labels, "job": "fedhql", "instance": "fed"}
        selector = ",".join(f'{key}="{text}"' for key, text in inside.items())
        series.append({"series": f"{name}{{{selector}}}", "values": f"{value}x30"})
    samples = []
    for alert, member in expected:
        of_member = f',member="{member}"' if member else ""
        samples.append({"labels": f'{{alertname="FedHQL{alert}"{of_member}}}', "value": 1})
    expression = 'count by (alertname, member) (ALERTS{alertstate="firing"})'
    check = {"expr": expression, "eval_time": "20m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [check]}
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    promtool("test", "rules", file)


def test_a_scrape_of_a_troubled_server_fires_its_alerts(tmp_path: Path) -> None:
    expected = {
        ("BelowQuorum", ""),
        ("WaitingLong", ""),
        ("MemberMissing", "cyd"),
        ("MemberMissing", "dan"),
        ("MemberLate", "bob"),
        ("MemberQuarantined", "eve"),
        ("CertificateExpires", "ann"),
    }
    assert_firing(TROUBLED, expected, tmp_path / "test.yml")


def test_the_quorum_alert_fires_before_anybody_has_joined(tmp_path: Path) -> None:
    assert_firing(EMPTY, {("BelowQuorum", "")}, tmp_path / "test.yml")


def test_a_healthy_server_fires_no_alert(tmp_path: Path) -> None:
    healthy = [replace(member, state="connected") for member in STATUS.members]
    assert_firing(replace(STATUS, members=healthy), set(), tmp_path / "test.yml")
