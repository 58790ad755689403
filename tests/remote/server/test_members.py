"""Members that join late, leave early, fall behind or answer badly; and wrong settings."""

import asyncio
import json
import logging
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc.aio import AioRpcError

from fedhql.errors import MemberRefused, SettingsError
from fedhql.remote.member.member import Member
from fedhql.remote.wire_pb2 import Order
from fedhql.service.home import open_home, task_of
from fedhql.service.position import Position, Stage
from fedhql.settings.served import read_served_settings
from tests.remote.federating import (
    accounts,
    assert_exact_budgets,
    assert_finished,
    assert_told_once,
    broadcast,
    events,
    fact,
    federation,
    members_of,
    serving,
)
from tests.remote.raw_member import RawMember
from tests.remote.recording import Recorder, improvements_of, told

BUDGET = 240  # ten rounds with three members


@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_members_may_join_late_and_leave_early(mode: str, tmp_path: Path) -> None:
    """A late member starts at the current improvement. A member that returns misses nothing."""
    text = federation(
        BUDGET,
        mode=mode,
        exchange_deadline_seconds=1,
        learning_deadline_seconds=1,
        return_seconds=1,
        round_interval_seconds=0.02,
        chunk_env_steps=5,
    )
    agents = {n: Recorder(seed, learn_seconds=0.02) for seed, n in enumerate("abcd")}

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name in "abc":
                members.join(name, agents[name])
            await server.reach(lambda: server.roster.improvements >= 4)
            await members.leave("c")
            members.join("d", agents["d"])
            await server.reach(lambda: server.roster.improvements >= 9)
            members.join("c", Recorder(2, learn_seconds=0.02))
            await server.reach(lambda: server.roster.improvements >= 12)
            await members.leave("a")  # for good
            await server.finish()
            await members.finish("b", "c", "d")

    asyncio.run(run())
    home, found = tmp_path / "home", accounts(tmp_path / "home")
    assert_finished(home, tmp_path, "bcd", BUDGET)
    assert found["d"].joined_at >= 4
    whole, of_a = broadcast(home), improvements_of(told(tmp_path / "a"))
    assert of_a == whole[: len(of_a)]
    assert len(of_a) >= found["a"].applied_improvements >= 4  # its last reports may be lost


def test_a_member_skips_improvements_that_are_no_longer_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = federation(BUDGET, catch_up_improvements=4)
    bob = Recorder(1)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for name, agent in (("ann", Recorder(0)), ("bob", bob), ("cyd", Recorder(2))):
                members.join(name, agent)
            await server.reach(lambda: server.roster.improvements >= 5)
            await members.leave("ann")
            away_at = server.roster.improvements
            await server.reach(lambda: server.roster.improvements >= away_at + 8)
            members.join("ann", Recorder(0))
            await server.finish()
            await members.finish()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert_exact_budgets(tmp_path / "home", BUDGET)
    whole, of_ann = improvements_of(bob.told), improvements_of(told(tmp_path / "ann"))
    assert len(whole) == fact(tmp_path / "home", "improvements")  # bob was always connected
    record = accounts(tmp_path / "home")["ann"]
    skipped = record.skipped_improvements
    assert skipped >= 4
    assert len(of_ann) == record.applied_improvements - skipped
    before = next(n for n, (a, b) in enumerate(zip(of_ann, whole, strict=False)) if a != b)
    assert of_ann == whole[:before] + whole[before + skipped :]
    assert f"ann: skipped {skipped} improvements that the server no longer keeps" in caplog.text


def test_a_server_with_an_older_journal_refuses_a_newer_member(tmp_path: Path) -> None:
    """It also refuses after it has made as many improvements again: they differ."""
    text = federation(
        3 * BUDGET, return_seconds=0.2, learning_deadline_seconds=1, exchange_deadline_seconds=1
    )
    home, backup = tmp_path / "home", tmp_path / "backup"

    async def run() -> None:
        async with serving(home, text) as server, members_of(tmp_path, server.address) as members:
            for seed, name in enumerate(("ann", "bob", "cyd")):
                members.join(name, Recorder(seed))
            await server.reach(lambda: server.roster.improvements >= 3)
            await members.leave("ann")
            await members.leave("bob")  # cyd alone is no quorum, so nothing more is written
            await members.leave("cyd")
        shutil.copytree(home, backup)
        async with serving(home, text) as server, members_of(tmp_path, server.address) as members:
            members.join("cyd", Recorder(2))
            members.join("dan", Recorder(3))
            before = server.roster.improvements
            await server.reach(lambda: server.roster.improvements >= before + 3)
        async with serving(backup, text) as server, members_of(tmp_path, server.address) as members:
            with pytest.raises(MemberRefused, match=r"cyd has applied .* server may have lost"):
                await asyncio.wait_for(members.join("cyd", Recorder(2)), 20)
            members.join("ann", Recorder(0))
            members.join("eve", Recorder(4))
            ahead = int(json.loads(next((tmp_path / "cyd").glob("checkpoint/*/place.json"))
                                   .read_text())["applied"])  # fmt: skip
            await server.reach(lambda: server.roster.improvements > ahead)
            with pytest.raises(MemberRefused, match=r"improvement .* of cyd differs from"):
                await asyncio.wait_for(members.join("cyd", Recorder(2)), 20)

    asyncio.run(run())


