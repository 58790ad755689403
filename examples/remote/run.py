"""Three owners, three different agents, one federation, over mutual TLS on this machine.

    .venv/bin/python examples/remote/run.py [--home DIR] [--budget ENV_STEPS_PER_MEMBER]

makes the certificates, starts a server and three members, each as the process it would be on a
machine of its own, and waits until their budgets are spent. One that is killed is started again
with the same command. Ctrl-C ends them all.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
FEDHQL = Path(sys.executable).with_name("fedhql")

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


@dataclass
class Party:
    """The server or a member: a command, and the process it runs in."""

    name: str
    log: Path
    command: list[str]
    directory: Path = HERE  # where torch_agent.py is

    def start(self) -> None:
        """In a session of its own: Ctrl-C is for this script, which ends all it has started."""
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "NPROC"), "1")  # the networks are small
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                self.command,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.directory,
                env=os.environ | one_thread,
            )

    def keep_alive(self) -> None:
        """Again, if it was killed."""
        if (code := self.process.poll()) is not None and code < 0:
            print(f"{self.name} was killed (signal {-code}) and is started again", flush=True)
            self.start()
        elif code:
            raise Failed(f"{self.name} ended with exit code {code}\n{self.log.read_text()}")

    def end(self) -> None:
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Three owners federate over mutual TLS.")
    parser.add_argument("--home", type=Path, default=Path("runs/remote"), help="a new directory")
    parser.add_argument("--budget", type=int, help="environment steps per member")
    arguments = parser.parse_args(argv)
    home: Path = arguments.home.resolve()
    if home.exists():
        sys.exit(f"{arguments.home} exists; remove it, or name another with --home")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    hand_out_certificates(home, AGENTS)
    try:
        with ending() as parties:
            federate(home, arguments.budget, parties)
    except KeyboardInterrupt:
        sys.exit("interrupted; everything that was started has been ended")
    except Failed as error:
        sys.exit(str(error))
    print("\n" + fedhql("status", home / "server" / "federation"), end="")
    print_returns(home / "server" / "federation" / "evaluations.csv")
    print(f"\nlogs, results and every owner's own files: {arguments.home}")


def hand_out_certificates(home: Path, members: Collection[str]) -> None:
    """Whoever runs the federation makes them; everyone gets their own, and nobody ca.key."""
    authority = home / "authority"
    fedhql("certs", "init", "--home", authority)
    fedhql("certs", "issue", "server", "--host", "localhost", "--home", authority)
    for name in members:
        fedhql("certs", "issue", name, "--home", authority)
    for name in ("server", *members):
        own = home / name / "certs"
        own.mkdir(parents=True)
        for file in ("ca.crt", f"{name}.crt", f"{name}.key"):
            shutil.copy2(authority / file, own)  # a key stays readable by its owner only


def federate(home: Path, budget: int | None, parties: list[Party]) -> None:
    """Until the budgets are spent."""
    server = Party("server", home / "server.log", serve_command(home, budget, 0, 0))
    server.start()
    parties.append(server)
    port = int(told(r"listens on port (\d+)", server))
    page = told(r"status page: (\S+)", server)
    # Once more, it has to be where the members look for it.
    server.command = serve_command(home, budget, port, int(page.strip("/").rpartition(":")[2]))
    for name in AGENTS:
        parties.append(Party(name, home / f"{name}.log", join_command(home, name, port)))
        parties[-1].start()
    print(f"status page: {page}")
    print("processes:", ", ".join(f"{party.name} {party.process.pid}" for party in parties))
    print("mean return of each member's greedy policy, by evaluation:", flush=True)
    evaluations = home / "server" / "federation" / "evaluations.csv"
    wait_for_the_end(server, parties, partial(show_returns, evaluations))


def wait_for_the_end(server: Party, parties: Sequence[Party], show: Callable[[int], int]) -> None:
    """Wait until the server and the members have ended. Start again what is killed meanwhile.

    `show` gets how many lines it has printed, prints those that are new, and returns the number.
    """
    shown = 0
    while server.process.poll() != 0:
        time.sleep(0.2)
        for party in parties:
            party.keep_alive()
        shown = show(shown)
    show(shown)
    for party in parties:  # the server has told them, and they save what they have learned
        if party.process.wait(60) != 0:
            party.keep_alive()


def serve_command(home: Path, budget: int | None, port: int, http_port: int) -> list[str]:
    own = home / "server"
    return [
        str(FEDHQL), "serve", str(HERE / "federation.toml"), f"--listen=localhost:{port}",
        f"--http=127.0.0.1:{http_port}", f"--home={own / 'federation'}", f"--certs={own / 'certs'}",
        *([] if budget is None else [f"--set=budget.env_steps_per_agent={budget}"]),
    ]  # fmt: skip


def join_command(home: Path, name: str, port: int) -> list[str]:
    kind, *settings = AGENTS[name]
    own = home / name
    return [
        str(FEDHQL), "join", f"localhost:{port}", f"--as={name}", f"--agent={kind}",
        f"--home={own / 'member'}", f"--certs={own / 'certs'}",
        *(f"--set={setting}" for setting in settings),
    ]  # fmt: skip


@contextmanager
def ending() -> Iterator[list[Party]]:
    """What is started inside has ended outside, however it is left."""
    parties: list[Party] = []
    try:
        yield parties
    finally:
        for party in parties:
            party.process.terminate()
        for party in parties:
            party.end()


def told(pattern: str, party: Party) -> str:
    """What it says in its log, as soon as it does."""
    while (found := re.search(pattern, party.log.read_text())) is None:
        party.keep_alive()
        time.sleep(0.1)
    return found[1]


def fedhql(*arguments: object) -> str:
    return subprocess.check_output([str(FEDHQL), *map(str, arguments)], text=True)


def mean_returns(evaluations: Path) -> dict[str, list[float]]:
    """Return those of each member, then of the consensus policy, whoever was evaluated first."""
    returns: dict[str, list[float]] = {name: [] for name in AGENTS}
    if evaluations.exists():
        with evaluations.open() as file:
            for row in csv.DictReader(file):
                returns.setdefault(row["agent"], []).append(float(row["mean_return"]))
    return returns


def show_returns(evaluations: Path, shown: int) -> int:
    """Print the evaluations that are new, and return how many there are."""
    returns = mean_returns(evaluations)
    count = min(len(of_member) for of_member in returns.values())
    for n in range(shown, count):
        means = (f"{name} {of_member[n]:5.1f}" for name, of_member in returns.items())
        print(f"{n + 1:4}", *means, sep="   ", flush=True)
    return max(shown, count)


def print_returns(evaluations: Path) -> None:
    print("\nmean return      first     best     last")
    for name, returns in mean_returns(evaluations).items():
        print(f"{name:12}{returns[0]:10.1f}{max(returns):9.1f}{returns[-1]:9.1f}")


if __name__ == "__main__":
    main()
