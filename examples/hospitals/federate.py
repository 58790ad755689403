"""Five hospitals federate on this machine, over mutual TLS and with secure aggregation.

    python -m examples.hospitals.federate [--home DIR] [--budget ENV_STEPS] [--without-node]

from the repository's root makes the certificates and starts a server and five hospitals, each as
the process that it would be on a machine of its own. A process that is killed is started again.
After Ctrl-C, or if this script itself is killed, the same command continues.
"""

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from gymnasium import spaces

from examples.hospitals.clinic import always, javascript_policy, together, treat
from examples.hospitals.hiv import DECISIONS
from examples.remote.run import (
    FEDHQL,
    Failed,
    Party,
    ending,
    fedhql,
    hand_out_certificates,
    told,
    wait_for_the_end,
)
from fedhql.acting import PolicyFunction
from fedhql.agents.kinds import load_policy
from fedhql.storage.files import write_atomically

HERE = Path(__file__).resolve().parent
NODE = HERE.parent / "remote" / "node"
IN_JAVASCRIPT = "harbour"
TEST_PATIENTS, TEST_SEED = 20, 1_000_000
STATES = spaces.Box(-10, 10, (6,))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Five hospitals federate over mutual TLS.")
    parser.add_argument("--home", type=Path, default=Path("runs/federation"), help="its files")
    parser.add_argument("--budget", type=int, help="env steps per hospital; 200 are one patient")
    parser.add_argument(
        "--without-node",
        action="store_true",
        help=f"{IN_JAVASCRIPT} runs the same network in Python instead of JavaScript",
    )
    arguments = parser.parse_args(argv)
    home: Path = arguments.home.resolve()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    hospitals = read_hospitals()
    try:
        if not arguments.without_node:
            install_node_packages()
        prepare(home, list(hospitals), arguments.budget)
        finished = home / "finished"  # then a server would not wait for anybody
        if not finished.exists():
            with ending() as parties:
                federate(home, hospitals, not arguments.without_node, parties)
            finished.touch()
    except KeyboardInterrupt:
        sys.exit("interrupted; all processes have been ended. The same command continues")
    except Failed as error:
        sys.exit(str(error))
    print("\n" + fedhql("status", home / "server" / "federation"), end="")
    print_tests(home, hospitals)
    print(f"\nlogs, results and every hospital's own files: {arguments.home}")


def read_hospitals() -> dict[str, dict[str, Any]]:
    """Return each hospital's agent: the experiment's agents by name."""
    agents = tomllib.loads((HERE / "hospitals.toml").read_text())["agents"]
    return {agent.pop("name"): agent for agent in agents}


def install_node_packages() -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Failed(
            f"{IN_JAVASCRIPT} needs Node.js 18 or later, and node or npm is not on the path; "
            "install them, or add --without-node"
        )
    if not (NODE / "node_modules").exists():
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} in {NODE} failed:\n{done.stderr}")


def prepare(home: Path, names: Sequence[str], budget: int | None) -> None:
    """Make certificates and the server's settings, or find those of an earlier start."""
    settings = federation_settings(names, budget)
    kept = home / "federation.toml"  # written last
    if not kept.exists():
        if home.exists() and any(home.iterdir()) and not (home / "authority").exists():
            raise Failed(f"{home} holds other files; name another directory with --home")
        shutil.rmtree(home, ignore_errors=True)
        hand_out_certificates(home, names)
        write_atomically(kept, tomli_w.dumps(settings))
        return
    if tomllib.loads(kept.read_text()) != settings:
        raise Failed(f"{home} holds a federation with other settings; name another with --home")
    print(f"continuing the federation in {home}")
    end_leftovers(home)


def federation_settings(names: Sequence[str], budget: int | None) -> dict[str, Any]:
    """Return the experiment's settings without its agents, with secure aggregation."""
    settings = tomllib.loads((HERE / "hospitals.toml").read_text())
    del settings["agents"], settings["evaluation"]
    if budget is not None:
        settings["budget"]["env_steps_per_agent"] = budget
        phase = settings["federation"]["self_learning_env_steps"]
        settings["federation"]["self_learning_env_steps"] = min(phase, max(1, budget // 4))
    settings["federation"] |= {"secure_aggregation": True, "secure_value_bound": 10_000.0}
    settings["service"] = {
        "members": list(names),
        "start_with": len(names),
        "quorum": 3,
        "evaluate_members": False,  # with secure aggregation, only the hospitals can
    }
    return settings


def end_leftovers(home: Path) -> None:
    """End the processes of a script that was killed before it could do so."""
    record = home / "processes.json"
    recorded = json.loads(record.read_text()) if record.exists() else {}

    def left() -> dict[str, int]:
        return {
            name: number for name, number in recorded.items() if str(home) in command_of(number)
        }

    for how, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 60.0)):
        for name, number in left().items():
            print(f"ending {name}, process {number}, which an earlier start has left", flush=True)
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(number, how)
        until = time.monotonic() + seconds
        while left() and time.monotonic() < until:
            time.sleep(0.1)


