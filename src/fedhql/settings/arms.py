"""Apply an arm's name to the settings of an experiment."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedhql.errors import SettingsError
from fedhql.federation import RULES, rule_spec
from fedhql.plugins import is_plugin
from fedhql.settings.contradictions import contradiction, wrong_for
from fedhql.settings.explain import explain
from fedhql.settings.sections import ExperimentSettings, FederationSettings
from fedhql.storage.arm_names import ATTACK, CONTROLS, FEDHQL, INDEPENDENT, changes

KEYS = tuple(key for key in FederationSettings.model_fields if not key.startswith("secure_"))
# The key in an arm's name -> the key in [attack].
ATTACK_KEYS = dict(zip(ATTACK, ("name", "attackers"), strict=True))
Section = TypeVar("Section", bound=BaseModel)


def require_arm(settings: ExperimentSettings, arm: str) -> str:
    """Return the arm's name as file names spell it. Raise SettingsError if it is not an arm."""
    arm = CONTROLS.get(arm, arm)
    of_arm, changed = settings_of_arm(settings, arm), changes(arm)
    values = {key: getattr(of_arm.federation, key) for key in KEYS}
    values |= {key: getattr(of_arm.attack, name) for key, name in ATTACK_KEYS.items()}
    named = (f"{key}={_text(value)}" for key, value in values.items() if key in changed)
    return ",".join(named) or arm


def settings_of_arm(settings: ExperimentSettings, arm: str) -> ExperimentSettings:
    """Return the settings with the changes that the arm makes to [federation] and [attack].

    Raise SettingsError, which says what is allowed, if `arm` is not an arm.
    """
    if arm in (INDEPENDENT, FEDHQL):
        return settings
    changed, keys = changes(arm), (*KEYS, *ATTACK_KEYS)
    if unknown := [key for key, value in changed.items() if key not in keys or not value]:
        hint = f"did you mean {INDEPENDENT!r}, agents alone? " if arm == "alone" else ""
        raise SettingsError(
            f"arm = {arm!r}: {hint}{unknown[0]!r} is not KEY=VALUE with a known key; allowed: "
            f"{', '.join((INDEPENDENT, FEDHQL, *CONTROLS))}, or KEY=VALUE[,KEY=VALUE] with the "
            f"keys {', '.join(keys)}"
        )
    if len(changed) < arm.count(",") + 1:
        raise SettingsError(f"arm = {arm!r}: a key is given twice; allowed: each key once")
    federation = {key: value for key, value in changed.items() if key in KEYS}
    attack = {name: changed[key] for key, name in ATTACK_KEYS.items() if key in changed}
    try:
        of_arm = settings.model_copy(
            update={
                "federation": _changed(_for_rule(settings.federation, changed), federation),
                "attack": _changed(settings.attack, attack, "attack."),
            }
        )
    except SettingsError as error:
        raise SettingsError(f"arm = {arm!r}: {error}") from error
    if wrong := contradiction(of_arm.federation) or wrong_for(of_arm):
        raise SettingsError(f"arm = {arm!r}: {wrong}")
    return of_arm


def attacked_arms(arms: Sequence[str], attack: str | None, attackers: int | None) -> list[str]:
    """Return the federated arms of `arms`, each with the attack; none if there is no attack."""
    parts = [f"attack={attack}"] if attack is not None else []
    parts += [f"attackers={attackers}"] if attackers is not None else []
    federated = [[] if arm == FEDHQL else [arm] for arm in arms if arm != INDEPENDENT]
    if parts and not federated:
        raise SettingsError(
            f"attack and attackers are for arms that federate, but there is only {INDEPENDENT!r}; "
            f"add the arm {FEDHQL!r}"
        )
    return [",".join([*arm, *parts]) for arm in federated] if parts else []


def _for_rule(federation: FederationSettings, changed: dict[str, str]) -> FederationSettings:
    """Return the federation without the numbers that the arm's rule does not take."""
    rule = changed.get("rule", "")
    if rule not in RULES and not is_plugin(rule):  # not changed, or wrong: validation reports it
        return federation
    own = rule_spec(rule).numbers
    foreign = {key for spec in RULES.values() for key in spec.numbers} - {*own}
    given = federation.model_dump(exclude_unset=True)
    return FederationSettings(**{key: given[key] for key in given if key not in foreign})


def _changed(section: Section, changes: dict[str, str], prefix: str = "") -> Section:
    """Return the section with these values, given as text. `prefix` precedes keys in errors."""
    model = type(section)
    try:
        return model.model_validate(section.model_dump(exclude_unset=True) | changes)
    except ValidationError as error:
        raise SettingsError(explain(error, model, prefix)) from error


def _text(value: Any) -> str:
    """Return one spelling for each number: 3 and 3.0 are the same arm."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(value)


def federates(arm: str) -> bool:
    return arm != INDEPENDENT
