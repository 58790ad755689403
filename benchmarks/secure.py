"""What secure aggregation costs (`make bench`): exchanges with masks against the same without.

An exchange is one question to all members and all their answers, 128 CartPole states, on loopback,
from the server's event loop, and for both kinds it ends with the mean and the deviation that
FedUCB scores by. The two take turns in one run; each process has a member of either kind. The
floor is what the masks alone take: encoding and masking one answer, adding up and decoding all.
Then how far deviations from sums are from those of the values themselves.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhql.federation import Moments, fed_ucb_of, moments
from fedhql.remote.member.member import Member
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.listener import Listener
from fedhql.remote.server.quorum_query import ask
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.secure_query import ask_for_sum
from fedhql.remote.server.service_settings import ServiceSettings
from fedhql.remote.wire_pb2 import Task
from fedhql.secure.fixed_point import FixedPoint
from fedhql.secure.masks import Masker, unmasked_sum

STATES, ACTIONS, BOUND = 128, 2, 1e6
KINDS = ("plain", "secure")
TURN = 50


class Trivial:
    """Answers at once."""

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        return np.ones((len(states), ACTIONS), dtype=np.float32)

    def improve(self, states: Any, actions: Any, targets: Any) -> None: ...


def two_members(addresses: Mapping[str, str], n: int, home: str) -> None:
    """A process with one of either kind."""

    async def run() -> None:
        members = (
            Member(
                f"m{n}",
                addresses[kind],
                Path(home) / f"{kind}{n}",
                lambda task: Trivial(),
                credentials=None,
                rng=random.Random(n),
                clock=time.monotonic,
                secure_aggregation=kind == "secure",
            ).run()
            for kind in KINDS
        )
        await asyncio.gather(*members)

    asyncio.run(run())


@contextmanager
def processes(addresses: Mapping[str, str], count: int, home: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=two_members, args=(addresses, n, home), daemon=True)
        for n in range(count)
    ]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.join()


class Counting(Roster):
    """Knows how often its members have spoken."""

    reports = 0

    def report(self, session: Any, report: Any) -> None:
        self.reports += 1
        super().report(session, report)


async def exchanges(count: int, repeats: int) -> dict[str, Any]:
    """Of both kinds, in turns of fifty."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        rosters, listeners, addresses = {}, [], {}
        task = Task(environment="CartPole-v1", state_dtype="float32", state_shape=[4],
                    actions=ACTIONS, env_steps_per_member=10**9)  # fmt: skip
        for kind in KINDS:
            journal = Journal(Path(home) / f"{kind}.sqlite")
            stack.callback(journal.close)
            rosters[kind] = Counting(
                ServiceSettings(start_with=count, quorum=count, most_messages_per_second=1e6),
                journal,
                action_count=ACTIONS,
                env_steps_per_member=10**9,
                secure_value_bound=BOUND if kind == "secure" else None,
            )
            listeners.append(
                Listener(rosters[kind], federation="bench", task=task, credentials=None)
            )
            addresses[kind] = f"127.0.0.1:{await listeners[-1].open('127.0.0.1:0')}"
        stack.enter_context(processes(addresses, count, home))
        names = [f"m{n}" for n in range(count)]
        while any(len(roster.present()) < count for roster in rosters.values()):
            await asyncio.sleep(0.05)
        states = np.random.default_rng(0).random((STATES, 4), dtype=np.float32)

        async def plain() -> Moments:
            exchange = await ask(rosters["plain"], dict.fromkeys(names, states), count)
            return moments(np.array(list(exchange.answers.values())))

        async def secure() -> Moments:
            return (await ask_for_sum(rosters["secure"], names, states, count))[0]

        seconds = await _by_turns({"plain": plain, "secure": secure}, repeats)
        for roster, listener in zip(rosters.values(), listeners, strict=True):
            roster.stop()
            await listener.close(0.1)
    p50, p99 = ({k: float(np.percentile(s, q)) for k, s in seconds.items()} for q in (50, 99))
    asked = {kind: roster.latencies.status().count for kind, roster in rosters.items()}
    return {
        "members": count,
        "exchanges": len(seconds["plain"]),
        **{f"{kind}_p50_ms": p50[kind] * 1e3 for kind in KINDS},
        **{f"{kind}_p99_ms": p99[kind] * 1e3 for kind in KINDS},
        "ratio_p50": p50["secure"] / p50["plain"],
        "ratio_p99": p99["secure"] / p99["plain"],
        **{f"{kind}_answers_each": rosters[kind].reports / asked[kind] / count for kind in KINDS},
    }


async def _by_turns(
    kinds: Mapping[str, Callable[[], Coroutine[Any, Any, Moments]]], repeats: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats + 1):
        for kind, exchange in kinds.items():
            for _ in range(TURN):
                begun = time.perf_counter()
                fed_ucb_of(await exchange(), 1.0)
                if repeat:  # the first turn warmed up
                    seconds[kind].append(time.perf_counter() - begun)
    return seconds


def floor(count: int, repeats: int) -> dict[str, float]:
    """Without any network: one member's masks, and the server's sum."""
    maskers = [Masker(f"m{n}", "bench", X25519PrivateKey.generate()) for n in range(count)]
    cohort = {f"m{n}": masker.public_key for n, masker in enumerate(maskers)}
    q_BA, fixed = np.ones((STATES, ACTIONS), dtype=np.float32), FixedPoint(count, BOUND)
    member, server = [], []
    for number in range(1, repeats * TURN + 1):
        begun = time.perf_counter()
        masked = [
            masker.masked(fixed.encoded(q_BA), (1, number), cohort, b"") for masker in maskers
        ]
        between = time.perf_counter()
        fixed.moments(unmasked_sum(masked).reshape(2, STATES, ACTIONS))
        server.append(time.perf_counter() - between)
        member.append((between - begun) / count)
    return {
        "mask_ms": float(np.median(member)) * 1e3,
        "sum_ms": float(np.median(server)) * 1e3,
    }


def precision(bound: float, spread: float) -> dict[str, float]:
    """Of the deviation of five members' values about 100."""
    rng, fixed = np.random.default_rng(0), FixedPoint(5, bound)
    q_NBA = (100 + spread * rng.normal(size=(5, 1_000, 10))).astype(np.float32)
    words = np.stack([fixed.encoded(q_BA) for q_BA in q_NBA]).sum(axis=0, dtype=np.uint64)
    ours, plain = (np.sqrt(each.variance()) for each in (fixed.moments(words), moments(q_NBA)))
    return {"bound": bound, "spread": spread, "largest_error": float(np.abs(ours - plain).max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="5,15")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/secure.json"))
    chosen = parser.parse_args()
    rows = []
    shown = ("members", "plain_p50_ms", "secure_p50_ms", "ratio_p50", "plain_p99_ms",
             "secure_p99_ms", "ratio_p99", "plain_answers_each", "secure_answers_each",
             "mask_ms", "sum_ms")  # fmt: skip
    print("  ".join(shown))
    for count in map(int, chosen.members.split(",")):
        row = asyncio.run(exchanges(count, chosen.repeats)) | floor(count, chosen.repeats)
        rows.append(row)
        print("  ".join(f"{row[key]:>{len(key)}.4g}" for key in shown), flush=True)
    found = [precision(bound, spread) for bound in (1e6, 1e4, 1e3) for spread in (1e-3, 0.1, 10.0)]
    print("bound  spread  largest error of a deviation")
    for each in found:
        print(f"{each['bound']:<5g}  {each['spread']:<6g}  {each['largest_error']:.2g}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    results = {"machine": machine, "exchanges": rows, "precision": found}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()
