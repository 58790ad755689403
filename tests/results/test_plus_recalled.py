"""What docs say of more replayed transitions on LunarLander, from the committed screens."""

from benchmarks.plus_search import compare, gains, rows_in
from tests.results.test_plus import DOCS, words
from tests.results.test_plus_candidates import SECOND_HALVES

TASK = "lunarlander-n5"
RECALLED = rows_in(DOCS / "plus" / "recalled")
LESS, MORE = (f"pessimism=0,replay_batch={R}" for R in (480, 992))
BELLMAN = "rule=bellman-weighted,"


def added(arm: str, other: str, column: str = "second_half") -> str:
    return "{:.0f} and {:.0f}".format(*gains(RECALLED, TASK, arm, other, column))


def test_the_table_of_recalled_transitions_is_of_its_runs() -> None:
    assert f"\n\n{compare(RECALLED)}\n\n" in (DOCS / "plus" / "search.md").read_text()
    assert {row.env_steps for row in RECALLED} == {RECALLED[0].env_steps}
    assert {row.seed for row in RECALLED} == {100, 101}


def test_what_is_told_of_recalled_transitions() -> None:
    appendix = words("plus/search.md")
    told = "{} in the two seeds after self-learning, {} after rounds and {} to the consensus"
    of_more = [added(MORE, "fedhql", column) for column in SECOND_HALVES]
    assert f"992 transitions without pessimism** add {told.format(*of_more)}" in appendix
    (later,) = rows_in(DOCS / "plus" / "recalled-later")
    assert (later.arm, later.seed, later.env_steps) == (MORE, 102, RECALLED[0].env_steps)
    told = "this server has {:.0f} after self-learning, {:.0f} after rounds and {:.0f} for the"
    assert told.format(*(getattr(later, column) for column in SECOND_HALVES)) in appendix
    calm = [added(LESS, "replay_batch=480", column) for column in SECOND_HALVES[::2]]
    told = "μ = 0 adds {} to μ = 1 after self-learning, and {} to the consensus policy."
    assert told.format(*calm) in appendix
    pairs = added(BELLMAN + MORE, BELLMAN + LESS), added(MORE, LESS)
    told = "992 transitions add {} to 480. With `median-mad` and μ = 0 they add {}."
    assert told.format(*pairs) in appendix
    assert f"**The lower centre** adds {added('rule=lowq:BETWEEN', 'fedhql')}." in appendix
    changed = (
        row.second_half_after_rounds - row.second_half for row in RECALLED if row.arm == MORE
    )
    assert "A round changes the mean return by {:.0f} and {:.0f}.".format(*changed) in appendix
