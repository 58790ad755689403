"""`fedhql status`: print a federation's status, from its server or from its journal."""

import json
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedhql.errors import SettingsError
from fedhql.remote.server.status import printable

EVENTS = 10  # how many of the newest events are shown


def status(
    where: Annotated[
        str,
        typer.Argument(
            metavar="URL|DIR", help="A server's --http address, or its --home if it is down."
        ),
    ] = "127.0.0.1:8080",
) -> None:
    """Show a federation's members, budgets and recent events."""
    console = Console()
    if Path(where).is_dir():
        _print_journal(console, Path(where) / "journal.sqlite")
        return
    url = (where if "//" in where else f"http://{where}").rstrip("/") + "/status.json"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise SettingsError(
            f"no status from {url} ({reason}); start the server with --http"
        ) from error
    p50, p99 = (found["exchanges"][key] for key in ("p50_seconds", "p99_seconds"))
    latency = "" if p50 is None else f"; exchanges p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
    about = f"{found['environment']}, {_headline(found)}{latency}"
    _print_status(console, about, found["members"], found["events"][:EVENTS])


def _print_journal(console: Console, path: Path) -> None:
    from fedhql.remote.server.journal import Journal
    from fedhql.remote.server.overview import statuses
    from fedhql.service.home import SETTINGS
    from fedhql.service.position import Position
    from fedhql.settings.experiment import parse
    from fedhql.settings.served import ServedSettings

    if not path.exists():
        raise SettingsError(f"{path.parent} is not the home of a federation: it has no {path.name}")
    try:
        with closing(Journal(path, read_only=True)) as journal:
            about = {key: journal.fact(key) for key in ("federation", "improvements")}
            position = journal.fact("position")
            stage = "not started" if position is None else Position.of(position).stage.in_words
            about |= {"stage": stage, "round": Position.of(position).round}
            settings = parse((path.parent / SETTINGS).read_text(), (), ServedSettings)
            members = [vars(m) for m in statuses(journal.members(), settings.service.members)]
            if (stopped := journal.fact("stopped")) is not None:
                about["stage"] = f"stopped at {stopped['time']}: {stopped['why']}; {stage}"
            events = [vars(event) for event in journal.events(EVENTS)]
    except sqlite3.DatabaseError as error:
        raise SettingsError(f"{path} is not the journal of a federation ({error})") from error
    _print_status(console, _headline(about), members, events)


def _headline(found: dict[str, Any]) -> str:
    return (
        f"federation {found['federation']}: {found['stage']}, round {found['round']}, "
        f"{found['improvements'] or 0} improvements"
    )


def _print_status(
    console: Console, about: str, members: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    console.print(_plain_text(about), soft_wrap=True)
    console.print(_members_table(members))
    for event in events:
        console.print(_plain_text(f"{event['time']} {event['text']}"), soft_wrap=True)


def _plain_text(text: str) -> Text:
    """Return text for a terminal, without markup and with control characters escaped."""
    return Text(printable(text))


def _members_table(members: list[dict[str, Any]]) -> Table:
    columns = ("own_env_steps", "applied_improvements", "skipped_improvements",
               "refused_answers", "late_answers")  # fmt: skip
    table = Table()
    for n, title in enumerate(("member", "state", *(c.replace("_", " ") for c in columns))):
        table.add_column(title, justify="left" if n < 2 else "right", no_wrap=n < 2)
    for member in members:
        name, state = _plain_text(member["name"]), _plain_text(member["state"])
        table.add_row(name, state, *(f"{member[column]:,}" for column in columns))
    return table
