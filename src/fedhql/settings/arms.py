"""What an arm's name means for an experiment."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedhql.errors import SettingsError
from fedhql.federation import RULES, rule_spec
from fedhql.plugins import is_plugin
from fedhql.settings.contradictions import contradiction, wrong_for
from fedhql.settings.explain import explain
from fedhql.settings.sections import ExperimentSettings, FederationSettings
from fedhql.storage.arm_names import ATTACK, FEDHQL, INDEPENDENT, changes

KEYS = tuple(key for key in FederationSettings.model_fields if not key.startswith("secure_"))
LIES = dict(zip(ATTACK, ("name", "attackers"), strict=True))  # an arm's key -> the setting
Section = TypeVar("Section", bound=BaseModel)


def require_arm(settings: ExperimentSettings, arm: str) -> str:
    """The name as its files have it, or an error that says what is allowed."""
    of_arm, changed = settings_of_arm(settings, arm), changes(arm)
    values = {key: getattr(of_arm.federation, key) for key in KEYS}
    values |= {key: getattr(of_arm.attack, name) for key, name in LIES.items()}
    named = (f"{key}={_text(value)}" for key, value in values.items() if key in changed)
    return ",".join(named) or arm


def settings_of_arm(settings: ExperimentSettings, arm: str) -> ExperimentSettings:
    """The experiment with what this arm changes of its federation, or of the attack on it."""
    if arm in (INDEPENDENT, FEDHQL):
        return settings
    changed, keys = changes(arm), (*KEYS, *LIES)
    if unknown := [key for key, value in changed.items() if key not in keys or not value]:
        raise SettingsError(
            f"--arm {arm}: {unknown[0]!r} is no change of the federation; allowed: {INDEPENDENT}, "
            f"{FEDHQL}, or KEY=VALUE[,KEY=VALUE] with the keys {', '.join(keys)}"
        )
    if len(changed) < arm.count(",") + 1:
        raise SettingsError(f"--arm {arm}: every key once")
    federation = {key: value for key, value in changed.items() if key in KEYS}
    lies = {name: changed[key] for key, name in LIES.items() if key in changed}
    try:
        of_arm = settings.model_copy(
            update={
                "federation": _changed(_for_rule(settings.federation, changed), federation),
                "attack": _changed(settings.attack, lies, "attack."),
            }
        )
    except SettingsError as error:
        raise SettingsError(f"--arm {arm}: {error}") from error
    if wrong := contradiction(of_arm.federation) or wrong_for(of_arm):
        raise SettingsError(f"--arm {arm}: {wrong}")
    return of_arm


def _for_rule(federation: FederationSettings, changed: dict[str, str]) -> FederationSettings:
    """Without the numbers of its own rule that are not for the one it changes to."""
    rule = changed.get("rule", "")
    if rule not in RULES and not is_plugin(rule):  # unchanged, or wrong, which validation says
        return federation
    own = rule_spec(rule).numbers
    foreign = {key for spec in RULES.values() for key in spec.numbers} - {*own}
    given = federation.model_dump(exclude_unset=True)
    return FederationSettings(**{key: given[key] for key in given if key not in foreign})


def _changed(section: Section, changes: dict[str, str], prefix: str = "") -> Section:
    """The section with these values, as text; in an error `prefix` stands before their names."""
    model = type(section)
    try:
        return model.model_validate(section.model_dump(exclude_unset=True) | changes)
    except ValidationError as error:
        raise SettingsError(explain(error, model, prefix)) from error


def _text(value: Any) -> str:
    """One name for one number: 3 and 3.0 are the same arm."""
    if isinstance(value, str):
        return value
    return str(int(value)) if value == int(value) else repr(value)


def federates(arm: str) -> bool:
    return arm != INDEPENDENT
