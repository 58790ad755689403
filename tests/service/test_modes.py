"""A federation over the network from start to end, in both modes."""

import asyncio
from pathlib import Path

import pytest

from tests.remote.federating import (
    accounts,
    assert_finished,
    fact,
    federation,
    members_of,
    serving,
)
from tests.remote.recording import Recorder

NAMES = ("ann", "bob", "cyd")
BUDGET = 96  # four rounds of 20 own steps and a third of 12; an improvement comes last


@pytest.mark.parametrize("mode", ["rounds", "continuous"])
def test_every_member_applies_each_improvement_once(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    text = federation(
        BUDGET, mode=mode, start_with=3, round_interval_seconds=0.02, chunk_env_steps=7
    )

    async def run() -> None:
        async with (
            serving(tmp_path / "home", text) as server,
            members_of(tmp_path, server.address) as members,
        ):
            for seed, name in enumerate(NAMES):
                members.join(name, Recorder(seed, learn_seconds=0.03))
            await server.finish()
            await members.finish()

    asyncio.run(run())
    assert_finished(tmp_path / "home", tmp_path, NAMES, BUDGET)
    improvements = fact(tmp_path / "home", "improvements")
    for account in accounts(tmp_path / "home").values():
        assert account.parted
        if mode == "rounds":  # in continuous mode a member may finish before the others
            assert account.applied_improvements == improvements == 12
        else:
            assert account.applied_improvements >= 3
    *_, last = (record.getMessage() for record in caplog.records if "TD err" in record.getMessage())
    assert last.endswith(f"; {improvements} improvements in all rounds")
