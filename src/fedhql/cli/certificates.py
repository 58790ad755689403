"""`fedhql certs`: the authority of a federation, its members' certificates, those revoked."""

import shlex
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fedhql.errors import MissingExtra

app = typer.Typer(
    help="Make and revoke the certificates by which a server and its members know each other.",
    no_args_is_help=True,
)

Home = Annotated[Path, typer.Option(metavar="DIR", help="Of the authority; keep it to yourself.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a member, or of the server.")]


@app.command()
def init(
    home: Home = Path("certs"),
    days: Annotated[int, typer.Option(metavar="N", help="Until it expires.")] = 3650,
) -> None:
    """Start an authority: once for each federation."""
    _require_extra()
    from fedhql.remote.authority import create_authority

    create_authority(home, days=days, now=datetime.now(UTC))
    typer.echo(f"wrote {home / 'ca.crt'}, for everyone, and {home / 'ca.key'}, for nobody else")
    typer.echo(f"next: fedhql certs issue server --host HOST{_elsewhere(home)}")


@app.command()
def issue(
    name: Name,
    home: Home = Path("certs"),
    days: Annotated[
        int, typer.Option(metavar="N", help="Until it expires; not after the authority.")
    ] = 365,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="For the server: a DNS name or IP address that members dial; repeat for several.",
        ),
    ] = None,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Replace the certificate and the key; the hosts stay."),
    ] = False,
) -> None:
    """Make a certificate and a key for the server (with --host) or for a member (without)."""
    _require_extra()
    from fedhql.remote import authority

    made = authority.issue(
        home, name, days=days, hosts=host or (), renew=renew, now=datetime.now(UTC)
    )
    certificate, key = home / f"{name}.crt", home / f"{name}.key"
    typer.echo(f"wrote {certificate} and {key}, valid until {made.valid_until:%Y-%m-%d}")
    typer.echo(f"next: bring {home / 'ca.crt'}, {certificate} and {key} to {name}, over a safe way")


@app.command()
def revoke(name: Name, home: Home = Path("certs")) -> None:
    """Shut out the holder of the current NAME.crt, whoever that is by now."""
    _require_extra()
    from fedhql.remote import authority

    path = authority.revoke(home, name, now=datetime.now(UTC))
    typer.echo(f"wrote {path}, which now lists {home / f'{name}.crt'}")
    typer.echo(
        f"next: bring {path} to the server; a new certificate for {name}: "
        f"fedhql certs issue {name} --renew{_elsewhere(home)}"
    )


@app.command("list")
def list_(home: Home = Path("certs")) -> None:
    """List every certificate that was made here, and how long it is valid."""
    _require_extra()
    from fedhql.remote.authority import issued

    now = datetime.now(UTC)
    rows = [("name", "serial", "valid until", "days left", "revoked")]
    rows += [
        (
            one.name,
            f"{one.serial:040x}",
            f"{one.valid_until:%Y-%m-%d}",
            str((one.valid_until - now).days) if one.valid_until > now else "expired",
            "revoked" if one.revoked else "no",
        )
        for one in issued(home)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def _require_extra() -> None:
    try:
        for package in ("cryptography", "grpc"):
            import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtra.named("remote", "fedhql certs") from error


def _elsewhere(home: Path) -> str:
    """What the next command needs to find a home that is not where it looks first."""
    return "" if home == Path("certs") else f" --home {shlex.quote(str(home))}"
