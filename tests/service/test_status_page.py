import json
import math
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fedhql.errors import MissingExtra, SettingsError
from fedhql.remote.server.status import (
    Event,
    FederationStatus,
    LatencyRecord,
    MemberStatus,
    WaitStatus,
)
from fedhql.remote.wire_pb2 import Cause
from fedhql.service.metrics import REFUSAL_CAUSES
from fedhql.service.status_page import Observation
from tests.browser import chromium

NASTY = "<img src=x onerror=alert(1)>"
STATUS_OF_NASTY = ("connected", 1, 2.0, 3, 4, 5, 6, 7)


def latencies(*seconds: float) -> LatencyRecord:
    record = LatencyRecord()
    for each in seconds:
        record.add(each)
    return record


STATUS = FederationStatus(
    federation="hospitals-7f3a91c2",
    environment="CartPole-v1",
    mode="rounds",
    stage="federating",
    round=214,
    improvements=1_070,
    quorum=3,
    env_steps_per_member=100_000,
    server_env_steps=21_400,
    uptime_seconds=11_530.4,
    members=(
        MemberStatus("st-mary", "connected", 41_200, 45_480.0, 214, 0, 0, 0, 0),
        MemberStatus("lakeside", "connected", 40_950, 45_230.0, 210, 4, 0, 2, 1),
        MemberStatus("north-clinic", "quarantined", 18_300, 20_140.5, 88, 1, 5, 0, 0),
        MemberStatus("university-hospital-east", "away", 33_710, 37_400.25, 170, 3, 0, 7, 4),
        MemberStatus("riverside", "connected", 43_005, 47_285.0, 213, 1, 1, 0, 0),
    ),
    exchanges=latencies(*[0.018] * 150, *[0.024] * 60, 0.2, 1.35, 61).status(),
    spread=0.4127,
    td_error=1.0483,
    loss=0.000_831,
    events=(
        Event("2026-03-14T09:26:53Z", "warning", "university-hospital-east: no heartbeat for 30 s"),
        Event("2026-03-14T09:20:11Z", "warning", "north-clinic: quarantined after 5 refused"),
        Event("2026-03-14T08:01:07Z", "info", "riverside: back, resumed at round 12"),
        Event("2026-03-14T07:58:40Z", "info", "learning began with 5 members"),
    ),
    software="fedhql 0.1.0",
    time="2026-03-14T09:27:00+00:00",
    members_expected=5,
    exchange_deadline_seconds=30.0,
)
# All that an operator may have to act on: a member that is late and waited for, one that is
# quarantined, and one that never came.
LATE = MemberStatus(
    "lakeside",
    "late",
    own_env_steps=40_950,
    late_answers=2,
    unanswered_questions=3,
    missed_phases=1,
    replaced_connections=2,
    late_with="an answer",
    waited_for_since="2026-03-14T09:25:10+00:00",
    last_heard="2026-03-14T09:24:52+00:00",
    address="ipv4:192.0.2.7:52114",
    software="fedhql 0.1.0",
    protocol="1.1",
    certificate_expires="2026-04-01T12:00:00+00:00",
)
TROUBLED = replace(
    STATUS,
    members=(
        replace(
            STATUS.members[0],
            last_heard="2026-03-14T09:26:57+00:00",
            address="ipv6:[2001:db8::1]:40022",
            software="other 2",
            protocol="1.0",
            certificate_expires="2027-03-14T12:00:00+00:00",
        ),
        LATE,
        replace(STATUS.members[2], quarantined="a value above 1e+06"),
        MemberStatus("hill", "never came"),
    ),
    members_expected=4,
    waiting=WaitStatus("self-learning", ["lakeside"], "2026-03-14T09:25:10+00:00", 110.0),
    refused_connections={"not_listed": 3, "certificate": 1},
)
EMPTY = replace(
    STATUS,
    stage="waiting for members",
    round=0,
    members=(),
    members_expected=0,
    events=(),
    exchanges=latencies().status(),
    spread=None,
    td_error=None,
    loss=None,
)


@dataclass
class Federation:
    """A federation whose status the tests set."""

    status: FederationStatus = STATUS

    def snapshot(self) -> FederationStatus:
        return self.status


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation()


