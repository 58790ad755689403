"""examples/hospitals/federate.py: five hospitals, one in JavaScript, killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.hospitals import federate
from examples.hospitals.clinic import always, javascript_policy, treat
from examples.hospitals.federate import (
    IN_JAVASCRIPT,
    command_of,
    federation_settings,
    prepare,
    read_hospitals,
)
from examples.hospitals.hiv import HIV
from examples.remote.run import Failed
from fedhql.settings.served import read_served_settings
from tests.remote.node import ROOT, require_node

AGENT = ROOT / "examples/hospitals/agent.mjs"
BUDGET = 400
PATIENCE_SECONDS = 400.0


def in_node(script: str) -> Any:
    require_node()
    source = f"import {{ createAgent, treat }} from {json.dumps(AGENT.as_uri())};\n{script}"
    command = ["node", "--input-type=module", "--eval", source]
    return json.loads(subprocess.check_output(command, text=True))


def test_the_patient_in_javascript_is_that_in_python() -> None:
    actions = np.random.default_rng(0).integers(4, size=200).tolist()
    env = HIV(spread=0)
    env.reset(seed=0)
    expected = [(env.step(action)[1], *env.state) for action in actions]
    found = in_node(
        f"let x = {json.dumps(env.reset(seed=0) and env.state.tolist())}; const rows = [];"
        f"for (const action of {actions}) {{"
        "  const [next, reward] = treat(x, action); x = next; rows.push([reward, ...x]); }"
        "console.log(JSON.stringify(rows));"
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_agent_in_javascript_learns_improves_and_is_read_in_python(tmp_path: Path) -> None:
    states = np.random.default_rng(1).uniform(-1, 6, (5, 6)).astype(np.float32)
    task = {
        "environment": "hiv:HIV-v0", "options": {}, "discount": 0.98, "state_dtype": "float32",
        "state_shape": [6], "actions": 4, "env_steps_per_member": "1100",
    }  # fmt: skip
    first, learned, improved, saved = in_node(
        f"const agent = createAgent({json.dumps(task)}, 7), states = {states.ravel().tolist()};"
        "const values = () => [...agent.qValues(states)];"
        "const first = values(); agent.selfLearn(1010); const learned = values();"
        "for (let i = 0; i < 4000; i += 1)"
        "  agent.improve(states, [0, 1, 2, 3, 0], Array(5).fill(5));"
        "console.log(JSON.stringify([first, learned, values(), agent.save()]));"
    )
    assert np.abs(np.subtract(learned, first)).max() > 0
    chosen = np.reshape(improved, (5, 4))[np.arange(5), [0, 1, 2, 3, 0]]
    np.testing.assert_allclose(chosen, 5, atol=0.5)
    (tmp_path / "state.json").write_text(json.dumps({"agent": saved}))
    answer = javascript_policy(tmp_path / "state.json")(states)
    np.testing.assert_allclose(answer.values, np.reshape(improved, (5, 4)), rtol=1e-5)


def test_another_task_is_refused_in_javascript() -> None:
    found = in_node(
        "let text = ''; try { createAgent({ environment: 'CartPole-v1', options: {},"
        " state_dtype: 'float32', state_shape: [4], actions: 2 }, 0); }"
        "catch (error) { text = error.message; } console.log(JSON.stringify(text));"
    )
    assert found == "this agent cannot treat CartPole-v1,float32,4,2"


def test_courses_are_of_the_same_patients_under_every_policy() -> None:
    none, both = (treat(always(action), 2, seed=5) for action in (0, 3))
    np.testing.assert_array_equal(none.states_PTS[:, 0], both.states_PTS[:, 0])
    assert none.states_PTS.shape == (2, 201, 6)
    assert not np.array_equal(none.states_PTS[0, 0], none.states_PTS[1, 0])
    assert (both.returns_P > none.returns_P).all()


def test_the_federation_has_the_experiment_s_settings_with_secure_aggregation() -> None:
    names = list(read_hospitals())
    served = read_served_settings_of(federation_settings(names, None))
    experiment = tomllib.loads((AGENT.parent / "hospitals.toml").read_text())
    assert IN_JAVASCRIPT in names
    assert served.service.members == tuple(names)
    assert served.federation.secure_aggregation
    assert served.budget.env_steps_per_agent == experiment["budget"]["env_steps_per_agent"]
    assert served.federation.horizon_steps == experiment["federation"]["horizon_steps"]


def read_served_settings_of(settings: dict[str, Any]) -> Any:
    import tomli_w

    return read_served_settings(tomli_w.dumps(settings))


def test_directories_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(Failed, match="holds other files; name another directory with --home"):
        prepare(tmp_path, ["north"], None)
    (tmp_path / "federation.toml").write_text("seed = 1\n")
    with pytest.raises(Failed, match="holds a federation with other settings"):
        prepare(tmp_path, ["north"], None)
    assert (tmp_path / "mine").exists()


def test_a_start_that_was_killed_before_it_began_a_process_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(federate, "hand_out_certificates", lambda home, _: home.mkdir())
    home = tmp_path / "home"
    for _ in range(2):
        prepare(home, ["north"], None)
    assert capsys.readouterr().out == f"continuing the federation in {home}\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    for process in recorded(tmp_path / "home").values():
        if str(tmp_path) in command_of(process):
            os.kill(process, signal.SIGKILL)


def recorded(home: Path) -> dict[str, int]:
    return json.loads((home / "processes.json").read_text())


def start(home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [
            sys.executable, "-m", "examples.hospitals.federate",
            "--home", str(home), "--budget", str(BUDGET),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_killed_hospitals_and_a_killed_script_continue(home: Path) -> None:
    require_node()
    process, before = start(home), ""
    assert process.stdout is not None
    while "round 0" not in before:
        line = process.stdout.readline()
        assert line, before
        before += line
    numbers = recorded(home)
    for name in ("west", IN_JAVASCRIPT):
        os.kill(numbers[name], signal.SIGKILL)
    while before.count("is started again") < 2:
        line = process.stdout.readline()
        assert line, before
        before += line
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (restarted := recorded(home))["west"] == numbers["west"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    again = start(home)
    output, _ = again.communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, output
    assert "continuing the federation" in output
    assert re.search(r"ending server, process \d+, which an earlier start has left", output)
    hospitals = list(read_hospitals())
    for name in hospitals:
        assert re.search(rf"^ {name} +finished ", output, re.M), output
        assert re.search(rf"^{name} +\d+\.\d +[\d,]+$", output, re.M), output
    assert "mutual TLS" in (home / "server.log").read_text()
    for number in {*numbers.values(), *restarted.values()}:
        assert str(home) not in command_of(number)  # nothing is left running
    once_more = start(home)
    after, _ = once_more.communicate(timeout=PATIENCE_SECONDS)
    assert once_more.returncode == 0, after
    assert "round" not in after.split("federation ")[1]  # it has finished: only the tests again
    assert after.partition("mean of")[2] == output.partition("mean of")[2]
