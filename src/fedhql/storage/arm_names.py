"""The names of arms, as files and columns use them, and the labels that people read.

"independent": every agent learns alone. "fedhql": the federation with the settings as given. Any
other name lists the settings that the arm changes, such as "exploration=3" or
"rule=trimmed,trim=1". It may also name an attack: "attack=noise,attackers=1".
"""

import math

INDEPENDENT, FEDHQL = "independent", "fedhql"
ATTACK = ("attack", "attackers")  # the keys of an attack in the name of an arm
# Control arms by name. Averaging distils the agents' centre where the server goes; public states
# distil it at fixed states, without an environment of the server's.
CONTROLS = {
    "averaging": "learning_rate=0",
    "public-states": "learning_rate=0,server_environments=public",
}
SYMBOLS = {
    "exploration": "λ",
    "learning_rate": "α",
    "pessimism": "μ",
    "bound": "b",
    "confidence": "c",
}


def changes(arm: str) -> dict[str, str]:
    """Return the federation settings that an arm changes, as text."""
    if arm in (INDEPENDENT, FEDHQL):
        return {}
    pairs = (part.partition("=") for part in arm.split(","))
    return {key.strip(): value.strip() for key, _, value in pairs}


def without_attack(arm: str) -> str:
    """Return the same arm without attackers."""
    kept = {key: value for key, value in changes(arm).items() if key not in ATTACK}
    return ",".join(f"{key}={value}" for key, value in kept.items()) or FEDHQL


def order(arm: str) -> tuple[int, list[tuple[str, float, str]]]:
    """Return a sort key: independent first, then fedhql, then the other arms by their values."""
    rank = {INDEPENDENT: 0, FEDHQL: 1}.get(arm, 2)
    return rank, [(key, *_number_or_word(value)) for key, value in changes(arm).items()]


def _number_or_word(value: str) -> tuple[float, str]:
    """Return a sort key for a number or a word; "nan" and "inf" count as words."""
    try:
        number = float(value)
    except ValueError:
        return math.inf, value
    return (number, "") if math.isfinite(number) else (math.inf, value)


def label(arm: str) -> str:
    """Return what people read in tables and pictures for the name of an arm."""
    if not (changed := changes(arm)):
        return "FedHQL" if arm == FEDHQL else "alone"
    for name, control in CONTROLS.items():
        if changed == changes(control):
            return name
    return ", ".join(f"{SYMBOLS.get(key, key)} = {value}" for key, value in changed.items())
