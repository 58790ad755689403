from fractions import Fraction

from fedhql.federation import Account, Budget


def test_server_steps_are_shared_by_the_agents() -> None:
    budget = Budget(env_steps_per_agent=1000, agents=5).after_self_learning(100)
    assert budget.after_server_steps(2048).consumed_per_agent == 100 + 2048 / 5


def test_self_learning_is_cut_to_what_is_left() -> None:
    budget = Budget(env_steps_per_agent=1000, agents=4)
    assert budget.affordable_self_learning(600) == 600
    spent = budget.after_self_learning(600).after_server_steps(1)
    # 399.75 steps are left; a quarter step cannot be taken.
    assert spent.affordable_self_learning(600) == 399
    assert spent.remaining_env_steps == 4 * 400 - 1
    assert spent.after_self_learning(399).affordable_self_learning(600) == 0


def test_a_budget_charges_each_agent_as_its_own_account() -> None:
    """Agents with equal steps share one budget; a network member has an account of its own."""
    budget = Budget(1_000, agents=3, own_env_steps=10).after_server_steps(7).after_server_steps(4)
    account = Account(10).charged(7, agents=3).charged(4, agents=3)
    assert budget.account == account
    assert account.server_share == Fraction(11, 3)
    assert budget.consumed_per_agent == account.consumed == 10 + 11 / 3
    assert budget.remaining_env_steps == 3 * 1_000 - 3 * 10 - 11
