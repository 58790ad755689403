"""Three owners, three different agents, one federation, over mutual TLS on this machine.

    .venv/bin/python examples/remote/run.py [--home DIR] [--budget ENV_STEPS_PER_MEMBER]

makes the certificates, starts a server and three members, each as the process it would be on a
machine of its own, and waits until their budgets are spent. Ctrl-C ends them all.
"""

import argparse
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).resolve().parent
FEDHQL = Path(sys.executable).with_name("fedhql")
Process: TypeAlias = "subprocess.Popen[bytes]"

# Of each owner, what only they know: the agent.
AGENTS: Mapping[str, Sequence[str]] = {
    "ada": (
        "dqn", "hidden=[64,64]", "learning_rate=0.001", "learning_starts=500", "batch_size=64",
        "buffer_size=20000", "target_update_interval=250", "exploration_fraction=0.2",
        "improvement_steps=16",
    ),
    "ben": (
        "sb3-dqn", "hidden=[32,32]", "activation=tanh", "learning_rate=0.001",
        "learning_starts=500", "buffer_size=20000", "target_update_interval=250",
        "exploration_fraction=0.2", "improvement_steps=16",
    ),
    "cleo": ("torch_agent:TorchAgent", "hidden=48"),
}  # fmt: skip


class Failed(Exception):
    """One of the processes ended as it should not."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Three owners federate over mutual TLS.")
    parser.add_argument("--home", type=Path, default=Path("runs/remote"), help="a new directory")
    parser.add_argument("--budget", type=int, help="environment steps per member")
    arguments = parser.parse_args(argv)
    home: Path = arguments.home.resolve()
    if home.exists():
        sys.exit(f"{arguments.home} exists; remove it, or name another with --home")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    hand_out_certificates(home)
    try:
        with ending() as processes:
            federate(home, arguments.budget, processes)
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been ended")
    except Failed as error:
        sys.exit(str(error))
    print("\n" + fedhql("status", home / "server" / "federation"), end="")
    print_returns(home / "server" / "federation" / "evaluations.csv")
    print(f"\nlogs, results and every owner's own files: {arguments.home}")


def hand_out_certificates(home: Path) -> None:
    """Whoever runs the federation makes them; everyone gets their own, and nobody ca.key."""
    authority = home / "authority"
    fedhql("certs", "init", "--home", authority)
    fedhql("certs", "issue", "server", "--host", "localhost", "--home", authority)
    for name in AGENTS:
        fedhql("certs", "issue", name, "--home", authority)
    for name in ("server", *AGENTS):
        own = home / name / "certs"
        own.mkdir(parents=True)
        for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
            shutil.copy2(authority / file, own)  # a key stays readable by its owner only


def federate(home: Path, budget: int | None, processes: MutableMapping[str, Process]) -> None:
    """Until the budgets are spent."""
    options = [] if budget is None else ["--set", f"budget.env_steps_per_agent={budget}"]
    processes["server"] = start(
        home / "server.log",
        *("serve", HERE / "federation.toml", "--listen", "localhost:0", "--http", "127.0.0.1:0"),
        *("--home", home / "server" / "federation", "--certs", home / "server" / "certs", *options),
    )
    port = told(r"listens on port (\d+)", home / "server.log", processes)
    page = told(r"status page: (\S+)", home / "server.log", processes)
    for name, (kind, *settings) in AGENTS.items():
        processes[name] = start(
            home / f"{name}.log",
            *("join", f"localhost:{port}", "--as", name, "--agent", kind),
            *("--home", home / name / "member", "--certs", home / name / "certs"),
            *(f"--set={setting}" for setting in settings),
        )
    print(f"status page: {page}", flush=True)
    print("mean return of each member's greedy policy, round by round:", flush=True)
    shown = 0
    while processes["server"].poll() is None:
        time.sleep(0.2)
        shown = show_rounds(home / "server" / "federation" / "evaluations.csv", shown)
        require_well(home, processes)
    show_rounds(home / "server" / "federation" / "evaluations.csv", shown)
    for name in AGENTS:  # the server has told them, and they save what they have learned
        processes[name].wait(60)
    require_well(home, processes)


def start(log: Path, *arguments: object) -> Process:
    """In a session of its own: Ctrl-C is for this script, which ends all it has started."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "NPROC"), "1")  # the networks are small
    with log.open("wb") as file:
        return subprocess.Popen(
            [FEDHQL, *map(str, arguments)],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=HERE,  # where torch_agent.py is
            env=os.environ | one_thread,
        )


@contextmanager
def ending() -> Iterator[dict[str, Process]]:
    """What is started inside has ended outside, however it is left."""
    processes: dict[str, Process] = {}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def told(pattern: str, log: Path, processes: Mapping[str, Process]) -> str:
    while (found := re.search(pattern, log.read_text())) is None:
        require_well(log.parent, processes)
        time.sleep(0.1)
    return found[1]


def require_well(home: Path, processes: Mapping[str, Process]) -> None:
    for name, process in processes.items():
        if process.poll():
            log = home / f"{name}.log"
            raise Failed(f"{name} ended with exit code {process.returncode}\n{log.read_text()}")


def fedhql(*arguments: object) -> str:
    return subprocess.check_output([str(FEDHQL), *map(str, arguments)], text=True)


def mean_returns(evaluations: Path) -> dict[str, list[float]]:
    returns = defaultdict(list)
    if evaluations.exists():
        with evaluations.open() as file:
            for row in csv.DictReader(file):
                returns[row["agent"]].append(float(row["mean_return"]))
    return returns


def show_rounds(evaluations: Path, shown: int) -> int:
    """Those that are new -> how many there are."""
    returns = mean_returns(evaluations)
    rounds = min((len(of_member) for of_member in returns.values()), default=0)
    for n in range(shown, rounds):
        means = (f"{name} {of_member[n]:5.1f}" for name, of_member in returns.items())
        print(f"{n + 1:4}", *means, sep="   ", flush=True)
    return max(shown, rounds)


def print_returns(evaluations: Path) -> None:
    print("\nmean return      first     best     last")
    for name, returns in mean_returns(evaluations).items():
        print(f"{name:12}{returns[0]:10.1f}{max(returns):9.1f}{returns[-1]:9.1f}")


if __name__ == "__main__":
    main()
