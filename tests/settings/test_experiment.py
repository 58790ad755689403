import math

import pytest

from fedhql.errors import SettingsError
from fedhql.federation import RULES
from fedhql.federation.attacks import ATTACKS
from fedhql.settings.experiment import differing_keys, read_settings
from fedhql.settings.presets import PLUS, PLUS_AGENTS, preset_names, preset_text
from fedhql.settings.served import read_served_settings

SMALL = """
[environment]
id = "CartPole-v1"
[budget]
env_steps_per_agent = 1000
[[agents]]
kind = "sb3-dqn"
[[agents]]
kind = "my.module:Agent"
anything = [1, 2]
"""


def test_defaults_are_the_values_of_the_paper() -> None:
    federation = read_settings(SMALL).federation
    assert (federation.exploration, federation.learning_rate) == (1.0, 0.05)
    assert (federation.horizon_steps, federation.query_batch) == (16, 128)
    assert (federation.rule, federation.broadcast) == ("mean-std", "chosen")
    assert read_settings(SMALL).evaluation.episodes == 10


def test_only_known_kinds_of_agents_get_defaults() -> None:
    ours, theirs = read_settings(SMALL).agents
    assert ours.options["batch_size"] == 32
    assert ours.options["improvement_steps"] == 64
    assert theirs.options == {"anything": [1, 2]}


def test_settings_with_defaults_read_back_as_the_same_settings() -> None:
    for text in (SMALL, *map(preset_text, preset_names())):
        settings = read_settings(text)
        assert read_settings(settings.as_toml()) == settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "federation.exploration=-1",
            r"federation.exploration: -1 is wrong; allowed: a number >= 0",
        ),
        ("federation.exploration=nan", r"federation.exploration"),
        ("federation.learning_rate=2", r"federation.learning_rate: 2 is wrong; .* >= 0 and <= 1"),
        (
            "federation.horizon_steps=1.5",
            r"federation.horizon_steps: 1.5 is wrong; .*whole number > 0",
        ),
        ("federation.explorration=1", r"federation.explorration: unknown key; did you mean 'explo"),
        (
            "federation.rule=median",
            r"federation.rule: 'median' is wrong; allowed: 'mean-std', 'bernstein', 'median-mad', "
            r"'sceptical', 'hampel', 'trimmed', 'bellman-weighted'",
        ),
        (
            "federation.broadcast=all",
            r"federation.broadcast: 'all' is wrong; allowed: 'chosen', 'all-actions'",
        ),
        ("federation.trim=1", r"federation.trim is for rule = 'trimmed', not 'mean-std'"),
        ("federation.trim=0", r"federation.trim: 0 is wrong; allowed: a number > 0"),
        ("federation.rule=trimmed", r"federation.rule = 'trimmed' needs federation.trim > 0"),
        ("federation.bound=1", r"federation.bound is for rule = 'bernstein'"),
        ("federation.rule=bernstein", r"needs federation.bound"),
        ("environment.discount=1.5", r"environment.discount: 1.5 is wrong; .* > 0 and <= 1"),
        (
            "budget.env_steps_per_agent=0",
            r"budget.env_steps_per_agent: 0 is wrong; .*whole number > 0",
        ),
        (
            "budget.env_steps=5",
            r"budget.env_steps: unknown key; did you mean 'env_steps_per_agent'",
        ),
        (
            "evaluation.interval_env_steps=0",
            r"evaluation.interval_env_steps: 0 is wrong; allowed: a whole number > 0",
        ),
        ("query_batch=8", r"query_batch: unknown key; did you mean 'federation.query_batch'\?"),
        (
            "learning_rate=1",
            r"learning_rate: unknown key; did you mean 'federation.learning_rate' or "
            r"'agents.learning_rate'\? allowed",
        ),
        ("hidden=[8]", r"hidden: unknown key; did you mean 'agents.hidden'\? allowed"),
        ("batch_size=8", r"batch_size: unknown key; did you mean 'agents.batch_size'\? allowed"),
        ("learning_starts=3", r"unknown key; did you mean 'agents.learning_starts'\? allowed"),
        ("learning_rates=3", r"learning_rates: unknown key; allowed"),
        ("federate.trim=1", r"federate: unknown key; did you mean 'federation'\? allowed"),
        ("colour.red=1", r"colour: unknown key; .*allowed: environment, federation, budget"),
        ("agents.1.learning_rate=0", r"agents.1.learning_rate: 0 is wrong; allowed: a number > 0"),
        ("agents.1.hiden=[8]", r"agents.1.hiden: unknown key; did you mean 'hidden'"),
        ("agents.1.hidden=[8,-8]", r"agents.1.hidden.2: -8 is wrong; .*whole number > 0"),
        ("agents.1.activation=cube", r"agents.1.activation: 'cube' is wrong; allowed: 'relu'"),
        (
            "agents.1.kind=dqm",
            r"agents.1.kind: unknown kind 'dqm'; did you mean 'dqn'[?] allowed: dqn,",
        ),
        ("agents.3.hidden=[8]", r"N from 1 to 2"),
        ("nonsense", r"write section.key=value"),
    ],
)
def test_an_error_names_the_wrong_key_and_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_settings(SMALL, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[environment", "not a TOML file"),
        ("[environment]\nid = 'X'\n[budget]\nenv_steps_per_agent = 1", "agents: empty"),
        (
            "agents = []\n[environment]\nid = 'X'\n[budget]\nenv_steps_per_agent = 1",
            "agents: empty; .* at least one",
        ),
        ("[[agents]]\nhidden = [8]", "environment: missing; allowed: a table; budget: missing"),
    ],
)
def test_a_broken_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(text)