@pytest.fixture(scope="module")
def observation(federation: Federation) -> Iterator[Observation]:
    with closing(Observation(federation.snapshot, "127.0.0.1", 0)) as serving:
        yield serving


@pytest.fixture(autouse=True)
def _as_it_was(federation: Federation) -> None:
    federation.status = STATUS


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    code: int
    headers: dict[str, str]
    body: str


def ask(
    observation: Observation, path: str, method: str = "GET", at: str = "127.0.0.1", **headers: str
) -> Answer:
    with closing(HTTPConnection(at, observation.port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read().decode())


def forbid(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_json_is_the_snapshot(observation: Observation) -> None:
    answer = ask(observation, "/status.json")
    assert answer.code == 200
    assert answer.headers["Content-Type"] == "application/json"
    given = json.loads(answer.body, parse_constant=forbid)
    expected = json.loads(json.dumps(asdict(STATUS)))
    expected["exchanges"]["buckets"][-1][0] = "+Inf"
    assert given == expected
    assert given["exchanges"]["buckets"][-1] == ["+Inf", 213]


def test_infinite_and_nan_values_give_valid_json(
    observation: Observation, federation: Federation
) -> None:
    federation.status = replace(STATUS, loss=math.nan, td_error=-math.inf)
    given = json.loads(ask(observation, "/status.json").body, parse_constant=forbid)
    assert (given["loss"], given["td_error"]) == ("NaN", "-Inf")


def samples(text: str, parse: Callable[[str], Any]) -> dict[tuple[str, str], float]:
    """Return the samples by name and labels."""
    found: dict[tuple[str, str], float] = {}
    for family in parse(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, ",".join(value for _, value in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


@pytest.mark.parametrize(
    ("accept", "parse"),
    [("", parse_plain), ("application/openmetrics-text; version=1.0.0", parse_open)],
)
def test_the_metrics_are_the_snapshot(
    accept: str, parse: Callable[[str], Any], observation: Observation, federation: Federation
) -> None:
    nasty = MemberStatus(f'{NASTY}"\\\n', *STATUS_OF_NASTY)
    federation.status = replace(TROUBLED, members=(*TROUBLED.members, nasty))
    answer = ask(observation, "/metrics", Accept=accept)
    assert answer.code == 200
    assert answer.headers["Content-Type"].startswith(accept.partition(";")[0] or "text/plain")
    found = samples(answer.body, parse)
    status = federation.status
    buckets = {
        ("fedhql_exchange_duration_seconds_bucket", str(float(bound)).replace("inf", "+Inf")): count
        for bound, count in status.exchanges.buckets
    }
    assert len(buckets) == 16
    members = {
        (f"fedhql_member_{name}", member.name): value
        for member in status.members
        for name, value in (
            ("connected", member.state == "connected"),
            ("late", member.state == "late"),
            ("away", member.state == "away"),
            ("never_came", member.state == "never came"),
            ("quarantined", member.state == "quarantined"),
            ("finished", member.state == "finished"),
            ("own_env_steps", member.own_env_steps),
            ("consumed_env_steps", member.consumed_env_steps),
            ("applied_improvements", member.applied_improvements),
            ("skipped_improvements_total", member.skipped_improvements),
            ("refused_answers_total", member.refused_answers),
            ("late_answers_total", member.late_answers),
            ("unanswered_questions_total", member.unanswered_questions),
            ("missed_phases_total", member.missed_phases),
            ("reconnects_total", member.reconnects),
            ("replaced_connections_total", member.replaced_connections),
        )
    }
    refused = {
        ("fedhql_refused_connections_total", Cause.Name(cause).lower()): 0.0
        for cause in REFUSAL_CAUSES
    }
    assert found == buckets | members | refused | {
        ("fedhql_refused_connections_total", "not_listed"): 3,
        ("fedhql_refused_connections_total", "certificate"): 1,
        ("fedhql_members_expected", ""): 4,
        ("fedhql_members_connected", ""): 2,
        ("fedhql_waiting_seconds", ""): 110,
        ("fedhql_exchange_deadline_seconds", ""): 30,
        ("fedhql_member_last_heard_timestamp_seconds", "st-mary"): 1_773_480_417,
        ("fedhql_member_last_heard_timestamp_seconds", "lakeside"): 1_773_480_292,
        ("fedhql_member_certificate_expiry_timestamp_seconds", "st-mary"): 1_805_025_600,
        ("fedhql_member_certificate_expiry_timestamp_seconds", "lakeside"): 1_775_044_800,
        ("fedhql_member_info", "st-mary,1.0,other 2"): 1,
        ("fedhql_member_info", "lakeside,1.1,fedhql 0.1.0"): 1,
        ("fedhql_federation_info", "CartPole-v1,hospitals-7f3a91c2,rounds,fedhql 0.1.0"): 1,
        ("fedhql_round", ""): 214,
        ("fedhql_improvements_total", ""): 1_070,
        ("fedhql_quorum_members", ""): 3,
        ("fedhql_env_steps_per_member", ""): 100_000,
        ("fedhql_server_env_steps_total", ""): 21_400,
        ("fedhql_uptime_seconds", ""): 11_530.4,
        ("fedhql_q_spread", ""): 0.4127,
        ("fedhql_td_error", ""): 1.0483,
        ("fedhql_loss", ""): 0.000_831,
        ("fedhql_exchange_duration_seconds_count", ""): 213,
        ("fedhql_exchange_duration_seconds_sum", ""): STATUS.exchanges.total_seconds,
    }


def test_an_unknown_value_is_not_exported_as_a_metric(
    observation: Observation, federation: Federation
) -> None:
    federation.status = EMPTY
    found = samples(ask(observation, "/metrics").body, parse_plain)
    names = {name for name, _ in found}
    assert not {"fedhql_q_spread", "fedhql_td_error", "fedhql_loss"} & names
    assert found["fedhql_exchange_duration_seconds_count", ""] == 0
    # An alert can compare these before anybody has joined.
    assert (found["fedhql_members_connected", ""], found["fedhql_quorum_members", ""]) == (0, 3)


@pytest.mark.parametrize(("seconds", "shown"), [(1.9, 0), (2.0, 2)])
def test_a_short_wait_is_not_exported(
    seconds: float, shown: float, observation: Observation, federation: Federation
) -> None:
    waiting = replace(TROUBLED, waiting=WaitStatus("answers", ["lakeside"], "", seconds))
    federation.status = waiting
    found = samples(ask(observation, "/metrics").body, parse_plain)
    assert found["fedhql_waiting_seconds", ""] == shown


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/nowhere"])
def test_every_response_has_security_headers(path: str, observation: Observation) -> None:
    answer = ask(observation, path)
    assert answer.code == (404 if path == "/nowhere" else 200)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for inline in ("script-src", "style-src"):
        assert policy[inline].startswith("'sha256-")
    assert not {"unsafe-inline", "http:", "https:", "*"} & set(
        str(policy).replace("'", " ").split()
    )


@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics"])
def test_a_head_request_gets_only_the_headers(path: str, observation: Observation) -> None:
    head, get = ask(observation, path, "HEAD"), ask(observation, path)
    assert head.code == 200
    assert head.body == ""
    assert head.headers["Content-Length"] == get.headers["Content-Length"]
    assert head.headers["Content-Length"] == str(len(get.body.encode()))


@pytest.mark.parametrize("path", ["/favicon.ico", "/status.json/", "/../status.json", "/Metrics"])
def test_other_paths_are_not_found(path: str, observation: Observation) -> None:
    assert ask(observation, path).code == 404


def test_a_query_string_is_ignored(observation: Observation) -> None:
    assert ask(observation, "/?a=b").body == ask(observation, "/").body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/status.json"])
def test_only_get_and_head_are_allowed(method: str, path: str, observation: Observation) -> None:
    answer = ask(observation, path, method)
    assert answer.code == 405
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.3.2.1:80", "[::1]", "[::1]:8080"]
)
def test_requests_for_this_machine_are_answered(host: str, observation: Observation) -> None:
    assert ask(observation, "/status.json", Host=host).code == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.0.2.7",
        "0.0.0.0",
        "[::2]:8080",
        "[localhost]",
        "localhost:80:80",
        "evil.example@localhost",
        "localhost, evil.example",
    ],
)
@pytest.mark.parametrize("path", ["/", "/status.json", "/metrics", "/nowhere"])
def test_requests_for_other_hosts_are_refused(
    host: str, path: str, observation: Observation
) -> None:
    answer = ask(observation, path, Host=host)
    assert answer.code == 403
    assert "CartPole" not in answer.body


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_a_server_on_all_addresses_accepts_any_address_but_no_foreign_name(host: str) -> None:
    with closing(Observation(Federation().snapshot, host, 0)) as observation:
        assert ask(observation, "/", Host="192.0.2.7:8080").code == 200
        assert ask(observation, "/", Host="evil.example").code == 403


def test_the_page_is_served_over_ipv6() -> None:
    try:
        observation = Observation(Federation().snapshot, "::1", 0)
    except SettingsError:
        pytest.skip("this machine has no IPv6")
    with closing(observation):
        assert ask(observation, "/status.json", at="::1").code == 200
        assert ask(observation, "/status.json", at="::1", Host="evil.example").code == 403


def test_a_closed_server_stops_listening_and_can_be_closed_again() -> None:
    observation = Observation(Federation().snapshot, "127.0.0.1", 0)
    assert ask(observation, "/").code == 200
    observation.close()
    with pytest.raises(ConnectionRefusedError):
        ask(observation, "/")
    observation.close()


def test_a_silent_client_does_not_block_others(observation: Observation) -> None:
    with closing(socket.create_connection(("127.0.0.1", observation.port))):
        assert ask(observation, "/status.json").code == 200


def test_requests_print_nothing_on_the_terminal(
    observation: Observation, capfd: pytest.CaptureFixture[str]
) -> None:
    ask(observation, "/")
    ask(observation, "/nowhere")
    with closing(socket.create_connection(("127.0.0.1", observation.port))) as rude:
        rude.sendall(b"nonsense\r\n\r\n")
        assert rude.recv(10)
    assert capfd.readouterr() == ("", "")


def test_an_unusable_port_is_reported_in_one_line(observation: Observation) -> None:
    with pytest.raises(SettingsError, match=rf"^cannot listen on 127.0.0.1:{observation.port}: "):
        Observation(Federation().snapshot, "127.0.0.1", observation.port)
    with pytest.raises(SettingsError, match=r"^cannot listen on 127.0.0.1:70000: "):
        Observation(Federation().snapshot, "127.0.0.1", 70_000)


def test_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"^fedhql serve --http needs .*fedhql\[remote\]"):
        Observation(Federation().snapshot, "127.0.0.1", 0)


