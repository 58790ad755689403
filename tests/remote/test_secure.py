"""Whole federations with secure aggregation: what agents learn, and what the server sees."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhql.contract import BlackBoxAgent, States, Values
from fedhql.engines.build import as_asked, build_batch, build_cohort, build_server
from fedhql.engines.build_agent import build_agents
from fedhql.engines.evaluation import evaluate
from fedhql.engines.seeds import Stream, seeds_for
from fedhql.errors import MemberRefused, SettingsError
from fedhql.federation import Budget, InProcessCohort
from fedhql.remote.identity import masking_keys
from fedhql.remote.identity.credentials import Credentials
from fedhql.remote.member import masking
from fedhql.remote.server import admission
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Session
from fedhql.remote.wire import MOST_BYTES_TO_A_MEMBER, unpack
from fedhql.remote.wire_pb2 import MaskingKey, Report
from fedhql.service.home import ROOM_BYTES, open_home, task_of
from fedhql.settings.experiment import parse, read_settings
from fedhql.settings.served import ServedSettings, read_served_settings
from tests.remote.authority import Authority
from tests.remote.federating import (
    Server,
    accounts,
    assert_finished,
    events,
    federation,
    members_of,
    serving,
)
from tests.remote.recording import Recorder

SECURE = "[federation]\nsecure_aggregation = true\nsecure_value_bound = 10\n"
NAMES = ("agent1", "agent2", "agent3", "agent4")
BUDGET = 240


def secure(text: str) -> str:
    return text.replace("[federation]\n", SECURE)


def small(budget: int = BUDGET, **service: Any) -> str:
    """Return a small federation's settings, with secure aggregation."""
    chosen = {"members": NAMES, "start_with": 4, "quorum": 3, "evaluate_members": False}
    return secure(federation(budget, **{**chosen, **service}))


TASK = """
[environment]
id = "FrozenLake-v1"
discount = 0.95
[federation]
query_batch = 8
self_learning_env_steps = 300
[budget]
env_steps_per_agent = 2_000
[evaluation]
episodes = 3
"""
SERVICE = """
[service]
members = ["agent1", "agent2", "agent3", "agent4"]
start_with = 4
quorum = 4
evaluate_members = false
exchange_deadline_seconds = 60
"""
AGENTS = "".join(
    f'[[agents]]\nkind = "tabular"\nexploration = "{how}"\n'
    for how in ("epsilon-greedy", "boltzmann", "ucb", "epsilon-greedy")
)


class Heard:
    """Records every array that reaches the server."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.arrays: list[Any] = []
        report = Roster.report

        def listen(roster: Roster, session: Session, message: Report) -> None:
            if message.HasField("values"):
                self.arrays.append(unpack(message.values))
            report(roster, session, message)

        patch.setattr(Roster, "report", listen)


async def federate(
    directory: Path,
    text: str,
    agents: Mapping[str, BlackBoxAgent],
    *,
    masked: bool,
    authority: Authority | None = None,
) -> tuple[int, int]:
    """Run a federation; return the numbers of server steps and of exchanges."""
    make: Callable[..., Any] = authority.make if authority else lambda name, hosts=(): None
    shown = make("server", hosts=("127.0.0.1",))
    async with (
        serving(directory / "home", text, credentials=shown) as server,
        members_of(directory, server.address) as members,
    ):
        for name, agent in agents.items():
            members.join(name, agent, credentials=make(name), secure_aggregation=masked)
        await members.finish()
        await server.finish()
        return server.roster.improvements, server.roster.latencies.status().count


def rounds(home: Path) -> bytes:
    return (home / "federation.csv").read_bytes()


def returns_of(agents: Mapping[str, BlackBoxAgent]) -> Any:
    """Return each agent's returns in ten greedy episodes, which only its owner could play."""
    settings = read_settings(TASK + AGENTS)
    batch = build_batch(settings, len(agents) * 10)
    seeds = np.stack([seeds_for(0, Stream.EVALUATION, n, 0, count=10) for n in range(len(agents))])
    act_each = InProcessCohort(list(agents.values()), 4).act_each
    return evaluate(act_each, batch, seeds, discount=1).returns


