import copy

import numpy as np
import pytest
import torch
from torch import nn

from examples.three_black_boxes import (
    AGENTS,
    Draw,
    MinibatchDescent,
    Regression,
    SvrgDescent,
    main,
)
from fedhql import BlackBoxAgent


def test_runs_both_arms_and_ends_with_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--budget", "600"])
    *lines, note = capsys.readouterr().out.splitlines()
    assert note.startswith("alone: the arm independent")
    assert lines[0].startswith("FedHQL, λ = 1 minus alone: ")
    assert lines[-5].split(":")[0].split() == ["agent", "alone"]
    assert [line.partition(" ")[0] for line in lines[-4:]] == [*AGENTS, "mean"]


@pytest.mark.parametrize("name", AGENTS)
def test_each_agent_answers_learns_and_improves(name: str) -> None:
    agent = AGENTS[name](seed=0)
    assert isinstance(agent, BlackBoxAgent)
    states = np.random.default_rng(0).uniform(-1, 1, (32, 4)).astype(np.float32)
    targets = np.ones(32, dtype=np.float32)
    before = np.abs(agent.q_values(states)[:, 0] - targets).mean()
    for _ in range(30):
        agent.improve(states, np.zeros(32, dtype=np.int64), targets)
    improved = agent.q_values(states)
    assert np.abs(improved[:, 0] - targets).mean() < 0.5 * before
    agent.self_learn(200)
    assert not np.array_equal(agent.q_values(states), improved)


def test_svrg_that_always_takes_a_snapshot_is_full_gradient_descent() -> None:
    torch.manual_seed(0)
    data = Regression(torch.randn(64, 4), torch.arange(64) % 2, torch.randn(64))
    generator = torch.Generator().manual_seed(1)

    def draw(size: int) -> Regression:
        rows = torch.randperm(64, generator=generator)[:size]
        return Regression(*(column[rows] for column in data))

    first = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    second, third = copy.deepcopy(first), copy.deepcopy(first)

    def sgd(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.1)

    whole: Draw = lambda size: data  # noqa: E731 - a draw of everything
    SvrgDescent(first, sgd(first), snapshot_every=1, large_batch=64).fit(draw, 5, batch_size=4)
    MinibatchDescent(second, sgd(second)).fit(whole, 5, batch_size=4)
    MinibatchDescent(third, sgd(third)).fit(draw, 5, batch_size=4)
    svrg, full, minibatch = (
        nn.utils.parameters_to_vector(network.parameters()) for network in (first, second, third)
    )
    torch.testing.assert_close(svrg, full, atol=1e-6, rtol=0)
    assert (minibatch - full).abs().max() > 1e-3
