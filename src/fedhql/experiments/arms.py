"""What an arm's name means for an experiment."""

from pydantic import ValidationError

from fedhql.errors import SettingsError
from fedhql.experiments.contradictions import contradiction, wrong_trim
from fedhql.experiments.explain import explain
from fedhql.experiments.settings import ExperimentSettings, FederationSettings
from fedhql.results.arms import FEDHQL, INDEPENDENT, changes

WORDS = ("rule", "broadcast", "server_environments")
NUMBERS = [
    name
    for name in FederationSettings.model_fields
    if name not in WORDS and not name.startswith("secure_")
]


def require_arm(settings: ExperimentSettings, arm: str) -> str:
    """The name as its files have it, or an error that says what is allowed."""
    federation = settings_of_arm(settings, arm).federation
    keys = [key for key in NUMBERS if key in changes(arm)]
    return ",".join(f"{key}={_text(getattr(federation, key))}" for key in keys) or arm


def settings_of_arm(settings: ExperimentSettings, arm: str) -> ExperimentSettings:
    """The experiment with what this arm changes of its federation."""
    if arm in (INDEPENDENT, FEDHQL):
        return settings
    changed = changes(arm)
    if unknown := [key for key, value in changed.items() if key not in NUMBERS or not value]:
        raise SettingsError(
            f"--arm {arm}: {unknown[0]!r} is no change of the federation; allowed: {INDEPENDENT}, "
            f"{FEDHQL}, or KEY=NUMBER[,KEY=NUMBER] with the keys {', '.join(NUMBERS)}"
        )
    if len(changed) < arm.count(",") + 1:
        raise SettingsError(f"--arm {arm}: every key once")
    given = settings.federation.model_dump(exclude_unset=True) | changed
    try:
        federation = FederationSettings.model_validate(given)
    except ValidationError as error:
        raise SettingsError(f"--arm {arm}: {explain(error, FederationSettings)}") from error
    if wrong := contradiction(federation) or wrong_trim(federation, len(settings.agents)):
        raise SettingsError(f"--arm {arm}: {wrong}")
    return settings.model_copy(update={"federation": federation})


def _text(number: float) -> str:
    """One name for one number: 3 and 3.0 are the same arm."""
    return str(int(number)) if number == int(number) else repr(number)


def federates(arm: str) -> bool:
    return arm != INDEPENDENT