def test_a_federation_learns_the_same_with_and_without_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies and exchange counts are equal, and the server receives only noise."""
    heard: dict[bool, list[Any]] = {}
    found: dict[bool, tuple[int, int]] = {}
    agents = {
        masked: dict(zip(NAMES, build_agents(read_settings(TASK + AGENTS), 0), strict=True))
        for masked in (False, True)
    }
    for masked, text in ((False, TASK + SERVICE), (True, secure(TASK) + SERVICE)):
        with monkeypatch.context() as patch:
            listener = Heard(patch)
            directory = tmp_path / str(masked)
            found[masked] = asyncio.run(federate(directory, text, agents[masked], masked=masked))
            heard[masked] = listener.arrays
    steps, exchanges = found[True]
    assert found[True] == found[False]
    assert steps > 20
    assert len(heard[True]) == len(heard[False]) == exchanges * len(NAMES)  # one answer each
    np.testing.assert_array_equal(returns_of(agents[True]), returns_of(agents[False]))
    assert {array.dtype for array in heard[False]} == {np.dtype(np.float32)}
    assert {array.dtype for array in heard[True]} == {np.dtype(np.uint64)}
    # A random word is below 2^60 with probability 1/16; an unmasked value, or its negative, always.
    words = np.concatenate([array[:-1] for array in heard[True]])
    assert abs(np.mean(words < 2**60) - 1 / 16) < 5 * np.sqrt(15 / 256 / len(words))


def test_agents_learn_the_same_over_the_network_as_in_one_process(tmp_path: Path) -> None:
    """Integer sums do not depend on their order, so targets are equal bit by bit."""
    settings = read_settings(secure(TASK) + AGENTS)
    service_settings = read_served_settings(secure(TASK) + SERVICE)
    here, there = build_agents(settings, 0), build_agents(settings, 0)
    asyncio.run(federate(tmp_path, secure(TASK) + SERVICE, dict(zip(NAMES, there, strict=True)),
                         masked=True, authority=Authority(tmp_path / "certs")))  # fmt: skip
    cohort = build_cohort(settings, here)
    batch = build_batch(settings, service_settings.federation.query_batch)
    server = build_server(settings, as_asked(cohort, settings.federation), batch)
    budget, round_ = Budget(env_steps_per_agent=2_000, agents=4), 0
    while env_steps := budget.affordable_self_learning(300):
        cohort.self_learn(env_steps)
        budget = budget.after_self_learning(env_steps)
        seeds = seeds_for(0, Stream.SERVER, round_, count=8)
        if len(seeds) <= budget.remaining_env_steps:
            budget, _ = server.federate(budget, seeds.tolist())
        round_ += 1
    states = np.arange(16)
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_array_equal(ours.q_values(states), theirs.q_values(states))


@pytest.mark.parametrize(
    ("mode", "budget"),
    [("rounds", BUDGET), ("continuous", 6 * BUDGET)],  # members learn at the same time
)
def test_a_federation_continues_when_members_leave_or_are_late(
    mode: str, budget: int, tmp_path: Path
) -> None:
    """The federation continues with the members present; each gets every improvement once."""
    text = small(budget, mode=mode, exchange_deadline_seconds=0.3, learning_deadline_seconds=1,
                 return_seconds=1, round_interval_seconds=0.02, chunk_env_steps=5)  # fmt: skip
    slow = Recorder(3, learn_seconds=0.01)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for seed, name in enumerate(NAMES[:3]):
                agent = Recorder(seed, learn_seconds=0.01)
                members.join(name, agent, secure_aggregation=True)
            members.join(NAMES[3], slow, secure_aggregation=True)
            await server.reach(lambda: server.roster.improvements >= 4)
            slow.answer_seconds = 0.5
            await server.reach(lambda: server.roster.members[NAMES[3]].late_answers >= 1)
            slow.answer_seconds = 0.0
            at = server.roster.improvements
            await server.reach(lambda: server.roster.improvements >= at + 4)
            await members.leave(NAMES[0])
            members.join(NAMES[0], Recorder(0, learn_seconds=0.01), secure_aggregation=True)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, budget)
    told = events(tmp_path / "home")
    assert f"no answer from {NAMES[3]}; asking the others again" in told
    assert "do not add up" not in told
    assert accounts(tmp_path / "home")[NAMES[3]].connections >= 2


class SometimesNan(Recorder):
    def q_values(self, states: States) -> Values:
        values = super().q_values(states)
        return values * np.nan if self.answered % 5 == 0 else values


def test_an_agent_without_a_usable_answer_is_left_out_of_that_sum(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", small()) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for seed, name in enumerate(NAMES):
                kind = SometimesNan if seed == 1 else Recorder
                members.join(name, kind(seed), secure_aggregation=True)
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET)
    assert accounts(tmp_path / "home")[NAMES[1]].refused_answers >= 2


@pytest.mark.parametrize("masked", [True, False])
def test_joining_fails_unless_both_sides_use_secure_aggregation(
    masked: bool, tmp_path: Path
) -> None:
    text = federation(BUDGET) if masked else small()
    why = "a welcome without secure aggregation" if masked else "join with --secure-aggregation"

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            with pytest.raises(MemberRefused, match=why):
                await asyncio.wait_for(members.join(NAMES[0], secure_aggregation=masked), 20)

    asyncio.run(run())


async def refused(server: Server, directory: Path, **joins: Any) -> str:
    async with members_of(directory, server.address) as members:
        with pytest.raises(MemberRefused) as caught:
            await asyncio.wait_for(members.join(NAMES[0], secure_aggregation=True, **joins), 20)
        return str(caught.value)


def test_a_server_refuses_keys_that_the_others_would_not_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one member with a wrong key would make all others leave."""
    authority = Authority(tmp_path / "certs")
    shown, own = authority.make("server", hosts=("127.0.0.1",)), authority.make(NAMES[0])
    other = authority.make(NAMES[1])
    real = masking_keys.masking_key

    async def run() -> None:
        async with serving(tmp_path / "home", small(), credentials=shown) as server:
            for wrong, why in (
                (lambda name, key, _: real(name, key, None), "is not a certificate in PEM"),
                (lambda name, key, _: real(name, key, other), "certificate of another member"),
                (lambda name, key, _: real("x", key, own), "the masking key of another"),
                (lambda name, key, _: real(name, key[:9], own), "32 bytes"),
                # A key of low order: every shared secret would be 0.
                (lambda name, key, _: real(name, bytes(32), own), "computing shared key"),
            ):
                monkeypatch.setattr(masking, "masking_key", wrong)
                assert why in await refused(server, tmp_path, credentials=own)

    asyncio.run(run())


