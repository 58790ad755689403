import pytest

from fedhql.errors import SettingsError
from fedhql.settings.arms import federates, require_arm, settings_of_arm
from fedhql.settings.experiment import read_settings
from fedhql.settings.sections import ExperimentSettings
from fedhql.storage.arm_names import CONTROLS, label, order

TEXT = """
[environment]
id = "CartPole-v1"
[federation]
exploration = 2.0
horizon_steps = 8
[budget]
env_steps_per_agent = 1000
[[agents]]
"""
SETTINGS = read_settings(TEXT)
BERNSTEIN = read_settings(
    TEXT.replace("exploration = 2.0", 'rule = "bernstein"\nbound = 5.0\nconfidence = 1.0')
)

TRIMMED = read_settings(
    TEXT.replace("[federation]", '[federation]\nrule = "trimmed"\ntrim = 0.4') + "[[agents]]\n" * 2
)


THREE = read_settings(TEXT + "[[agents]]\n" * 2)


@pytest.mark.parametrize("arm", ["independent", "fedhql"])
def test_independent_and_fedhql_change_no_setting(arm: str) -> None:
    assert settings_of_arm(SETTINGS, arm) == SETTINGS
    assert require_arm(SETTINGS, arm) == arm


def test_what_tables_call_alone_is_the_arm_independent() -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'independent', agents alone\?"):
        require_arm(SETTINGS, "alone")


def test_an_arm_changes_the_numbers_it_names_and_no_others() -> None:
    changed = settings_of_arm(SETTINGS, "exploration=3,query_batch=64")
    federation = changed.federation
    assert (federation.exploration, federation.query_batch, federation.horizon_steps) == (3, 64, 8)
    assert changed.model_copy(update={"federation": SETTINGS.federation}) == SETTINGS
    assert settings_of_arm(BERNSTEIN, "bound=2").federation.bound == 2
    assert settings_of_arm(BERNSTEIN, "bound=2").federation.rule == "bernstein"
    assert settings_of_arm(TRIMMED, "trim=1").federation.trim == 1
    other = settings_of_arm(TRIMMED, "server_environments=carry-over,broadcast=all-actions")
    assert other.federation.carry_over
    assert other.federation.all_actions
    median = settings_of_arm(BERNSTEIN, "rule=median-mad").federation
    assert (median.rule, median.bound, median.confidence) == ("median-mad", None, None)


def test_an_arm_can_add_an_attack() -> None:
    changed = settings_of_arm(THREE, "attack=nan,attackers=2")
    assert (changed.attack.name, changed.attack.attackers) == ("nan", 2)
    assert changed.model_copy(update={"attack": THREE.attack}) == THREE
    assert require_arm(THREE, "attackers=2, attack=nan,exploration=3.0") == (
        "exploration=3,attack=nan,attackers=2"
    )
    flipped = read_settings(THREE.as_toml(), ["attack.name=sign-flip", "attack.attackers=1"])
    assert settings_of_arm(flipped, "attackers=2").attack.name == "sign-flip"
    assert settings_of_arm(flipped, "attack=huge").attack.attackers == 1
    assert settings_of_arm(flipped, "exploration=3").attack == flipped.attack


def test_an_arm_may_take_back_random_actions_that_fall() -> None:
    falling = read_settings(
        TEXT, ["federation.random_actions=0.3", "federation.random_actions_env_steps=100"]
    )
    assert settings_of_arm(falling, "random_actions=0").federation.random_actions == 0


def test_settings_read_back_from_a_run_take_the_same_arms() -> None:
    """A run's settings.toml holds every default, so each setting counts as given."""
    for settings, arm in [
        (SETTINGS, "exploration=3"),
        (BERNSTEIN, "confidence=2"),
        (TRIMMED, "trim=1"),
        (THREE, "attack=noise,attackers=1"),
    ]:
        again = read_settings(settings.as_toml())
        assert settings_of_arm(again, arm) == settings_of_arm(settings, arm)


def test_an_arms_name_is_spelled_as_in_file_names() -> None:
    assert require_arm(SETTINGS, " exploration = 3 ,learning_rate= 0.1") == (
        "exploration=3,learning_rate=0.1"
    )


