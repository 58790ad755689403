"""Experiments that ship with fedhql: one TOML file each, its first line a description."""

from importlib.resources import files

from fedhql.errors import SettingsError


def preset_names() -> list[str]:
    entries = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def preset_text(name: str) -> str:
    if name not in preset_names():
        raise SettingsError(
            f"unknown preset {name!r}; there are {', '.join(preset_names())}; "
            "an experiment file ends in .toml"
        )
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def preset_description(name: str) -> str:
    return preset_text(name).splitlines()[0].removeprefix("# ")