def command_of(process: int) -> str:
    """Return the command line of a process; an empty one if it has ended."""
    if not Path("/proc/self").exists():  # not Linux
        command = ["ps", "-o", "args=", "-p", str(process)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def federate(
    home: Path, hospitals: dict[str, dict[str, Any]], with_node: bool, parties: list[Party]
) -> None:
    """Run the server and the hospitals until the budgets are spent."""
    server = Party("server", home / "server.log", serve_command(home, 0, 0), HERE)
    server.log.unlink(missing_ok=True)  # the ports are read from it
    server.start()
    parties.append(server)
    running = record_processes(home, parties, {})
    port = int(told(r"listens on port (\d+)", server))
    page = told(r"status page: (\S+)", server)
    server.command = serve_command(home, port, int(page.strip("/").rpartition(":")[2]))
    for name, agent in hospitals.items():
        in_node = with_node and name == IN_JAVASCRIPT
        command = node_command(home, port) if in_node else join_command(home, name, agent, port)
        parties.append(Party(name, home / f"{name}.log", command, HERE))
        parties[-1].start()
        running = record_processes(home, parties, running)
    print(f"status page: {page}")
    print("processes:", ", ".join(f"{name} {process}" for name, process in running.items()))

    def show(shown: int) -> int:
        nonlocal running
        running = record_processes(home, parties, running)
        return show_rounds(home / "server" / "federation" / "federation.csv", shown)

    wait_for_the_end(server, parties, show)


def record_processes(
    home: Path, parties: Sequence[Party], before: dict[str, int]
) -> dict[str, int]:
    """Write the processes' numbers for `end_leftovers`, if they have changed, and return them."""
    running = {party.name: party.process.pid for party in parties}
    if running != before:
        write_atomically(home / "processes.json", json.dumps(running))
    return running


def serve_command(home: Path, port: int, http_port: int) -> list[str]:
    own = home / "server"
    return [
        str(FEDHQL), "serve", str(home / "federation.toml"), f"--listen=localhost:{port}",
        f"--http=127.0.0.1:{http_port}", f"--home={own / 'federation'}", f"--certs={own / 'certs'}",
    ]  # fmt: skip


def join_command(home: Path, name: str, agent: dict[str, Any], port: int) -> list[str]:
    settings = {key: value for key, value in agent.items() if key != "kind"}
    return [
        str(FEDHQL), "join", f"localhost:{port}", f"--as={name}", f"--agent={agent['kind']}",
        f"--home={home / name / 'member'}", f"--certs={home / name / 'certs'}",
        "--environment=hiv:HIV-v0", "--secure-aggregation",
        *(f"--set={key}={json.dumps(value)}" for key, value in settings.items()),
    ]  # fmt: skip


def node_command(home: Path, port: int) -> list[str]:
    own = home / IN_JAVASCRIPT
    return [
        "node", str(NODE / "member.mjs"), f"localhost:{port}", f"--as={IN_JAVASCRIPT}",
        f"--home={own / 'node'}", f"--certs={own / 'certs'}", "--secure-aggregation",
        f"--agent={HERE / 'agent.mjs'}",
    ]  # fmt: skip


def show_rounds(path: Path, shown: int) -> int:
    """Print the rounds that are new, and return how many there are."""
    if not path.exists():
        return shown
    with path.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows[shown:]:
        patients = float(row["own_env_steps"]) / DECISIONS
        print(f"round {row['round']}: {patients:.0f} patients per hospital", flush=True)
    return len(rows)


def print_tests(home: Path, hospitals: dict[str, dict[str, Any]]) -> None:
    """Let every hospital test its own policy, and what they would do together.

    The server sees neither. For the consensus policy, hospitals hand each other their policies.
    """
    print(f"\nmean of {TEST_PATIENTS} new patients       return   immune response at the end")
    tested = {"no drug": always(0), "both drugs always": always(3)}
    own = {name: own_policy(home, name, agent) for name, agent in hospitals.items()}
    tested |= own | {"consensus of all": together(list(own.values()))}
    for name, policy in tested.items():
        courses = treat(policy, TEST_PATIENTS, TEST_SEED)
        response = courses.states_PTS[:, -1, -1].mean()
        print(f"{name:24}{courses.returns_P.mean():12.1f}{response:29,.0f}")


def own_policy(home: Path, name: str, agent: dict[str, Any]) -> PolicyFunction:
    in_javascript = home / name / "node" / "state.json"
    if in_javascript.exists():
        return javascript_policy(in_javascript)
    policy = load_policy(agent["kind"], home / name / "member" / "last", STATES)
    assert policy is not None  # all kinds of the example export their policies
    return policy


if __name__ == "__main__":
    main()