@pytest.mark.parametrize("tls", [True, False])
def test_only_the_checked_fields_of_a_key_are_sent_to_other_members(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a member could make the server send them arbitrary data."""
    authority = Authority(tmp_path / "certs")
    shown, own = authority.make("server", hosts=("127.0.0.1",)), authority.make(NAMES[0])
    real, made = masking_keys.masking_key, list[MaskingKey]()

    def padded(name: str, public: bytes, credentials: Credentials | None) -> MaskingKey:
        made.append(real(name, public, credentials))
        key = MaskingKey.FromString(made[0].SerializeToString() + b"\x7a\x07unknown")
        key.certificate = b"before\n" + key.certificate + b"after\n"
        return key

    monkeypatch.setattr(masking, "masking_key", padded)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", small(), credentials=shown if tls else None) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join(NAMES[0], credentials=own if tls else None, secure_aggregation=True)
            await server.reach(lambda: NAMES[0] in server.roster.sessions)
            kept = server.roster.sessions[NAMES[0]].masking_key
            assert kept is not None
            assert kept.SerializeToString() == made[0].SerializeToString()

    asyncio.run(run())


def test_a_member_is_disconnected_before_its_certificate_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise members that join later would get its key, reject it and leave."""
    authority = Authority(tmp_path / "certs")
    shown, own = authority.make("server", hosts=("127.0.0.1",)), authority.make(NAMES[0])

    async def run() -> None:
        async with (
            serving(tmp_path / "home", small(), credentials=shown) as server,
            members_of(tmp_path, server.address) as members,
        ):
            joined = members.join(NAMES[0], credentials=own, secure_aggregation=True)
            await server.reach(lambda: NAMES[0] in server.roster.sessions)
            monkeypatch.setattr(admission, "EXPIRY_MARGIN", timedelta(days=11))  # valid for 10
            with pytest.raises(MemberRefused, match="certificate of agent1 expires"):
                await asyncio.wait_for(joined, 20)
            assert "certificate of agent1 expires" in await refused(
                server, tmp_path / "again", credentials=own
            )

    asyncio.run(run())


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"quorum": 2}, r"service.quorum is 2; allowed with .*secure_aggregation: at least 3"),
        ({"evaluate_members": True}, r"evaluate_members is true; allowed .*: false, because"),
        ({"value_bound": 5}, r"value_bound is 5, which has no effect .* set federation.secure_v"),
        ({"members": []}, r"secure_aggregation with 0 service.members; allowed: 3 to"),
    ],
)
def test_service_settings_that_contradict_secure_aggregation_are_refused(
    service: dict[str, Any], message: str
) -> None:
    read_served_settings(small())
    with pytest.raises(SettingsError, match=message):
        read_served_settings(small(**service))
    with pytest.raises(SettingsError, match=r"secure_value_bound is for secure_aggregation"):
        read_served_settings(small().replace("secure_aggregation = true", ""))


def test_a_home_with_outdated_service_settings_opens_with_valid_ones(
    tmp_path: Path,
) -> None:
    before = parse(small(value_bound=5), (), ServedSettings)
    journal, identity = open_home(tmp_path, before)
    journal.close()
    journal, again = open_home(tmp_path, read_served_settings(small()))
    journal.close()
    assert again == identity


def test_a_query_must_fit_into_a_message_with_all_keys() -> None:
    room = MOST_BYTES_TO_A_MEMBER - ROOM_BYTES - len(NAMES) * masking_keys.MOST_KEY_BYTES
    most = room // (8 + 12 + 8)  # bytes per FrozenLake state in an improvement and a query
    for batch, fits in ((most, True), (most + 1, False)):
        overrides = [f"federation.query_batch={batch}"]
        overrides += [f"service.{key}={2**40}" for key in ("most_states", "most_message_bytes")]
        settings = read_served_settings(small(), overrides)
        with nullcontext() if fits else pytest.raises(SettingsError, match="all members' keys"):
            task_of(settings)