BERNSTEIN = ("federation.rule=bernstein", "federation.bound=1", "federation.confidence=1")
SECURE = "federation.secure_aggregation=true"
OF_FIVE = r"; allowed: 1 to 2 of 5 agents, or a share from 1/5 to below 0.5"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*BERNSTEIN, "federation.exploration=3"), r"federation.exploration is for .*no λ"),
        ((*BERNSTEIN, "federation.trim=1"), r"trim is for rule = 'trimmed', not 'bernstein'"),
        (
            ("federation.rule=median-mad", "federation.bound=1"),
            r"federation.bound is for rule = 'bernstein', not 'median-mad'",
        ),
        (("federation.rule=trimmed", "federation.trim=3"), rf"federation.trim is 3{OF_FIVE}"),
        (("federation.rule=trimmed", "federation.trim=1.5"), rf"federation.trim is 1.5{OF_FIVE}"),
        (("federation.rule=trimmed", "federation.trim=0.5"), rf"federation.trim is 0.5{OF_FIVE}"),
        (("federation.rule=trimmed", "federation.trim=0.1"), rf"federation.trim is 0.1{OF_FIVE}"),
        (
            (SECURE, "federation.rule=median-mad"),
            r"secure_aggregation with rule = 'median-mad', .* allowed: 'mean-std', 'bernstein'",
        ),
        ((SECURE, "federation.rule=trimmed", "federation.trim=1"), r"with rule = 'trimmed'"),
        ((SECURE, "federation.rule=bellman-weighted"), r"with rule = 'bellman-weighted'"),
        (("federation.secure_value_bound=9",), r"secure_value_bound is for secure_aggregation ="),
        ((SECURE, "federation.secure_value_bound=1e9"), r"secure_value_bound is 1e\+09: no room"),
        (
            (SECURE, "federation.secure_value_bound=5e6"),
            r"secure_aggregation with 5 agents; allowed: 3 to 4, for values up to 5e\+06",
        ),
    ],
)
def test_a_contradiction_between_rule_and_numbers_is_refused(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_settings(preset_text("cartpole-n5"), overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("attack.attackers=2",), r"attack.attackers is 2: needs attack.name; allowed: nan, huge"),
        (("attack.name=noise",), r"attack.attackers is 0 with .* 'noise'; allowed: 1 to 3 of 5"),
        (
            ("attack.name=nan", "attack.attackers=5"),
            r"attackers is 5 .*; allowed: 1 to 4 of 5",
        ),
        ((SECURE, "attack.name=nan", "attack.attackers=1"), r"attackers is 1; allowed with .*: 0"),
        (("attack.attackers=-1",), r"attack.attackers: -1 is wrong; allowed: a whole number >= 0"),
        (("attack.name=lie",), r"attack.name: 'lie' is wrong; allowed: 'nan', 'huge', 'sign-flip'"),
        (("attack.kind=nan",), r"attack.kind: unknown key; .*allowed: name, attackers"),
    ],
)
def test_an_impossible_attack_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_settings(preset_text("cartpole-n5"), overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_reads_back_as_the_same_settings(name: str) -> None:
    """TOML would read a bare nan as a number."""
    overrides = [f"attack.name={name}", "attack.attackers=2"]
    settings = read_settings(preset_text("cartpole-n5"), overrides)
    assert settings.attack.name == name
    assert read_settings(settings.as_toml()) == settings


def test_a_federation_service_has_no_attack_section() -> None:
    text, _, _ = SMALL.partition("[[agents]]")
    assert read_served_settings(text)
    with pytest.raises(SettingsError, match=r"^attack: unknown key; allowed: environment"):
        read_served_settings(text, ["attack.name=nan", "attack.attackers=1"])


def test_a_federation_service_lists_no_reserved_name() -> None:
    text = SMALL.partition("[[agents]]")[0] + '[service]\nmembers = ["ann", "Consensus"]\n'
    with pytest.raises(SettingsError, match="'Consensus' is reserved; allowed"):
        read_served_settings(text)


def test_trimming_needs_three_agents() -> None:
    with pytest.raises(SettingsError, match=r"'trimmed' needs at least 3 agents; there are 2"):
        read_settings(SMALL, ["federation.rule=trimmed", "federation.trim=1"])


def test_secure_aggregation_needs_three_agents() -> None:
    with pytest.raises(SettingsError, match=r"with 2 agents; allowed: 3 to 17, for values up to"):
        read_settings(SMALL, [SECURE])
    settings = read_settings(preset_text("cartpole-n10"), [SECURE])
    assert read_settings(settings.as_toml()) == settings


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("trim", [2, 0.2])
def test_every_rule_reads_back_as_the_same_settings(rule: str, trim: float) -> None:
    numbers = {"exploration": 3, "bound": 5, "confidence": 1, "trim": trim}
    own = [f"federation.{key}={numbers[key]}" for key in RULES[rule].numbers]
    settings = read_settings(
        preset_text("cartpole-n5"),
        [f"federation.rule={rule}", "federation.broadcast=all-actions", *own],
    )
    assert settings.federation.all_actions
    assert read_settings(settings.as_toml()) == settings


def test_an_override_changes_one_agent_or_all() -> None:
    settings = read_settings(
        preset_text("cartpole-n5"),
        ["agents.learning_starts=7", "agents.2.hidden=[3]", "federation.exploration=3"],
    )
    assert {agent.options["learning_starts"] for agent in settings.agents} == {7}
    assert settings.agents[1].options["hidden"] == [3]
    assert settings.agents[0].options["hidden"] == [64, 64]
    assert settings.federation.exploration == 3


def test_differing_keys_are_named() -> None:
    ours = read_settings(SMALL)
    theirs = read_settings(SMALL, ["agents.1.learning_rate=0.5", "budget.env_steps_per_agent=9"])
    assert differing_keys(ours, ours) == []
    assert differing_keys(ours, theirs) == [
        "budget.env_steps_per_agent is 1000 here and 9 there",
        "agents.1.learning_rate is 0.0001 here and 0.5 there",
    ]


N5 = [
    ([64, 64], "tanh", 0.005, 0.01),
    ([128, 128], "relu", 0.01, 0.1),
    ([32, 32], "tanh", 0.01, 0.05),
    ([16, 16], "relu", 0.02, 0.01),
    ([8, 8, 8], "relu", 0.001, 0.01),
]
N10 = [
    ([64, 64], "relu", 0.01, 0.01),
    ([128, 128], "relu", 0.1, 0.1),
    ([32, 32], "tanh", 0.01, 0.05),
    ([16, 16], "relu", 0.01, 0.01),
    ([8, 8, 8], "relu", 0.01, 0.01),
    ([64, 64], "tanh", 0.02, 0.01),
    ([128, 128], "relu", 0.02, 0.1),
    ([32, 32], "relu", 0.02, 0.05),
    ([16, 16], "tanh", 0.05, 0.01),
    ([8, 8, 8], "tanh", 0.05, 0.01),
]


@pytest.mark.parametrize("task", ["cartpole", "lunarlander"])
@pytest.mark.parametrize("agents", [5, 10])
def test_presets_hold_the_tables_of_the_paper(task: str, agents: int) -> None:
    settings = read_settings(preset_text(f"{task}-n{agents}"))
    table = [
        tuple(
            agent.options[key]
            for key in ("hidden", "activation", "learning_rate", "exploration_final_eps")
        )
        for agent in settings.agents
    ]
    assert table == (N5 if agents == 5 else N10)
    environment, federation, budget = settings.environment, settings.federation, settings.budget
    expected = {
        "cartpole": ("CartPole-v1", 0.999, 5_000, 2_000_000, 1_000),
        "lunarlander": ("LunarLander-v3", 0.99, 10_000, 4_000_000, 2_000),
    }[task]
    assert expected == (
        environment.id,
        environment.discount,
        federation.self_learning_env_steps,
        budget.env_steps_per_agent,
        settings.agents[0].options["target_update_interval"],
    )
    common = {
        "kind": "dqn",
        "optimizer": "sgd",
        "warm_up": "policy",
        "learning_starts": 50_000,
        "batch_size": 32,
        "train_freq": 4,
        "buffer_size": 1_000_000,
        "max_grad_norm": 10.0,
        "tau": 1.0,
        "exploration_fraction": 0.0,
        "exploration_annealing": "budget",
        "improvement_steps": 64,
        "improvement_learning_rate": 1e-3,
        "improvement_value_unit": math.inf,
        "improvement_revives_units": False,
    }
    for agent in settings.agents:
        assert common.items() <= {"kind": agent.kind, **agent.options}.items()


@pytest.mark.parametrize(
    ("preset", "env_id"), [("acrobot-n5", "Acrobot-v1"), ("mountaincar-n5", "MountainCar-v0")]
)
def test_presets_beyond_the_paper_have_five_unlike_agents(preset: str, env_id: str) -> None:
    settings = read_settings(preset_text(preset))
    assert settings.environment.id == env_id
    layers = [tuple(agent.options["hidden"]) for agent in settings.agents]
    assert len(set(layers)) == len(layers) == 5
    federation, budget = settings.federation, settings.budget.env_steps_per_agent
    assert budget % federation.self_learning_env_steps == 0
    share = federation.query_batch * federation.horizon_steps / len(layers)
    assert share / federation.self_learning_env_steps < 0.08  # the paper's share for CartPole N=5
    assert all(agent.options["learning_starts"] < budget / 50 for agent in settings.agents)


PLUS_OF = ["cartpole-n5", "cartpole-n10", "lunarlander-n5", "lunarlander-n10"]
PLUS_OF += ["acrobot-n5", "mountaincar-n5"]


@pytest.mark.parametrize("preset", PLUS_OF)
def test_plus_presets_make_the_choices_of_their_task(preset: str) -> None:
    """Agents, budget and the ratio of server steps to agents' steps are those of the paper."""
    paper, plus, both = (
        read_settings(preset_text(f"{preset}{suffix}")) for suffix in ("", PLUS, PLUS_AGENTS)
    )
    sceptical = preset.startswith("cartpole")
    assert plus.federation.random_actions_env_steps == plus.budget.env_steps_per_agent / 20
    server = {line.partition(" is ")[0] for line in differing_keys(paper, plus)}
    assert server == {
        f"federation.{key}"
        for key in (
            *(("pessimism",) if sceptical else ()),
            "broadcast",
            "learning_rate",
            "query_batch",
            "random_actions",
            "random_actions_env_steps",
            "replay_batch",
            "replay_capacity",
            "rule",
            "self_learning_env_steps",
            "server_environments",
        )
    }
    own = [line.partition(" is ")[0] for line in differing_keys(plus, both)]
    # Agents that are not the paper's have this optimiser and warm-up anyway.
    self_learning = {"optimizer": "adam", "warm_up": "uniform"}
    assert {key.rpartition(".")[2] for key in own} - set(self_learning) == {
        "improvement_learning_rate",
        "improvement_revives_units",
        "improvement_value_unit",
        *(("pessimism",) if sceptical else ()),
        "random_actions",
        "random_actions_env_steps",
        "replay_batch",
        "replay_capacity",
        "rule",
    }
    assert all(self_learning.items() <= agent.options.items() for agent in both.agents)
    ours, theirs = plus.federation, paper.federation
    assert ours.rule == ("sceptical" if sceptical else "median-mad")
    assert (ours.pessimism, ours.replay_batch) == ((1, 96) if sceptical else (0, 992))
    assert (ours.replay_capacity, ours.random_actions) == (200_000, 0.3)
    assert both.federation.rule == "bellman-weighted"  # its agents were searched with it
    assert ours.broadcast == "all-actions"
    assert (ours.carry_over, ours.learning_rate) == (True, 1)
    assert {agent.options["improvement_learning_rate"] for agent in both.agents} == {3e-4}
    assert {agent.options["improvement_value_unit"] for agent in both.agents} == {100.0}
    assert all(agent.options["improvement_revives_units"] for agent in both.agents)
    assert ours.query_batch * theirs.self_learning_env_steps == (
        theirs.query_batch * ours.self_learning_env_steps
    )
