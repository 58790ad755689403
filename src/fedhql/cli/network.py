"""Commands for a federation across machines: serve, join."""

import asyncio
import json
import logging
import random
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedhql.agents.kinds import KINDS
from fedhql.cli.common import INTERRUPTED, Track, fail
from fedhql.errors import (
    CredentialsError,
    MemberRefused,
    MemberStopped,
    MissingExtra,
    SettingsError,
)
from fedhql.remote.server.status import printable
from fedhql.storage.files import locked
from fedhql.storage.tracking import Tracking, require_trackers

if TYPE_CHECKING:
    from fedhql.remote.identity.credentials import Credentials
    from fedhql.settings.served import ServedSettings

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Use no TLS and no certificates. Works on this machine only."),
]
Certificates = Annotated[
    Path, typer.Option(metavar="DIR", help="Has ca.crt, NAME.crt and NAME.key (see fedhql certs).")
]
JsonLog = Annotated[bool, typer.Option("--log-json", help="Log JSON lines to stderr.")]


def serve(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The federation's settings.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where members connect.")],
    home: Annotated[
        Path, typer.Option(metavar="DIR", help="Journal and results; an existing one continues.")
    ],
    certs: Certificates = Path("certs"),
    name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="The name on the server's certificate.")
    ] = "server",
    insecure: Insecure = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve a status page, /status.json and Prometheus /metrics here, read-only and "
            "without a password.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, as in `run`."),
    ] = None,
    log_json: JsonLog = False,
) -> None:
    """Run the server of a federation whose members join over the network.

    After a stop or a crash, the same command continues from the last finished step. SIGHUP makes
    the server read [service] in its file again.
    """
    require_remote("fedhql serve")
    from fedhql.settings.experiment import read_file
    from fedhql.settings.served import read_served_settings

    _address(listen, "--listen")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server can read its settings again
    read_again = partial(read_file, file, settings or [], read_served_settings)
    chosen = read_again()
    shown = None if insecure else _credentials(certs, name)
    if shown is not None:
        from fedhql.remote.identity.credentials import require_server

        require_server(shown)
    _log_to_stderr(log_json)
    with _locked_home(home):
        _run_until_stopped(
            _serve(chosen, read_again, listen, home, shown, certs / "revoked.crl", http)
        )


async def _serve(
    settings: "ServedSettings",
    read_again: "Callable[[], ServedSettings]",
    listen: str,
    home: Path,
    credentials: "Credentials | None",
    revoked: Path,
    http: str | None,
) -> None:
    from fedhql.remote.server.listener import Listener
    from fedhql.remote.server.roster import Roster
    from fedhql.service.home import message_sizes, open_home, task_of
    from fedhql.service.operations import Operations
    from fedhql.service.rounds import Service
    from fedhql.service.status_page import Observation

    loop, log = asyncio.get_running_loop(), logging.getLogger("fedhql")
    task = task_of(settings)
    sizes = message_sizes(settings, task)
    async with AsyncExitStack() as stack:  # closes what is open after any failure
        journal, federation = open_home(home, settings)
        stack.callback(journal.close)
        roster = Roster(
            settings.service,
            journal,
            action_count=task.actions,
            env_steps_per_member=settings.budget.env_steps_per_agent,
            question_bytes=sizes.question_bytes,
            least_receive_bytes=sizes.least_receive_bytes,
            secure_value_bound=settings.secure_value_bound,
        )
        operations = Operations(home, settings, roster, task, read_again)
        loop.add_signal_handler(signal.SIGHUP, operations.reload)
        watch = asyncio.create_task(operations.watch())
        stack.callback(watch.cancel)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, roster.stop)
        service = Service(settings, home, roster, loop, actions=task.actions)
        if http is not None:  # before any member connects
            host, http_port = _address(http, "--http")
            page = Observation(lambda: service.status(federation), host, http_port)
            stack.callback(page.close)
            log.info("status page: http://%s:%d/", host, page.port)
        listener = Listener(
            roster, federation=federation, task=task, credentials=credentials, revoked=revoked
        )
        stack.push_async_callback(listener.close)
        port = await listener.open(listen)
        log.info(
            "federation %s listens on port %d, %s",
            federation, port, "mutual TLS" if credentials else "plaintext, this machine only",
        )  # fmt: skip
        await asyncio.to_thread(service.run)