class Forgetful:
    """An agent that cannot be saved."""

    def __init__(self, told: list[float]) -> None:
        self.told = told  # the first target of each improvement

    def self_learn(self, env_steps: int) -> None: ...

    def q_values(self, states: Any) -> Any:
        return np.zeros((len(states), 4), dtype=np.float32)

    def improve(self, states: Any, actions: Any, targets: Any) -> None:
        self.told.append(float(targets[0]))


def test_an_agent_that_cannot_be_saved_gets_no_improvement_from_before_it_joined(
    tmp_path: Path,
) -> None:
    text = federation(3 * BUDGET, learning_deadline_seconds=1, return_seconds=1)
    first: list[float] = []
    second: list[float] = []

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0))
            members.join("bob", Recorder(1))
            await server.reach(lambda: server.roster.improvements >= 4)
            members.join("cyd", Forgetful(first))
            await server.reach(lambda: len(first) >= 3)
            await members.leave("cyd")
            members.join("cyd", Forgetful(second))
            await server.finish()
            await members.finish()

    asyncio.run(run())
    record = accounts(tmp_path / "home")["cyd"]
    assert record.joined_at >= 4
    assert record.skipped_improvements == 0
    assert second[: len(first)] == first  # the same improvements are sent again
    assert len(second) == record.applied_improvements - record.joined_at


def test_an_interrupted_improvement_is_not_saved(tmp_path: Path) -> None:
    """The first interrupt asks the member to stop. The second one aborts the agent's work."""
    text = federation(BUDGET)
    bob_home = tmp_path / "bob"

    class Interrupted(Recorder):
        def improve(self, states: Any, actions: Any, targets: Any) -> None:
            super().improve(states, actions, targets)
            if len(improvements_of(self.told)) == 3:
                mains[0].cancel()
                raise KeyboardInterrupt

    async def live(member: Member) -> None:
        task = asyncio.current_task()
        assert task is not None
        mains.append(task)
        await member.run()

    mains: list[asyncio.Task[None]] = []

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0))
            bob_home.mkdir()
            member = Member(
                "bob", server.address, bob_home, lambda task: Interrupted(1),
                credentials=None, rng=random.Random(0), clock=time.monotonic,
            )  # fmt: skip
            with pytest.raises(KeyboardInterrupt):
                await asyncio.to_thread(asyncio.run, live(member))
            saved = improvements_of(told(bob_home))
            (place,) = bob_home.glob("checkpoint/*/place.json")
            assert json.loads(place.read_text())["applied"] == len(saved) < 3
            members.join("bob", Recorder(1))
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_exact_budgets(tmp_path / "home", BUDGET)
    assert_told_once(tmp_path / "home", tmp_path, ("ann", "bob"), killed=("bob",))


@pytest.mark.parametrize("garbage", ["nan", "inf", "large"])
def test_a_member_with_unusable_answers_is_quarantined_until_released(
    garbage: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    text = federation(BUDGET, return_seconds=1, learning_deadline_seconds=1)

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            bad = members.join("bad", Recorder(0, garbage=garbage, garbage_after=9))
            members.join("ann", Recorder(1, learn_seconds=0.01))
            members.join("bob", Recorder(2, learn_seconds=0.01))
            with pytest.raises(MemberRefused, match="refuses bad: quarantined: a value of"):
                await asyncio.wait_for(bad, 20)
            reached = server.roster.improvements
            await server.reach(lambda: server.roster.improvements > reached)  # the others go on
            with pytest.raises(MemberRefused, match="bad is quarantined: a value of"):
                await asyncio.wait_for(members.join("bad", Recorder(0)), 20)
            server.roster.release("bad")
            members.join("bad", Recorder(0))
            await server.finish()
            await members.finish("ann", "bob", "bad")

    asyncio.run(run())
    assert_finished(home, tmp_path, ("ann", "bob"), BUDGET)
    record = accounts(home)["bad"]
    assert record.refused_answers == 3
    assert not record.quarantined
    assert record.applied_improvements > 0
    text = events(home)
    assert text.count("bad: answer refused: a value of") == 3
    assert "bad is quarantined after 3 refused answers in a row" in text
    assert "bad is released from quarantine" in text


def test_a_round_ends_early_when_too_few_of_its_members_are_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    text = federation(
        BUDGET, exchange_deadline_seconds=0.3, return_seconds=0.5, learning_deadline_seconds=0.5
    )

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0, improve_seconds=0.05))
            members.join("bob", Recorder(1, improve_seconds=0.05))
            await server.reach(lambda: server.roster.improvements % 3 == 1)  # a round has 3 steps
            await members.leave("ann")
            members.join("cyd")
            await server.finish()
            await members.finish("bob", "cyd")

    asyncio.run(run())
    assert_finished(home, tmp_path, ("bob", "cyd"), BUDGET)
    assert "ends early: too few of its members are left" in events(home)


