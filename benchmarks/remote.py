"""What the network costs (`make bench`): exchanges on loopback against an empty gRPC echo.

An exchange is one question to all members and all their answers, 128 CartPole states each, from
the server's event loop; `call` is the same from the federation's own thread. The floor is the same
broadcast over the same kind of streams with empty messages and no work on either side, in the same
run, the two taking turns. Members and echo clients live in processes of their own, many in one
where there are many. Then the five agents of the paper's table learn a small CartPole federation,
remote and in one process, by turns.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tomli_w

from fedhql.engines.seeds import Stream, seeds_for
from fedhql.remote.member.member import Member
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.listener import Listener
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.remote_cohort import RemoteCohort
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.wire_pb2 import Task
from fedhql.settings.experiment import read_settings
from fedhql.settings.presets import preset_text

STATES, ACTIONS = 128, 2
ECHO = "/floor.Echo/Echo"
FEDHQL = Path(sys.executable).with_name("fedhql")


class Trivial:
    """Answers at once."""

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        return np.ones((len(states), ACTIONS), dtype=np.float32)

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


class Broadcast:
    """The floor: an empty message to every stream, and an empty one back from each."""

    def __init__(self) -> None:
        self._outboxes: list[asyncio.Queue[bytes | None]] = []
        self._waiting, self._all = 0, asyncio.Event()

    def count(self) -> int:
        return len(self._outboxes)

    async def stream(self, requests: Any, context: Any) -> None:
        outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outboxes.append(outbox)

        async def read() -> None:
            async for _ in requests:
                self._waiting -= 1
                if self._waiting == 0:
                    self._all.set()

        reading = asyncio.ensure_future(read())
        try:
            while (message := await outbox.get()) is not None:
                await context.write(message)
        finally:
            reading.cancel()

    async def exchange(self) -> None:
        self._waiting = len(self._outboxes)
        self._all.clear()
        for outbox in self._outboxes:
            outbox.put_nowait(b"")
        await self._all.wait()

    def stop(self) -> None:
        for outbox in self._outboxes:
            outbox.put_nowait(None)


def members(address: str, first: int, count: int, home: str) -> None:
    """A process full of members."""

    async def run() -> None:
        await asyncio.gather(
            *(
                Member(
                    f"m{n}",
                    address,
                    Path(home) / f"m{n}",
                    lambda task: Trivial(),
                    credentials=None,
                    rng=random.Random(n),
                    clock=time.monotonic,
                ).run()
                for n in range(first, first + count)
            )
        )

    asyncio.run(run())


def echoes(address: str, first: int, count: int, home: str) -> None:
    """A process full of echo clients."""

    async def one() -> None:
        # A channel each, as members have.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(address, options) as channel:
            stream: Any = channel.stream_stream(ECHO)()
            with suppress(grpc.aio.AioRpcError):  # the server's end
                while (message := await stream.read()) is not grpc.aio.EOF:
                    await stream.write(message)

    async def run() -> None:
        await asyncio.gather(*(one() for _ in range(count)))

    asyncio.run(run())


@contextmanager
def processes(target: Callable[..., None], address: str, count: int, home: str) -> Iterator[None]:
    context, per_process = multiprocessing.get_context("spawn"), max(1, count // 5)
    started = [
        context.Process(target=target, args=(address, first, per_process, home), daemon=True)
        for first in range(0, count, per_process)
    ]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


async def exchanges(count: int, repeats: int) -> dict[str, float]:
    """Ours and the floor's, in turns of fifty."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        settings = ServiceSettings(start_with=count, quorum=count, most_messages_per_second=1e6)
        journal = Journal(Path(home) / "journal.sqlite")
        roster = Roster(settings, journal, action_count=ACTIONS, env_steps_per_member=10**9)
        task = Task(
            environment="CartPole-v1",
            state_dtype="float32",
            state_shape=[4],
            actions=ACTIONS,
            env_steps_per_member=10**9,
        )
        memory_before = _resident_bytes()
        listener = Listener(roster, federation="bench", task=task, credentials=None)
        port = await listener.open("127.0.0.1:0")
        stack.enter_context(processes(members, f"127.0.0.1:{port}", count, home))
        await roster.wait_until(lambda: len(roster.present()) == count)
        memory = _resident_bytes() - memory_before
        floor, echo_server = Broadcast(), grpc.aio.server()
        handler: Any = grpc.stream_stream_rpc_method_handler(floor.stream)
        service, method = ECHO.strip("/").split("/")
        echo_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        echo_port = echo_server.add_insecure_port("127.0.0.1:0")
        await echo_server.start()
        stack.enter_context(processes(echoes, f"127.0.0.1:{echo_port}", count, home))
        while floor.count() < count:
            await asyncio.sleep(0.05)
        cohort = RemoteCohort(roster, asyncio.get_running_loop(), ACTIONS)
        cohort.enlist(roster.present())
        states = np.random.default_rng(0).random((STATES, 4), dtype=np.float32)
        asked = dict.fromkeys(cohort.names, states)
        seconds: dict[str, list[float]] = {"ours": [], "floor": [], "call": []}

        async def timed(kind: str, exchange: Callable[[], Any]) -> None:
            begun = time.perf_counter()
            await exchange()
            seconds[kind].append(time.perf_counter() - begun)

        def call(times: int) -> None:  # as the federation's own thread does
            for _ in range(times):
                begun = time.perf_counter()
                cohort.query(states)
                seconds["call"].append(time.perf_counter() - begun)

        turn, cpu = max(5, min(50, 2_000 // count)), 0.0
        for repeat in range(repeats + 1):
            if repeat == 1:  # the first turn warmed up
                cpu = 0.0
                for times in seconds.values():
                    times.clear()
            cpu_before = time.process_time()
            for _ in range(turn):
                await timed("ours", lambda: ask(roster, asked, count))
            cpu += time.process_time() - cpu_before
            for _ in range(turn):
                await timed("floor", floor.exchange)
            await asyncio.to_thread(call, turn)
        roster.stop()
        floor.stop()
        await listener.close(0.1)
        await echo_server.stop(0.1)
        journal.close()
    p50, p99 = (float(np.percentile(seconds["ours"], q)) for q in (50, 99))
    floor50, floor99 = (float(np.percentile(seconds["floor"], q)) for q in (50, 99))
    exchanges_done = len(seconds["ours"])
    return {
        "members": count,
        "exchanges": exchanges_done,
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "echo_p50_ms": floor50 * 1e3,
        "echo_p99_ms": floor99 * 1e3,
        "ratio_p50": p50 / floor50,
        "ratio_p99": p99 / floor99,
        "call_p50_ms": float(np.median(seconds["call"])) * 1e3,
        "server_cpu_us_per_member": cpu / exchanges_done / count * 1e6,
        "server_kb_per_member": memory / count / 1024,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def federations(repeats: int, budget: int) -> dict[str, Any]:
    """The N=5 table on CartPole, whole federations: in this process's kind, and remote."""
    seconds: dict[str, list[float]] = {"in-process": [], "remote": []}
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        settings = read_settings(
            preset_text("cartpole-n5"),
            [f"budget.env_steps_per_agent={budget}", "agents.learning_starts=1000"],
        )
        (home / "run.toml").write_text(settings.as_toml())
        served = settings.model_dump(exclude_none=True)
        agents = served.pop("agents")
        names = settings.agent_names
        served["service"] = {
            "members": names, "start_with": 5, "quorum": 5, "exchange_deadline_seconds": 300.0,
        }  # fmt: skip
        (home / "serve.toml").write_text(tomli_w.dumps(served))
        for n in range(repeats + 1):  # the first compiles, and is not counted
            for kind, run in (("in-process", _in_process), ("remote", _remote)):
                begun = time.perf_counter()
                run(home, home / f"{kind}{n}", agents, names)
                if n:
                    seconds[kind].append(time.perf_counter() - begun)
    medians = {kind: float(np.median(times)) for kind, times in seconds.items()}
    return {
        "budget_env_steps": budget,
        "seconds": seconds,
        **{f"{kind}_seconds": median for kind, median in medians.items()},
        "ratio": medians["remote"] / medians["in-process"],
    }


def _in_process(home: Path, out: Path, agents: Any, names: Any) -> None:
    command: list[Any] = [FEDHQL, "run", home / "run.toml", "--out", out, "--arm", "fedhql"]
    _done(subprocess.Popen([*command, "--engine", "messages"], **QUIET))


def _remote(home: Path, out: Path, agents: Any, names: Any) -> None:
    listen = "127.0.0.1:50917"
    serve: list[Any] = [
        FEDHQL,
        "serve",
        home / "serve.toml",
        "--listen",
        listen,
        "--home",
        out / "server",
    ]
    started = [subprocess.Popen([*serve, "--insecure"], **QUIET)]
    for n, (name, agent) in enumerate(zip(names, agents, strict=True)):
        options = {key: value for key, value in agent.items() if key != "kind"}
        chosen = [f"--set={key}={_toml(value)}" for key, value in options.items()]
        seed = int(seeds_for(0, Stream.AGENT, n, count=1)[0])
        join: list[Any] = [
            FEDHQL,
            "join",
            listen,
            "--agent",
            agent["kind"],
            "--as",
            name,
            "--insecure",
        ]
        join += ["--home", out / name, "--seed", str(seed), *chosen]
        started.append(subprocess.Popen(join, **QUIET))
    for process in started:
        _done(process)


QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}


def _toml(value: Any) -> str:
    return json.dumps(value)


def _done(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="5,50,500")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budget", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/remote.json"))
    chosen = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    results: dict[str, Any] = {"machine": machine, "exchanges": []}
    shown = ("members", "p50_ms", "p99_ms", "echo_p50_ms", "echo_p99_ms", "ratio_p50",
             "call_p50_ms", "server_cpu_us_per_member", "server_kb_per_member")  # fmt: skip
    print("  ".join(shown))
    for count in map(int, chosen.members.split(",")):
        row = asyncio.run(exchanges(count, chosen.repeats))
        results["exchanges"].append(row)
        print("  ".join(f"{row[key]:>{len(key)}.4g}" for key in shown), flush=True)
    if chosen.budget:
        row = results["federation"] = federations(3, chosen.budget)
        print(
            f"CartPole N=5, {row['budget_env_steps']:,} steps each: in-process "
            f"{row['in-process_seconds']:.1f} s, remote {row['remote_seconds']:.1f} s, ratio "
            f"{row['ratio']:.2f}"
        )
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()