@pytest.fixture(scope="module", name="chromium")
def _chromium() -> Iterator[webdriver.Chrome]:
    with chromium() as driver:
        yield driver


def complaints(browser: webdriver.Chrome) -> list[str]:
    log: list[dict[str, Any]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture
def browser(chromium: webdriver.Chrome, observation: Observation) -> Iterator[webdriver.Chrome]:
    """Return the browser with the page open."""
    look_at(chromium, 1280, "light")
    chromium.get(f"http://127.0.0.1:{observation.port}/")
    until(chromium, lambda: text(chromium, "environment") == "CartPole-v1")
    yield chromium
    assert complaints(chromium) == []
    chromium.get("about:blank")


def look_at(browser: webdriver.Chrome, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(browser: webdriver.Chrome, condition: Callable[[], bool]) -> None:
    WebDriverWait(browser, 20, 0.1).until(lambda _: condition())


def text(browser: webdriver.Chrome, element_id: str) -> str:
    return browser.find_element(By.ID, element_id).text


def rows(browser: webdriver.Chrome, element_id: str, cells: str) -> list[list[str]]:
    return browser.execute_script(
        """const [id, cells] = arguments;
        const rows = [...document.getElementById(id).children].filter(row => !row.matches("thead"));
        return rows.map(row =>
          [...row.querySelectorAll(cells)].map(cell => cell.innerText.trim()));""",
        element_id,
        cells,
    )


def test_the_page_shows_the_snapshot(browser: webdriver.Chrome) -> None:
    assert browser.title == "CartPole-v1, hospitals-7f3a91c2 – FedHQL"
    shown = {
        element_id: text(browser, element_id)
        for element_id in (
            "federation",
            "stage",
            "round",
            "mode",
            "uptime",
            "connected",
            "quorum-note",
        )
    }
    assert shown == {
        "federation": "Federation hospitals-7f3a91c2",
        "stage": "federating",
        "round": "round 214",
        "mode": "in rounds",
        "uptime": "up 3 h 12 min",
        "connected": "3 of 5",
        "quorum-note": "quorum of 3",
    }
    figures = ("p50", "p99", "spread", "td-error", "loss", "improvements", "server-steps", "budget")
    assert [text(browser, element_id) for element_id in figures] == [
        "18.0 ms",
        "179 ms",  # of 213 values; 88 % of the way from the 210th, 24 ms, to the 211th, 200 ms
        "0.4127",
        "1.048",
        "8.31e-4",
        "1,070",
        "21,400",
        "100,000",
    ]
    members = rows(browser, "members", "th, .chip, .words, .number")
    assert members[2] == [
        "north-clinic",
        "quarantined",
        "18,300 own, 20,141 consumed",
        *("88", "1", "5", "0", "0", "0", "0"),
    ]
    assert [row[:2] for row in members] == [[each.name, each.state] for each in STATUS.members]
    events = rows(browser, "events", "time, .level, .text")
    assert [row[1:] for row in events] == [
        [event.level.replace("info", ""), event.text] for event in STATUS.events
    ]
    stamps = [each.get_attribute("datetime") for each in browser.find_elements(By.TAG_NAME, "time")]
    assert stamps == [event.time for event in STATUS.events]
    assert all(len(row[0]) == len("2026-03-14 09:26:53") for row in events)


def test_the_page_shows_who_is_missing_waited_for_and_quarantined(
    browser: webdriver.Chrome, federation: Federation
) -> None:
    assert text(browser, "waiting") == text(browser, "refused") == ""
    federation.status = TROUBLED
    until(browser, lambda: text(browser, "connected") == "1 of 4")
    # The page uses the time zone of its reader.
    since = browser.execute_script(f"return moment('{LATE.waited_for_since}')")
    assert text(browser, "waiting") == f"waiting for lakeside since {since} (self-learning)"
    members = rows(browser, "members", "th, .chip, .number")
    assert members[1] == ["lakeside", "late", "0", "0", "0", "2", "3", "1", "0"]
    assert members[3][:2] == ["hill", "never came"]
    assert rows(browser, "members", ".details span") == [
        [
            "from ipv6:[2001:db8::1]:40022",
            "other 2, protocol 1.0",
            "last heard 3 s ago",
            "certificate valid until 2027-03-14",
        ],
        [
            "late with an answer",
            "connections replaced: 2",
            "from ipv4:192.0.2.7:52114",
            "fedhql 0.1.0, protocol 1.1",
            "last heard 2 min 8 s ago",
            "certificate valid until 2026-04-01",
        ],
        ["quarantined: a value above 1e+06"],
        ["listed, but it has never connected"],
    ]
    assert rows(browser, "members", ".warned") == [
        [],
        ["late with an answer", "connections replaced: 2", "certificate valid until 2026-04-01"],
        ["quarantined: a value above 1e+06"],
        [],
    ]
    assert text(browser, "refused") == "Refused connections: 3 not_listed, 1 certificate"
    federation.status = STATUS
    until(browser, lambda: text(browser, "connected") == "3 of 5")
    assert text(browser, "waiting") == text(browser, "refused") == ""


@pytest.mark.parametrize(("seconds", "shown"), [(1.9, False), (2.0, True)])
def test_the_page_shows_a_wait_after_two_seconds(
    seconds: float, shown: bool, browser: webdriver.Chrome, federation: Federation
) -> None:
    waiting = WaitStatus("2 members are needed", [], "2026-03-14T09:26:58+00:00", seconds)
    federation.status = replace(STATUS, round=7, waiting=waiting)
    until(browser, lambda: text(browser, "round") == "round 7")
    line = text(browser, "waiting")
    assert line.startswith("waiting for members since ") == shown
    assert line.endswith("(2 members are needed)") == shown


def test_bars_show_shares_of_the_budget(browser: webdriver.Chrome) -> None:
    widths = browser.execute_script(
        """return [...document.querySelectorAll(".bar")].map(bar => ["own", "consumed"].map(kind =>
          bar.querySelector("." + kind).getBoundingClientRect().width
          / bar.getBoundingClientRect().width));"""
    )
    for (own, consumed), member in zip(widths, STATUS.members, strict=True):
        assert own == pytest.approx(member.own_env_steps / 100_000, abs=0.01)
        assert consumed == pytest.approx(member.consumed_env_steps / 100_000, abs=0.01)


def test_the_page_follows_the_status(browser: webdriver.Chrome, federation: Federation) -> None:
    first = MemberStatus("newcomer", "finished", 100_000, 200_000.0, 9, 0, 0, 0, 0)
    federation.status = replace(
        STATUS,
        stage="evaluating",
        round=215,
        members=(first, *STATUS.members[:2]),
        loss=math.inf,
        events=(Event("2026-03-14T10:00:00Z", "info", "newcomer: joined"), *STATUS.events),
    )
    until(browser, lambda: text(browser, "round") == "round 215")
    assert text(browser, "stage") == "evaluating"
    assert text(browser, "loss") == "+Inf"
    names = [row[0] for row in rows(browser, "members", "th")]
    assert names == ["newcomer", "st-mary", "lakeside"]
    assert rows(browser, "events", ".text")[0] == ["newcomer: joined"]
    bar = browser.find_element(By.CSS_SELECTOR, ".bar")
    assert bar.find_element(By.CLASS_NAME, "consumed").size["width"] == bar.size["width"]
    federation.status = STATUS
    until(browser, lambda: text(browser, "round") == "round 214")
    assert len(rows(browser, "members", "th")) == 5


def test_the_page_shows_a_federation_without_members(
    browser: webdriver.Chrome, federation: Federation
) -> None:
    federation.status = EMPTY
    until(browser, lambda: text(browser, "stage") == "waiting for members")
    for element_id in ("p50", "p99", "spread", "td-error", "loss"):
        assert text(browser, element_id) == "–"
    assert text(browser, "no-members") == "No member has joined yet."
    assert text(browser, "no-events") == "No events yet."


def test_names_and_events_are_shown_as_text(
    browser: webdriver.Chrome, federation: Federation
) -> None:
    keys = ("address", "software", "protocol", "late_with", "quarantined", "last_heard",
            "certificate_expires")  # fmt: skip
    details: dict[str, Any] = dict.fromkeys(keys, NASTY)
    federation.status = replace(
        STATUS,
        federation=NASTY,
        environment=NASTY,
        stage=NASTY,
        software=NASTY,
        members=(MemberStatus(NASTY, *STATUS_OF_NASTY), replace(LATE, state=NASTY, **details)),
        events=(Event(NASTY, NASTY, NASTY),),
        waiting=WaitStatus(NASTY, [NASTY], NASTY, 9.0),
        refused_connections={NASTY: 1},
    )
    until(browser, lambda: text(browser, "environment") == NASTY)
    assert rows(browser, "members", ".name") == [[NASTY], ["lakeside"]]
    assert rows(browser, "members", ".chip")[1] == [NASTY]
    said = " ".join(rows(browser, "members", ".details span")[1])
    assert said.count(NASTY) == len(keys)
    assert text(browser, "waiting") == f"waiting for {NASTY} since {NASTY} ({NASTY})"
    assert text(browser, "refused") == f"Refused connections: 1 {NASTY}"
    assert rows(browser, "events", "time, .level, .text") == [[NASTY, NASTY, NASTY]]
    assert browser.title.startswith(NASTY)
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_page_warns_about_too_few_members(
    browser: webdriver.Chrome, federation: Federation
) -> None:
    colour = "return getComputedStyle(document.getElementById('connected')).color"
    before = browser.execute_script(colour)
    federation.status = replace(STATUS, quorum=4)
    until(browser, lambda: text(browser, "quorum-note") == "▲ below the quorum of 4")
    assert browser.execute_script(colour) != before
    federation.status = replace(STATUS, quorum=4, stage="finished")
    until(browser, lambda: text(browser, "quorum-note") == "quorum of 4")
    assert browser.execute_script(colour) == before


def test_the_page_cannot_fetch_from_another_origin(chromium: webdriver.Chrome) -> None:
    with (
        closing(Observation(Federation().snapshot, "127.0.0.1", 0)) as ours,
        closing(Observation(Federation().snapshot, "127.0.0.1", 0)) as other,
    ):
        chromium.get(f"http://127.0.0.1:{ours.port}/")
        refused = chromium.execute_async_script(
            """const done = arguments[1];
            addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
            fetch(arguments[0], {mode: "no-cors"}).then(() => done("fetched"), () => {});""",
            f"http://127.0.0.1:{other.port}/status.json",
        )
        chromium.get("about:blank")
    complaints(chromium)
    assert refused == "connect-src"


def test_the_page_shows_when_the_server_does_not_answer(chromium: webdriver.Chrome) -> None:
    federation = Federation()
    observation = Observation(federation.snapshot, "127.0.0.1", 0)
    chromium.get(f"http://127.0.0.1:{observation.port}/")
    until(chromium, lambda: text(chromium, "environment") == "CartPole-v1")
    assert text(chromium, "silence") == ""
    assert complaints(chromium) == []
    observation.close()
    until(chromium, lambda: text(chromium, "silence") != "")
    since = text(chromium, "silence").removeprefix("no answer from the server since ")
    assert [len(part) for part in since.split(":")] == [2, 2, 2]
    federation.status = replace(STATUS, round=300)
    with closing(Observation(federation.snapshot, "127.0.0.1", observation.port)):
        until(chromium, lambda: text(chromium, "round") == "round 300")
        assert text(chromium, "silence") == ""
        chromium.get("about:blank")
    complaints(chromium)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1201, 1200, 1001, 600, 390, 320])