def test_a_first_step_that_too_few_finish_leaves_no_episode_to_carry_over(tmp_path: Path) -> None:
    """Nobody has paid for it. So the second round begins its episodes anew."""
    text = federation(
        BUDGET,
        exchange_deadline_seconds=0.3,
        return_seconds=0.5,
        learning_deadline_seconds=0.5,
        evaluate_members=False,
    ).replace("[federation]", '[federation]\nserver_environments = "carry-over"')
    frail, asked = Recorder(0), 0

    def fail(point: str) -> None:
        nonlocal asked
        if point == "answering" and frail.told:  # a member tries its agent before it joins
            asked += 1
            if asked == 2:  # about the next states of the first step
                raise RuntimeError("broken")

    frail.at = fail
    carried: list[Any] = []

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            write = server.service._write_position

            def write_position(position: Position) -> None:
                if (position.round, position.stage) == (1, Stage.NEXT):
                    carried.append(position.environments)
                write(position)

            server.service._write_position = write_position  # type: ignore[method-assign]  # a spy
            members.join("ann", frail)
            members.join("bob", Recorder(1))
            await server.reach(lambda: asked == 2)
            members.join("cyd", Recorder(2))  # too late for this round
            await server.finish()
            await members.finish("bob", "cyd")
            with pytest.raises(RuntimeError, match="broken"):
                await members.finish("ann")

    asyncio.run(run())
    assert "round 0 ends early: too few of its members are left" in events(tmp_path / "home")
    assert carried == [{"running": [], "episodes": []}]


def test_rounds_go_on_without_a_slow_learner_and_it_gets_all_its_steps(tmp_path: Path) -> None:
    home, text = tmp_path / "home", federation(
        72, start_with=3, exchange_deadline_seconds=0.1, learning_deadline_seconds=0.1,
        disconnect_after=1_000,
    )  # fmt: skip

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0, learn_seconds=0.4))
            members.join("bob", Recorder(1))
            members.join("cyd", Recorder(2))
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(home, tmp_path, ("ann", "bob", "cyd"), 72)
    assert "ann is late with self-learning: nothing came for 0.1 s; the others go on" in events(
        home
    )
    for record in accounts(home).values():
        assert not record.learning
        assert record.left(72) < 1 or record.name == "ann"  # ann may be left alone at the end


def test_a_round_without_a_server_step_says_that_its_members_are_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = federation(
        BUDGET, exchange_deadline_seconds=0.1, learning_deadline_seconds=0.1, disconnect_after=1_000
    )

    def told() -> bool:
        why = "s of self-learning; no server step, because fewer than 2 members are there and in "
        return any(why in record.getMessage() for record in caplog.records)

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann", Recorder(0, learn_seconds=0.4))
            members.join("bob", Recorder(1))
            await server.reach(told)
            await members.leave("ann")
            await members.leave("bob")

    asyncio.run(run())


