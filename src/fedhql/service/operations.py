"""What an operator may change while the server runs: settings of [service], and quarantine."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fedhql.errors import FedHQLError, SettingsError
from fedhql.remote.server.journal import Journal
from fedhql.remote.server.roster import Roster
from fedhql.remote.wire_pb2 import Task
from fedhql.service.home import SETTINGS, message_sizes
from fedhql.settings.experiment import differing_keys
from fedhql.settings.served import ServedSettings
from fedhql.storage.files import write_atomically
from fedhql.storage.run_directory import SERVER_JOURNAL

log = logging.getLogger(__name__)
RELEASE = "release"  # a folder in the home: a file there names a member to release
LOOK_SECONDS = 2.0
NEED_A_RESTART = ("mode", "most_message_bytes", "keepalive_seconds")


def ask_to_release(home: Path, name: str) -> None:
    """Ask the server to release a member. Raise SettingsError if it is not in quarantine."""
    if not (home / SERVER_JOURNAL).exists():
        raise SettingsError(f"{home} is not the home of a federation: it has no {SERVER_JOURNAL}")
    try:
        with closing(Journal(home / SERVER_JOURNAL, read_only=True)) as journal:
            quarantined = [m.name for m in journal.members().values() if m.quarantined]
    except sqlite3.DatabaseError as error:
        why = f"{home / SERVER_JOURNAL} is not the journal of a federation ({error})"
        raise SettingsError(why) from error
    if name not in quarantined:
        who = f"only {', '.join(quarantined)}" if quarantined else "nobody"
        raise SettingsError(f"release {name}: {who} is in quarantine")
    write_atomically(home / RELEASE / name, "")


class Operations:
    """Carries out what the operator asks for. It belongs to the roster's event loop."""

    def __init__(
        self,
        home: Path,
        settings: ServedSettings,
        roster: Roster,
        task: Task,
        read_again: Callable[[], ServedSettings],
    ) -> None:
        self._home, self._settings, self._roster, self._task = home, settings, roster, task
        self._read_again = read_again
        self._release()

    async def watch(self) -> None:
        """Look for members to release, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._release()

    def _release(self) -> None:
        for request in sorted((self._home / RELEASE).glob("[!.]*")):
            member = self._roster.members.get(request.name)
            if member is not None and member.quarantined:
                self._roster.release(request.name)
            try:
                request.unlink()
            except OSError as error:  # perhaps another user's; the member is released all the same
                log.warning("%s cannot be removed: %s", request, error.strerror)

    def reload(self) -> None:
        """Read the settings again and use those of [service]; keep the old ones if that fails."""
        try:
            settings = self._read_again()
            changed = self._require_changeable(settings)
            sizes = message_sizes(settings, self._task)
            write_atomically(self._home / SETTINGS, settings.as_toml())
        except (FedHQLError, OSError) as error:
            text = f"the new settings are rejected, all of them stay as they were: {error}"
            self._roster.tell(text, level="warning")
            return
        self._settings = settings
        self._roster.set_message_sizes(sizes.question_bytes, sizes.least_receive_bytes)
        self._roster.change(settings.service)
        self._roster.tell(f"the settings are read again: {'; '.join(changed) or 'no change'}")

    def _require_changeable(self, settings: ServedSettings) -> list[str]:
        """Return what differs; raise SettingsError if that cannot change while the server runs."""
        before = self._settings
        same_service = before.model_copy(update={"service": settings.service})
        if differing := differing_keys(settings, same_service):
            raise SettingsError(f"{differing[0]}; only [service] may change")
        for key in NEED_A_RESTART:
            if getattr(settings.service, key) != getattr(before.service, key):
                raise SettingsError(f"service.{key} changes only when the server is started again")
        new, old = (each.service.model_dump() for each in (settings, before))
        return [f"service.{k}: {old[k]} -> {new[k]}" for k in new if new[k] != old[k]]
