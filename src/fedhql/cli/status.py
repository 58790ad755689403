"""`fedhql status`: print a federation's status, from its server or from its journal."""

import json
import sqlite3
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedhql.errors import SettingsError
from fedhql.remote.server.status import SHOW_WAIT_SECONDS, printable
from fedhql.storage.run_directory import SERVER_JOURNAL

EVENTS = 10  # how many of the newest events are shown
COUNTS = (  # of members; shown if they are not 0
    "skipped_improvements",
    "refused_answers",
    "late_answers",
    "unanswered_questions",
    "missed_phases",
    "reconnects",
    "replaced_connections",
)


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
        _print_journal(console, Path(where) / SERVER_JOURNAL)
        return
    url = (where if "//" in where else f"http://{where}").rstrip("/") + "/status.json"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise SettingsError(
            f"no status from {url} ({reason}). If the server has ended, give its directory "
            "instead; if it runs, it needs --http"
        ) from error
    p50, p99 = (found["exchanges"][key] for key in ("p50_seconds", "p99_seconds"))
    latency = "" if p50 is None else f"; exchanges p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms"
    software = f" ({found['software']})" if found.get("software") else ""
    found["about"] = f"{found['environment']}, {_headline(found)}{latency}{software}"
    _print_status(console, found)


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
            stopped = journal.fact("stopped")
            found = statuses(
                journal.members(),
                settings.service.members,
                sessions=None if stopped is None else {},  # a server that stopped has no sessions
            )
            members = [vars(member) for member in found]
            if stopped is not None:
                about["stage"] = f"stopped at {stopped['time']}: {stopped['why']}; {stage}"
            events = [vars(event) for event in journal.events(EVENTS)]
    except FileNotFoundError as error:
        raise SettingsError(f"{path.parent} is not the home of a federation ({error})") from error
    except sqlite3.DatabaseError as error:
        raise SettingsError(f"{path} is not the journal of a federation ({error})") from error
    _print_status(console, {"about": _headline(about), "members": members, "events": events})


def _headline(found: dict[str, Any]) -> str:
    return (
        f"federation {found['federation']}: {found['stage']}, round {found['round']}, "
        f"{found['improvements'] or 0} improvements in all rounds"
    )


def _print_status(console: Console, found: dict[str, Any]) -> None:
    """Print a status. One of an older server lacks some values; these are left out."""
    members, now = found["members"], found.get("time") or datetime.now(UTC).isoformat()
    _print_line(console, found["about"])
    if (waiting := found.get("waiting")) and waiting["seconds"] >= SHOW_WAIT_SECONDS:
        whom = ", ".join(waiting["names"]) or "members"
        _print_line(console, f"waiting for {whom} since {waiting['since']} ({waiting['what']})")
    connected = sum(member["state"] == "connected" for member in members)
    if expected := found.get("members_expected"):
        quorum = f"; the quorum is {found['quorum']}"
        _print_line(console, f"members connected: {connected} of {expected}{quorum}")
    console.print(_members_table(members, now))
    for member in members:
        if notes := _notes(member):
            _print_line(console, f"{member['name']}: {notes}")
    if any(member.get("address") for member in members):
        console.print(_connections_table(members))
    if refused := found.get("refused_connections"):
        causes = ", ".join(f"{count:,} {cause}" for cause, count in refused.items())
        _print_line(console, f"refused connections: {causes}")
    for event in found["events"][:EVENTS]:
        _print_line(console, f"{event['time']} {event['text']}")


def _print_line(console: Console, text: str) -> None:
    console.print(_plain_text(text), soft_wrap=True)


def _plain_text(text: str) -> Text:
    """Return text for a terminal, without markup and with control characters escaped."""
    return Text(printable(text))


def _members_table(members: list[dict[str, Any]], now: str) -> Table:
    """Return a table that shows all its headers on a terminal of 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("member", overflow="fold", min_width=6)
    for title in ("state", "last heard"):
        table.add_column(title, no_wrap=True)
    for title in ("own steps", "consumed", "applied"):
        table.add_column(title, justify="right", no_wrap=True)
    for member in members:
        name, state = _plain_text(member["name"]), _plain_text(member["state"])
        heard = _plain_text(_ago(member.get("last_heard", ""), now))
        columns = ("own_env_steps", "consumed_env_steps", "applied_improvements")
        table.add_row(name, state, heard, *(f"{member[column]:,.0f}" for column in columns))
    return table


def _notes(member: dict[str, Any]) -> str:
    """Return what an operator should know about a member; "" if all is well."""
    reasons = [f"late with {member['late_with']}"] if member.get("late_with") else []
    reasons += [f"quarantined: {member['quarantined']}"] if member.get("quarantined") else []
    counts = ((key.replace("_", " "), member.get(key, 0)) for key in COUNTS)
    if counted := ", ".join(f"{what}: {count:,}" for what, count in counts if count):
        reasons.append(counted)
    return "; ".join(reasons)


def _connections_table(members: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("connected", "address", "software", "protocol", "certificate until"):
        table.add_column(title, overflow="fold")
    for member in members:
        if member.get("address"):
            until = member["certificate_expires"][:10]  # the day
            row = (member["name"], member["address"], member["software"], member["protocol"], until)
            table.add_row(*map(_plain_text, row))
    return table


def _ago(time: str, now: str) -> str:
    """Return how long ago a time was: "3 s ago". Times are in ISO 8601; "" stays empty."""
    if not time:
        return ""
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(time)).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