@pytest.mark.parametrize(
    ("settings", "arm", "message"),
    [
        (
            SETTINGS,
            "fedhq",
            r"arm = 'fedhq': 'fedhq' is not KEY=VALUE with .*KEY=VALUE.*rule, exploration, bound",
        ),
        (SETTINGS, "", r"'' is not KEY=VALUE"),
        (SETTINGS, "explorration=3", r"'explorration' is not KEY=VALUE"),
        (SETTINGS, "exploration=", r"'exploration' is not KEY=VALUE"),
        (SETTINGS, "exploration", r"'exploration' is not KEY=VALUE"),
        (SETTINGS, "exploration=3,,", r"'' is not KEY=VALUE"),
        (SETTINGS, "exploration=3,exploration=4", r"a key is given twice"),
        (SETTINGS, "rule=bernstein", r"federation.rule = 'bernstein' needs federation.bound > 0"),
        (SETTINGS, "rule=mode", r"arm = 'rule=mode': rule: 'mode' is wrong; allowed: 'mean-std'"),
        (SETTINGS, "exploration=-1", r"arm = 'exploration=-1': exploration: .*a number >= 0"),
        (SETTINGS, "exploration=many", r"arm = 'exploration=many': exploration"),
        (SETTINGS, "exploration=nan", r"arm = 'exploration=nan': exploration"),
        (SETTINGS, "horizon_steps=1.5", r"horizon_steps"),
        (SETTINGS, "bound=1", r"arm = 'bound=1': federation.bound is for rule = 'bernstein'"),
        (BERNSTEIN, "exploration=3", r"'bernstein' has no λ"),
        (BERNSTEIN, "bound=0", r"bound"),
        (SETTINGS, "broadcast=all", r"broadcast: 'all' is wrong; allowed: 'chosen', 'all-actions'"),
        (SETTINGS, "secure_aggregation=1", r"'secure_aggregation' is not KEY=VALUE"),
        (SETTINGS, "trim=1", r"arm = 'trim=1': federation.trim is for rule = 'trimmed'"),
        (
            THREE,
            "attack=noise",
            r"attack.attackers is 0 with attack.name = 'noise'; allowed: 1 to 1 of 3",
        ),
        (THREE, "attackers=1", r"attack.attackers is 1: needs attack.name; allowed: nan, huge"),
        (THREE, "attack=nan,attackers=3", r"attackers is 3.*allowed: 1 to 2 of 3 agents"),
        (
            THREE,
            "attack=lie,attackers=1",
            r"arm = 'attack=lie.*': attack.name: 'lie' .*'nan', 'huge'",
        ),
        (THREE, "attack=nan,attackers=x", r"attack.attackers: 'x' is wrong; allowed: a whole"),
        (SETTINGS, "attack=nan,attackers=1", r"allowed: none of 1 agents"),
        (TRIMMED, "trim=2", r"arm = 'trim=2': federation.trim is 2; allowed: 1 to 1 of 3 agents"),
    ],
)
def test_a_wrong_arm_is_refused_in_one_line(
    settings: ExperimentSettings, arm: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        require_arm(settings, arm)
    assert "\n" not in str(caught.value)


def test_arms_are_sorted_by_their_values() -> None:
    arms = ["rule=median-mad", "exploration=10", "learning_rate=0.1", "fedhql", "exploration=3"]
    arms += ["independent", "rule=bellman-weighted"]
    assert sorted(arms, key=order) == [
        "independent",
        "fedhql",
        "exploration=3",
        "exploration=10",
        "learning_rate=0.1",
        "rule=bellman-weighted",
        "rule=median-mad",
    ]


def test_values_that_are_words_are_sorted_too() -> None:
    """The attack named nan must be sorted as a word."""
    attacks = ["noise", "nan", "huge"]
    arms = [f"attack={attack},attackers={k}" for attack in attacks for k in (10, 2)]
    assert sorted([*arms, "exploration=3", "fedhql"], key=order) == [
        "fedhql",
        "attack=huge,attackers=2",
        "attack=huge,attackers=10",
        "attack=nan,attackers=2",
        "attack=nan,attackers=10",
        "attack=noise,attackers=2",
        "attack=noise,attackers=10",
        "exploration=3",
    ]
    assert label("attack=nan,attackers=2") == "attack = nan, attackers = 2"


@pytest.mark.parametrize(
    ("arm", "shown"),
    [
        ("independent", "alone"),
        ("fedhql", "FedHQL"),
        ("exploration=3", "λ = 3"),
        ("learning_rate=0.1,horizon_steps=4", "α = 0.1, horizon_steps = 4"),
    ],
)
def test_an_arms_label_is_what_people_read(arm: str, shown: str) -> None:
    assert label(arm) == shown


def test_every_arm_but_independent_federates() -> None:
    assert federates("fedhql")
    assert federates("exploration=0")
    assert not federates("independent")


def test_equal_numbers_give_the_same_name() -> None:
    assert require_arm(SETTINGS, "exploration=3.0") == "exploration=3"
    assert require_arm(SETTINGS, "learning_rate=.1, exploration=2.5") == (
        "exploration=2.5,learning_rate=0.1"
    )
    assert require_arm(SETTINGS, "exploration=3,rule=median-mad") == "rule=median-mad,exploration=3"


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_arm_is_known_by_its_name(name: str) -> None:
    arm = require_arm(SETTINGS, name)
    assert arm == CONTROLS[name]
    assert label(arm) == name
    assert settings_of_arm(SETTINGS, arm).federation.learning_rate == 0


def test_public_states_have_no_transitions_to_learn_from() -> None:
    with pytest.raises(SettingsError, match=r"'public' .*allowed: with .*learning_rate = 0"):
        require_arm(SETTINGS, "server_environments=public")
    with pytest.raises(SettingsError, match=r"'public' .*allowed: .*replay_batch = 0, not 5"):
        require_arm(SETTINGS, "learning_rate=0,server_environments=public,replay_batch=5")
    with pytest.raises(SettingsError, match=r"'public' .*allowed: .*random_actions = 0, not 0.1"):
        require_arm(SETTINGS, "learning_rate=0,server_environments=public,random_actions=0.1")
    weighted = "rule=bellman-weighted,learning_rate=0,server_environments=public"
    with pytest.raises(SettingsError, match=r"'bellman-weighted' .*: rules without weights"):
        require_arm(SETTINGS, weighted)