def test_a_federation_does_not_end_while_members_are_absent(tmp_path: Path) -> None:
    """No member has learned yet, and one that the quorum needs connects late."""
    home, text = tmp_path / "home", federation(BUDGET // 10, start_with=3, quorum=3)
    journal, _ = open_home(home, read_served_settings(text))
    journal.write(facts={"position": {"round": 0, "stage": "next", "enlisted": []}})
    journal.close()

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("ann")
            members.join("bob")
            await server.reach(lambda: len(server.roster.present()) == 2)
            await asyncio.sleep(0.1)
            assert not server.work.done()
            members.join("cyd")
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(home, tmp_path, ("ann", "bob", "cyd"), BUDGET // 10)
    assert fact(home, "improvements") == 3


def test_the_log_says_whom_the_server_waits_for_and_how_the_federation_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    home, text = tmp_path / "home", federation(98)

    async def run() -> None:
        async with (
            serving(home, text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            roster = server.roster
            await server.reach(lambda: roster.waits.current is not None)
            members.join("ann")
            await server.reach(lambda: roster.present() == ["ann"])
            wait = roster.waits.current
            assert wait is not None
            needed = "2 members are needed to begin (service.start_with)"
            assert wait.what() == f"{needed}, 1 there"
            assert f"waiting for members: {needed}, 0 there" in events(home)
            members.join("bob")
            await server.finish()
            await members.finish()

    asyncio.run(run())
    told = [record.getMessage() for record in caplog.records]
    # 98 steps are three rounds of 20 own steps and 6 of the server's, then 20 own steps.
    *rounds, last_round = [text for text in told if text.startswith("round ")]
    assert [" with ann, bob; " in text for text in rounds] == [True] * 3
    assert last_round.startswith("round 3: ")
    assert last_round.endswith(
        " of self-learning; no server step, because fewer than 2 members have budget left for one"
    )
    for name in ("ann", "bob"):
        last = [text for text in told if text.startswith(f"{name} ")][-3:]
        assert last == [
            f"{name} has finished: its budget is spent",
            f"{name} says goodbye: all is saved",
            f"{name} has left: it said goodbye",
        ]


class Leaving(RawMember):
    """Leaves when it is told to learn, and does not come back."""

    async def on_learn(self, order: Order) -> None:
        self.call.cancel()


def test_a_member_that_the_quorum_needs_is_named_when_it_is_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            serving(tmp_path / "home", federation(BUDGET)) as server,
            members_of(tmp_path, server.address) as members,
        ):
            members.join("bob")
            with suppress(asyncio.CancelledError, asyncio.InvalidStateError, AioRpcError):
                await Leaving(server.address, "eve").connect()

            def eve_is_named() -> bool:
                wait = server.roster.waits.current
                return wait is not None and (wait.what(), wait.names()) == (
                    "self-learning",
                    ["eve"],
                )

            await server.reach(lambda: "eve" not in server.roster.sessions and eve_is_named())

    asyncio.run(run())


WRONG = {
    "quorum=3": "service.quorum is 3; allowed: up to service.start_with, which is 2",
    "quorum=0": "service.quorum: 0 is wrong; allowed: a whole number > 0",
    "mode='sometimes'": "service.mode: 'sometimes' is wrong; allowed: 'rounds', 'continuous'",
    "members=['ann']": "service.start_with is 2, but service.members names 1",
    "members=['ann', 'ann']": "service.members: a name is listed twice",
    "members=[1, 2]": "service.members.1: 1 is wrong; allowed: a list, each a string",
    "value_bound=nan": "service.value_bound: nan is wrong; allowed: a number > 0",
    "exchange_deadline_seconds=-1": "service.exchange_deadline_seconds: -1 is wrong",
    "most_states=3": "service.most_states is 3; allowed: at least 4 (federation.query_batch is 4, "
    "with 4 actions; evaluation.episodes is 1)",
    "most_message_bytes=1087": "an answer would be 64 bytes, allowed: 63",
    "quorumm=1": "service.quorumm: unknown key; did you mean 'quorum'?",
}


ALL_ACTIONS = "federation.broadcast='all-actions'"
REPLAY = "federation.replay_batch=5"
TRIMMED = ("federation.rule='trimmed'", "federation.trim=1")
WRONG_TOGETHER: dict[tuple[str, ...], str] = {
    (ALL_ACTIONS, "service.most_states=15"): "service.most_states is 15; allowed: at least 16 (",
    (REPLAY, "service.most_states=8"): "at least 9 (federation.replay_batch is 5, ",
    (ALL_ACTIONS, REPLAY, "service.most_states=35"): "at least 36 (federation.replay_batch is 5, ",
    TRIMMED: "'trimmed' needs at least 3 answers (service.quorum); there are 2",
}


@pytest.mark.parametrize("overrides", WRONG_TOGETHER)
def test_service_settings_must_fit_the_federation_settings(overrides: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as caught:
        task_of(read_served_settings(federation(), overrides))
    assert WRONG_TOGETHER[overrides] in str(caught.value)
    for good in ([ALL_ACTIONS, "service.most_states=16"],
                 [ALL_ACTIONS, REPLAY, "service.most_states=36"],
                 [*TRIMMED, "service.start_with=3", "service.quorum=3"]):  # fmt: skip
        task_of(read_served_settings(federation(), good))


@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_service_setting_gives_a_one_line_error(setting: str) -> None:
    with pytest.raises(SettingsError) as caught:
        task_of(read_served_settings(federation(), [f"service.{setting}"]))
    assert WRONG[setting] in str(caught.value)
    assert "\n" not in str(caught.value)
