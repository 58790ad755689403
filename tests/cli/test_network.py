"""serve, join and status: refused arguments, printed output and logs."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from fedhql.cli import network
from fedhql.cli.main import app
from fedhql.errors import MemberRefused, SettingsError
from fedhql.remote.server.status import (
    Event,
    FederationStatus,
    LatencyRecord,
    MemberStatus,
    printable,
)
from fedhql.service.status_page import Observation, status_json
from tests.cli.running import fedhql
from tests.remote.federating import federation, members_of, serving
from tests.service.test_status_page import TROUBLED

FORGED = "[/x]\nall is well\x1b[2J"


@pytest.mark.parametrize(
    "address", ["127.evil.example.org:7443", "localhost.evil.example:1", "::1234:7443"]
)
def test_without_certificates_a_member_connects_only_to_its_own_machine(
    address: str, tmp_path: Path
) -> None:
    arguments = ("join", address, "--as", "ann", "--agent", "tabular", "--insecure")
    done = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path / "ann")])
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception) == f"--insecure {address}: allowed: this machine (127.0.0.1, [::1])"


@pytest.mark.parametrize("name", ["consensus", "All", "policy.json", ".ann"])
def test_a_member_whose_agent_could_not_be_loaded_by_its_name_does_not_join(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("join", "127.0.0.1:1", "--as", name, "--agent", "tabular", "--insecure")
    done = CliRunner().invoke(app, [*arguments, "--give-up-after", "0"])
    assert isinstance(done.exception, SettingsError)
    assert str(done.exception).startswith(f"--as {name}: allowed: 1 to 64 letters")
    assert str(done.exception).endswith("reserved: 'consensus', 'all', 'policy.json'")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ("broken:A", "line 1: invalid syntax: class A(:"),
        ("nomod:A", "no module 'nomod'"),
        ("mine:Tabb", "mine has no 'Tabb'"),
        ("mine:Tab", "unexpected keyword argument 'lrr'"),
    ],
)
def test_an_agent_that_cannot_be_built_is_refused_before_a_server_answers(
    agent: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("class A(:")
    (tmp_path / "mine.py").write_text(
        "class Tab:\n    def __init__(self, seed, env_id, lr=0.1): pass\n"
    )
    arguments = ("join", "127.0.0.1:1", "--as", "ann", "--agent", agent, "--set", "lrr=0.2")
    done = fedhql(*arguments, "--insecure", "--give-up-after", 0, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert reason in done.stderr


def test_a_missing_certificate_names_those_that_are_there_and_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("init", "issue north", "issue south"):
        assert CliRunner().invoke(app, ["certs", *command.split()]).exit_code == 0

    def told(*options: str) -> str:
        arguments = ("join", "127.0.0.1:1", "--agent", "tabular", "--home", "home", *options)
        return str(CliRunner().invoke(app, arguments).exception)

    wrong, *others = told("--as", "nort").split("; ")
    assert wrong == "certs/nort.crt cannot be read: No such file or directory"
    assert others == [
        "certs has certificates of north, south",
        "--certs DIR names another folder",
        "the federation's operator makes the files with `fedhql certs issue nort`",
    ]
    wrong, *others = told("--as", "server", "--certs", "no where").split("; ")
    assert wrong == "no where/ca.crt cannot be read: No such file or directory"
    home = "--home 'no where'"
    init, issue = f"fedhql certs init {home}", f"fedhql certs issue server --host HOST {home}"
    assert others == [
        "no where has no certificates",
        "--certs DIR names another folder",
        f"the federation's operator makes the files with `{init}` and `{issue}`",
    ]


@pytest.mark.parametrize("busy", ["--http", "--listen"])
def test_a_port_in_use_is_reported_in_one_line_before_members_can_join(
    busy: str, tmp_path: Path
) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(federation())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--http": 0, "--listen": 0, busy: taken.getsockname()[1]}
        options = [part for name, n in ports.items() for part in (name, f"127.0.0.1:{n}")]
        done = fedhql("serve", file, "--home", tmp_path / "fed", "--insecure", *options)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "status page:" not in line]
    ours = [line for line in lines if line.startswith("fedhql: error:")]
    assert len(ours) == 1
    assert f"127.0.0.1:{ports[busy]}" in ours[0]
    assert "Traceback" not in done.stderr
    assert "listens on port" not in done.stderr


def test_status_prints_names_and_events_as_plain_text() -> None:
    status = FederationStatus(
        federation="f00",
        environment="[/CartPole]",
        mode="rounds",
        stage="learning",
        round=1,
        improvements=0,
        quorum=2,
        env_steps_per_member=100,
        server_env_steps=0,
        uptime_seconds=1.0,
        members=(MemberStatus(FORGED, "connected", 1, 1.0, 0, 0, 0, 0, 0),),
        exchanges=LatencyRecord().status(),
        spread=None,
        td_error=None,
        loss=None,
        events=(Event("2026-03-14T09:26:53Z", "info", FORGED),),
    )
    with closing(Observation(lambda: status, "127.0.0.1", 0)) as page:
        done = CliRunner().invoke(app, ["status", f"127.0.0.1:{page.port}"])
    assert done.exit_code == 0, done.exception
    assert "[/CartPole], federation f00: learning, round 1" in done.stdout
    assert r"[/x]\nall is well\x1b[2J" in done.stdout
    assert r"2026-03-14T09:26:53Z [/x]\nall is well\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout


def test_status_fits_into_80_columns() -> None:
    with closing(Observation(lambda: TROUBLED, "127.0.0.1", 0)) as page:
        at = f"127.0.0.1:{page.port}"
        done = CliRunner().invoke(app, ["status", at], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.exception
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    cells = [line.split() for line in lines]
    assert ["member", "state", "last", "heard", "own", "steps", "consumed", "applied"] in cells
    assert ["st-mary", "connected", "3", "s", "ago", "41,200", "45,480", "214"] in cells
    assert ["lakeside", "late", "2", "min", "ago", "40,950", "0", "0"] in cells
    assert ["hill", "never", "came", "0", "0", "0"] in cells
    assert ["connected", "address", "software", "protocol", "certificate", "until"] in cells
    assert ["lakeside", "ipv4:192.0.2.7:52114", "fedhql", "0.1.0", "1.1", "2026-04-01"] in cells
    tables = [line for line in lines if line.startswith(" ")]
    assert all(len(line) <= 80 for line in tables)
    assert not any("…" in line for line in tables)
    since = "2026-03-14T09:25:10+00:00"
    for line in (
        f"waiting for lakeside since {since} (self-learning)",
        "members connected: 1 of 4; the quorum is 3",
        "refused connections: 3 not_listed, 1 certificate",
        "north-clinic: quarantined: a value above 1e+06; skipped improvements: 1, "
        "refused answers: 5",
        "lakeside: late with an answer; late answers: 2, unanswered questions: 3, "
        "missed phases: 1, replaced connections: 2",
    ):
        assert line in lines


def test_status_does_not_show_a_short_wait_and_reads_an_older_server() -> None:
    assert TROUBLED.waiting is not None
    short = replace(TROUBLED, waiting=replace(TROUBLED.waiting, seconds=1.9))
    with closing(Observation(lambda: short, "127.0.0.1", 0)) as page:
        done = CliRunner().invoke(app, ["status", f"127.0.0.1:{page.port}"])
    assert "waiting for" not in done.stdout
    older = json.loads(status_json(TROUBLED))
    for key in ("waiting", "refused_connections", "software", "time", "members_expected"):
        del older[key]
    older["members"] = [dict(list(each.items())[:9]) for each in older["members"]]
    with (
        patch("fedhql.service.status_page.status_json", lambda _: json.dumps(older)),
        closing(Observation(lambda: TROUBLED, "127.0.0.1", 0)) as page,
    ):
        done = CliRunner().invoke(app, ["status", f"127.0.0.1:{page.port}"])
    assert done.exit_code == 0, done.exception
    assert "never came" in done.stdout


def test_status_of_a_home_shows_who_never_came_and_why_the_server_stopped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = federation(100_000, start_with=2, quorum=2, members=["ann", "bob", "cyd"])

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            members.join("bob")
            await server.reach(lambda: server.roster.improvements > 0)
            found = server.service.status("f00")
            assert [member.state for member in found.members].count("connected") == 2
            assert (found.members_expected, found.members[-1].state) == (3, "never came")
            assert found.members[0].software.startswith("fedhql ")
            said = [event.text for event in found.events]
            assert "begins without cyd: listed, but never connected" in said
            assert any(
                each.startswith("ann connected from ipv4:127.0.0.1:")
                and each.endswith(f"({found.members[0].software}, protocol 1.2)")
                for each in said
            )

    asyncio.run(run())
    done = CliRunner().invoke(app, ["status", str(home)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.exception
    assert ": stopped at 2" in done.stdout
    assert ": by its operator; " in done.stdout
    cells = [line.split() for line in done.stdout.splitlines()]
    assert ["cyd", "never", "came", "0", "0", "0"] in cells
    ann = next(each for each in cells if each[:2] == ["ann", "away"])
    assert ann[3:5] == ["s", "ago"]


def test_printable_truncates_and_escapes_text() -> None:
    assert printable("ä λ [x]") == "ä λ [x]"
    assert printable("a\nb\x1b\u202e\x9b") == r"a\nb\x1b\u202e\x9b"
    assert printable("abcdef", 3) == "abc"


def test_a_refusal_from_the_server_is_escaped() -> None:
    async def refused() -> None:
        raise MemberRefused(f"the server refuses ann: {FORGED}")

    with pytest.raises(MemberRefused) as found:
        network._run_until_stopped(refused())
    assert str(found.value) == r"the server refuses ann: [/x]\nall is well\x1b[2J"


LOGGING = f"""
import asyncio, logging, warnings
from fedhql.cli.network import _log_to_stderr

_log_to_stderr(%r)
logging.getLogger("fedhql.remote").info({FORGED!r})
logging.getLogger("elsewhere").info("nobody asked")
warnings.warn("an old function")
async def fail():
    asyncio.get_running_loop().create_task(lost())
    await asyncio.sleep(0)
async def lost():
    raise ZeroDivisionError("of asyncio's")
asyncio.run(fail())
"""


def logged(as_json: bool) -> list[str]:
    command = [sys.executable, "-c", LOGGING % as_json]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()


def test_every_line_of_a_json_log_is_json() -> None:
    ours, warning, lost = (json.loads(line) for line in logged(as_json=True))
    assert (ours["level"], ours["text"]) == ("info", FORGED)
    assert "an old function" in warning["text"]
    assert "never retrieved" in lost["text"]
    assert "ZeroDivisionError: of asyncio's" in lost["traceback"]


def test_a_message_is_one_line_in_a_plain_log() -> None:
    ours, warning, lost, *traceback = logged(as_json=False)
    assert ours.endswith(r"INFO [/x]\nall is well\x1b[2J")
    assert "an old function" in warning
    assert "never retrieved" in lost
    assert traceback[-1] == "ZeroDivisionError: of asyncio's"
