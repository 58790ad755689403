"""Real processes: `kill -9` at any moment, and the commands of an operator."""

import re
import signal
from pathlib import Path

from typer.testing import CliRunner

from fedhql.cli.main import app
from tests.cli.running import fedhql
from tests.remote.authority import Authority
from tests.remote.federating import accounts, assert_finished, broadcast, fact, federation
from tests.remote.processes import processes

NAMES = ("ann", "bob", "cyd")
BUDGET = 182  # seven rounds with two members


def test_a_federation_survives_a_killed_server_and_a_killed_member(
    tmp_path: Path,
) -> None:
    text = federation(BUDGET)
    with processes(tmp_path, text) as running:
        running.serve()
        for name in ("ann", "bob"):
            running.join(name, improve_seconds=0.06, learn_seconds=0.06, answer_seconds=0.01)
        running.until_improvements(4)
        stages = ("learn", "federate")
        for stage in stages:
            running.until_stage(stage)
            running.kill("server")
            running.serve()
            running.until_improvements(2)
        running.until_improvements(1)  # sent with the next order; applying it takes 0.06 s
        running.kill("ann")
        running.join("ann")
        running.finish()
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), BUDGET, killed=("ann",))
    assert fact(tmp_path / "home", "epoch") == 1 + len(stages)
    assert accounts(tmp_path / "home")["bob"].connections == 1 + len(stages)
    assert len(broadcast(tmp_path / "home")) == 21  # no member was left out, so no step was lost


def test_operator_commands_work_in_a_federation_with_certificates(tmp_path: Path) -> None:
    """Quarantine and release, an interrupt, a revoked certificate, and `fedhql status`."""
    authority = Authority(tmp_path / "certs")
    authority.make("server", hosts=("127.0.0.1",))
    for name in (*NAMES, "eve"):
        authority.make(name)
    authority.revoke("eve")
    # Long enough for a member that pauses between retries to come back before the end.
    text = federation(3 * BUDGET, return_seconds=40, learning_deadline_seconds=2)
    with processes(tmp_path, text, certificates=authority.home) as running:
        running.serve()
        running.join("ann", learn_seconds=0.15)
        running.join("bob", learn_seconds=0.15)
        running.join("cyd", garbage="large", garbage_after=3)
        running.join("eve")
        assert running.running.pop("cyd").wait(60) == 2
        assert "refuses cyd: quarantined" in running.log("cyd")
        assert running.running.pop("eve").wait(60) == 2
        assert "is revoked" in running.log("eve")
        running.until(lambda: "ann: joined" in running.log("ann"), "ann")
        assert running.interrupt("ann", signal.SIGTERM) == 130
        assert "says goodbye: its owner stops it" in running.log("server")
        assert running.interrupt("server") == 0
        status = CliRunner().invoke(app, ["status", str(tmp_path / "home")]).stdout
        assert re.match(
            r"federation \w+: stopped at \S+: by its operator; \w+, round \d+, "
            r"\d+ improvements in all rounds\n",
            status,
        )
        assert "cyd is quarantined after 3 refused answers" in status
        assert fedhql("release", "bob", "--home", running.home).stderr == (
            "fedhql: error: release bob: only cyd is in quarantine\n"
        )
        running.serve()
        assert fedhql("release", "cyd", "--home", running.home).returncode == 0
        running.until(lambda: "cyd is released from quarantine" in running.log("server"), "server")
        running.join("ann")
        running.join("cyd")
        running.finish("server", *NAMES)
    assert_finished(tmp_path / "home", tmp_path, ("ann", "bob"), 3 * BUDGET)
    assert accounts(tmp_path / "home")["cyd"].own_env_steps > 20


def test_a_wrong_setting_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(federation(quorum=3))
    wrong = fedhql("serve", file, "--home", tmp_path, "--insecure", "--listen", "127.0.0.1:0")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "service.quorum is 3" in wrong.stderr
