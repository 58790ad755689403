"""The names of arms: what their files and columns are called, and how people read them.

"independent": every agent alone. "fedhql": the federation as the settings say. Anything else is
the federation with some of its settings changed: "exploration=3", "rule=trimmed,trim=1", or with
agents that lie: "attack=noise,attackers=1".
"""

import math

INDEPENDENT, FEDHQL = "independent", "fedhql"
ATTACK = ("attack", "attackers")  # what an arm calls them
SYMBOLS = {"exploration": "λ", "learning_rate": "α", "bound": "b", "confidence": "c"}


def changes(arm: str) -> dict[str, str]:
    """What an arm changes of the federation's settings, as text."""
    if arm in (INDEPENDENT, FEDHQL):
        return {}
    pairs = (part.partition("=") for part in arm.split(","))
    return {key.strip(): value.strip() for key, _, value in pairs}


def without_attack(arm: str) -> str:
    """The same arm when nobody lies."""
    kept = {key: value for key, value in changes(arm).items() if key not in ATTACK}
    return ",".join(f"{key}={value}" for key, value in kept.items()) or FEDHQL


def order(arm: str) -> tuple[int, list[tuple[str, float, str]]]:
    """Independent first, then the settings' own federation, then the others by their values."""
    rank = {INDEPENDENT: 0, FEDHQL: 1}.get(arm, 2)
    return rank, [(key, *_number_or_word(value)) for key, value in changes(arm).items()]


def _number_or_word(value: str) -> tuple[float, str]:
    """So that both can be sorted; a word, such as nan, is no number here."""
    try:
        number = float(value)
    except ValueError:
        return math.inf, value
    return (number, "") if math.isfinite(number) else (math.inf, value)


def label(arm: str) -> str:
    if not (changed := changes(arm)):
        return "FedHQL" if arm == FEDHQL else arm
    return ", ".join(f"{SYMBOLS.get(key, key)} = {value}" for key, value in changed.items())