def release(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A member in quarantine.")],
    home: Annotated[Path, typer.Option(metavar="DIR", help="The home of the server.")],
) -> None:
    """Release a member from quarantine, while the server runs or before it is started again."""
    require_remote("fedhql release")
    from fedhql.service.operations import ask_to_release

    ask_to_release(home, name)
    typer.echo(f"{name} is released within seconds, or when the server is started; its owner may")
    typer.echo("then run `fedhql join` again")


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server's address.")],
    agent: Annotated[
        str, typer.Option(metavar="KIND|module:Class", help=f"{', '.join(KINDS)}, or your own.")
    ],
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="The certificate's name.")],
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The agent's checkpoints and account; an existing one continues."
            "  [default: members/NAME]",
        ),
    ] = None,
    certs: Certificates = Path("certs"),
    insecure: Insecure = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set an agent's setting: hidden=[64,64]."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The agent's seed.  [default: drawn once, kept in its home]")
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The agent's environment. Its states and actions must be the federation's."
            "  [default: the federation's]",
        ),
    ] = None,
    give_up_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="End when no server has let it in for so long.", min=0
        ),
    ] = 86_400.0,
    secure_aggregation: Annotated[
        bool,
        typer.Option(
            "--secure-aggregation",
            help="Answer only under masks: the server sees sums over members, no single values.",
        ),
    ] = False,
    track: Track = None,
    log_json: JsonLog = False,
) -> None:
    """Take part in a federation with a private agent, which never leaves this process.

    After a stop or a crash, the same command continues from the agent's last checkpoint.
    """
    require_remote("fedhql join")
    from fedhql.remote.identity.credentials import MEMBER_NAME_RULE, is_member_name
    from fedhql.remote.member.member import Member
    from fedhql.service.member_agent import agent_builder, own_seed

    _address(address, "join")
    if not is_member_name(name):
        raise SettingsError(f"--as {name}: allowed: {MEMBER_NAME_RULE}")
    require_trackers(track or [])
    own = home or Path("members") / name
    shown = None if insecure else _credentials(certs, name)
    if insecure:
        from fedhql.remote.server.address import is_loopback

        if not is_loopback(address):
            raise SettingsError(f"--insecure {address}: allowed: this machine (127.0.0.1, [::1])")
    _log_to_stderr(log_json)
    with _locked_home(own):
        kept = own_seed(own, seed)
        member = Member(
            name,
            address,
            own,
            agent_builder(name, own, agent, settings or [], kept, environment),
            credentials=shown,
            rng=random.Random(),  # spreads the retries of members over time
            clock=time.monotonic,
            secure_aggregation=secure_aggregation,
            give_up_seconds=give_up_after,
            trackers=Tracking(track or []).start(own.joinpath, name),
        )
        _run_until_stopped(_until_terminated(member.run()))


async def _until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`. SIGTERM, with which machines stop a service, cancels it as Ctrl-C does."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


def _run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(work)
    except (MemberRefused, MemberStopped) as error:  # it may quote the server
        raise type(error)(printable(str(error))) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        fail("stopped; run the same command to continue", INTERRUPTED)


@contextmanager
def _locked_home(home: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(home, wait=False))
        except BlockingIOError as error:
            raise SettingsError(f"{home} is in use by another process") from error
        except OSError as error:
            raise SettingsError(f"{home} cannot be written: {error.strerror}") from error
        yield


def _address(text: str, option: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if ":" not in text or not port.isdecimal() or int(port) > 65_535:
        raise SettingsError(
            f"{option} {text}: allowed: HOST:PORT with a port up to 65535, as in 127.0.0.1:8080"
        )
    return host or "127.0.0.1", int(port)


def _credentials(home: Path, name: str) -> "Credentials":
    from fedhql.remote.identity.credentials import load_credentials

    authority, own, key = (home / file for file in ("ca.crt", f"{name}.crt", f"{name}.key"))
    try:
        return load_credentials(authority, own, key, now=datetime.now(UTC))
    except CredentialsError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise CredentialsError(f"{error}; {_instead(home, name)}") from error


def _instead(home: Path, name: str) -> str:
    """Return which certificates `home` has, and how its owner gets the missing one."""
    named = sorted(path.stem for path in home.glob("*.crt") if path.stem != "ca")
    there = f"certificates of {', '.join(named)}" if named else "no certificates"
    host = " --host HOST" if name == "server" else ""
    first = "" if (home / "ca.crt").exists() else f"fedhql certs init{home_option(home)}` and `"
    return (
        f"{home} has {there}; --certs DIR names another folder; the federation's operator makes "
        f"the files with `{first}fedhql certs issue {name}{host}{home_option(home)}`"
    )


def home_option(home: Path) -> str:
    """Return the --home option of `fedhql certs`; empty if `home` is the default."""
    return "" if home == Path("certs") else f" --home {shlex.quote(str(home))}"


def require_remote(command: str) -> None:
    try:
        for package in ("cryptography", "google.protobuf", "grpc"):
            import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra.named("remote", command) from error


class _PlainLines(logging.Formatter):
    """Keeps each message on one line, even if it quotes a member."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the base's name
        return printable(super().formatMessage(record))


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time_ = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time_, "level": record.levelname.lower(), "text": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Shorten what gRPC logs, with a traceback, when a peer closes before its stream has ended."""
    if record.name.startswith("grpc") and "ExecuteBatchError" in record.getMessage():
        record.msg, record.args, record.exc_info = "a peer closed before its stream ended", (), None
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def _log_to_stderr(as_json: bool) -> None:
    """Log our messages, and the warnings of other packages, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_in_one_line)
    handler.setFormatter(_JsonLines() if as_json else _PlainLines())
    logging.getLogger().addHandler(handler)
    logging.getLogger("fedhql").setLevel(logging.INFO)
    logging.captureWarnings(True)
