import numpy as np
import pytest

from fedhql.results.curves import Arms, Run
from fedhql.results.objectives import (
    FRACTIONS,
    Efficiency,
    Estimate,
    Welfare,
    sample_efficiency,
    share_that_needs_less,
    system_welfare,
    welfare_of,
)
from tests.results.handmade import curve, run_of


def welfare(run: Run, arm: str, fraction: float) -> Welfare:
    return next(w for w in system_welfare(run, level=0.5) if (w.arm, w.fraction) == (arm, fraction))


PAIRED: Arms = {
    "independent": {
        0: curve([10, 40, 100], [0, 10, 20], [20, 10, 60]),
        1: curve([10, 40, 100], [100, 100, 100], [100, 100, 100]),
    },
    "fedhql": {
        1: curve([10, 40, 100], [101, 101, 101], [103, 103, 103]),
        0: curve([10, 40, 100], [50, 40, 30], [30, 40, 50]),
    },
}


def test_agents_are_averaged_within_a_seed() -> None:
    run = run_of(PAIRED)
    assert welfare_of(run, "independent", 10) == {0: (0 + 20) / 2, 1: 100}
    assert welfare_of(run, "independent", 40) == {0: (10 + 20) / 2, 1: 100}
    assert welfare_of(run, "independent", 100) == {0: (20 + 60) / 2, 1: 100}
    assert welfare_of(run, "fedhql", 100) == {1: 102, 0: 50}
    assert welfare_of(run, "exploration=3", 100) == {}


def test_what_comes_later_in_the_budget_does_not_count() -> None:
    assert welfare_of(run_of(PAIRED), "independent", 39) == {0: 10, 1: 100}
    assert welfare_of(run_of(PAIRED), "independent", 5) == {}


def test_gains_are_paired_by_seed() -> None:
    found = welfare(run_of(PAIRED), "fedhql", 1.0)
    assert found.seeds == 2
    assert found.welfare.mean == (102 + 50) / 2
    assert found.gain is not None
    # Seed 0: 50 - 40; seed 1: 102 - 100. Two seeds' interval at 50 % reaches from one to the other.
    gain = (found.gain.mean, found.gain.low, found.gain.high)
    assert gain == pytest.approx((6, 2, 10))


def test_only_seeds_with_a_partner_have_a_gain() -> None:
    arms: Arms = {"independent": {0: curve([100], [10])}}
    arms["fedhql"] = {0: curve([100], [11]), 5: curve([100], [1000])}
    found = welfare(run_of(arms), "fedhql", 1.0)
    assert found.seeds == 2
    assert found.gain is not None
    assert found.gain.mean == 1


def test_independent_and_arms_without_it_have_no_gain() -> None:
    assert welfare(run_of(PAIRED), "independent", 1.0).gain is None
    alone = run_of({"fedhql": PAIRED["fedhql"]})
    assert welfare(alone, "fedhql", 1.0).gain is None


def test_every_arm_is_judged_at_every_fraction_it_has_reached() -> None:
    found = [(w.fraction, w.arm) for w in system_welfare(run_of(PAIRED))]
    assert found == [(f, arm) for f in FRACTIONS[1:] for arm in ("independent", "fedhql")]


def test_seeds_that_have_not_come_so_far_are_left_out() -> None:
    # Phases are of 5 steps; the last, and the server's round before it, may be cut short.
    ends = {0: 100, 1: 91, 2: 90, 3: 89, 4: 45}
    run = run_of({"fedhql": {seed: curve([10, end], [1, 2]) for seed, end in ends.items()}})
    assert list(welfare_of(run, "fedhql", 100)) == [0, 1, 2]
    assert list(welfare_of(run, "fedhql", 60)) == [0, 1, 2, 3]
    assert list(welfare_of(run, "fedhql", 40)) == [0, 1, 2, 3, 4]


def test_an_estimate_reads_as_mean_and_interval() -> None:
    assert str(welfare(run_of(PAIRED), "fedhql", 1.0).welfare) == "76 [50, 102]"