def test_no_element_overflows_the_page(
    width: int, scheme: str, browser: webdriver.Chrome, federation: Federation
) -> None:
    look_at(browser, width, scheme)
    long = replace(LATE, name="m" * 80, late_with="l" * 80, software="s" * 100)
    members = (*STATUS.members, *TROUBLED.members, long)
    federation.status = replace(TROUBLED, members=members)
    until(browser, lambda: len(rows(browser, "members", "th")) == len(members))
    root = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    wanted, given = browser.execute_script(root)
    assert wanted == given
    outside = browser.execute_script(
        """return [...document.querySelectorAll("main *")]
          .filter(each => !each.closest("thead") && each.getClientRects().length)
          .filter(each => {
            const box = each.getBoundingClientRect();
            return box.left < 0 || box.right > innerWidth || each.scrollWidth > each.clientWidth + 1
              && getComputedStyle(each).display !== "inline";
          }).map(each => each.outerHTML);"""
    )
    assert outside == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(
    scheme: str, browser: webdriver.Chrome, federation: Federation
) -> None:
    look_at(browser, 1280, scheme)
    federation.status = TROUBLED
    until(browser, lambda: text(browser, "connected") == "1 of 4")
    weakest = browser.execute_script(
        """const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
        const light = (...layers) => {
          for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
          const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (element) => element
          ? [...behind(element.parentElement), getComputedStyle(element).backgroundColor] : [];
        document.getElementById("quorum").classList.add("warning");
        document.getElementById("silence").hidden = false;
        document.getElementById("silence").textContent = "no answer";
        return Math.min(...[...document.querySelectorAll("body *")]
          .filter(each => each.getClientRects().length)
          .filter(each => [...each.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
          .map(each => {
            const [a, b] = [light(...behind(each), getComputedStyle(each).color),
                            light(...behind(each))].sort((a, b) => b - a);
            return (a + 0.05) / (b + 0.05);
          }));"""
    )
    assert weakest >= 4.5