ALONE: Arms = {
    "independent": {
        0: curve([10, 20, 40, 100], [1, 5, 4, 0], [0, 0, 9, 0]),
        1: curve([10, 20, 40, 100], [1, 2, 3, 0], [7, 1, 1, 0]),
    }
}
TOGETHER: Arms = {
    "fedhql": {
        0: curve([12, 25, 38, 99], [5, 0, 0, 0], [1, 9, 9, 0], own=[9, 18, 27, 90]),
        1: curve([12, 25, 38, 99], [2, 2, 2, 0], [6, 6, 8, 0], own=[9, 18, 27, 90]),
    }
}


def efficiency(
    federated: Arms, *, server_share: bool = True, reach: float | None = None
) -> list[Efficiency]:
    run = run_of(ALONE | federated)
    return sample_efficiency(run, "fedhql", server_share=server_share, reach=reach)


def test_ratios_of_env_steps_by_hand() -> None:
    first, second = efficiency(TOGETHER)
    assert (first.agent, second.agent) == ("agent1", "agent2")
    # Agent 1 alone reached 5 after 20 (seed 0), and 3 after 40 (seed 1); federated, 3 never.
    assert first.ratio_S == [12 / 20, np.inf]
    assert first.median_ratio == np.inf
    # Agent 2 alone reached 9 after 40, and 7 after 10.
    assert second.ratio_S == [25 / 40, 38 / 10]
    assert second.median_ratio == pytest.approx((0.625 + 3.8) / 2)
    assert share_that_needs_less([first, second]).tolist() == [1, 0]


def test_the_paper_counts_own_steps_only() -> None:
    first, second = efficiency(TOGETHER, server_share=False)
    assert first.ratio_S == [9 / 20, np.inf]
    assert second.ratio_S == [18 / 40, 27 / 10]


def test_runs_that_did_not_record_own_steps_cannot_say() -> None:
    one = {0: curve([12, 99], [5, 0], [9, 0], own=None), 1: TOGETHER["fedhql"][1]}
    first, _ = efficiency({"fedhql": one}, server_share=False)
    assert first.ratio_S == [np.inf]  # of seed 1 alone
    none = {0: one[0]}
    assert efficiency({"fedhql": none}, server_share=False) == []
    assert len(efficiency({"fedhql": none}, server_share=True)) == 2


def test_steps_to_a_fixed_return() -> None:
    first, second = efficiency(TOGETHER, reach=5)
    # Agent 1: 5 after 12 and after 20; in seed 1 nobody reaches it.
    assert first.ratio_S == [12 / 20, 1]
    # Agent 2: after 25 and 40; after 12 and 10.
    assert second.ratio_S == [25 / 40, 12 / 10]
    _, second = efficiency(TOGETHER, reach=8)
    assert second.ratio_S == [25 / 40, 0]  # alone it never reaches 8 in seed 1
    assert second.probability_of_less().mean == 1


def test_the_probability_has_the_exact_interval() -> None:
    found = Efficiency("agent1", [0.5, 0.5, 0.5, 1, np.inf]).probability_of_less(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((0.6, 0.147, 0.947), abs=1e-3)


def test_as_many_steps_are_not_fewer() -> None:
    first, second = efficiency({"fedhql": {1: curve([10, 40, 100], [1, 3, 0], [7, 7, 0])}})
    assert first.ratio_S == second.ratio_S == [1]
    assert first.probability_of_less().mean == 0


def test_seeds_under_way_have_no_ratio() -> None:
    assert efficiency({"fedhql": {1: curve([10, 40], [1, 3], [7, 7])}}) == []


def test_nothing_to_compare_with() -> None:
    assert efficiency({}) == []
    assert efficiency({"fedhql": {2: curve([10], [1], [1])}}) == []
    alone = run_of({"fedhql": {0: curve([10], [1])}})
    assert sample_efficiency(alone, "fedhql", server_share=True) == []


def test_the_interval_of_a_share_ends_at_0_and_1() -> None:
    cut = Estimate.of([0.0, 1.0, 1.0]).as_share()
    assert (cut.low, cut.high) == (0, 1)
    assert str(cut) == "0.667 [0, 1]"
    inside = Estimate.of([0.5, 0.6, 0.55])
    assert inside.as_share() == inside
    assert str(Estimate.of([0.5]).as_share()) == "0.5 [1 seed]"
    assert str(Estimate.of([0.0, 0.0]).as_share()) == "0 [2 equal seeds]"
    assert [str(Estimate.of([1.0, value])) for value in (np.inf, np.nan)] == ["inf", "nan"]
