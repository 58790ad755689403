"""`fedhql certs`: the authority of a federation, its members' certificates, those revoked."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fedhql.cli.network import require_remote

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
    require_remote("fedhql certs")
    from fedhql.remote.identity.authority import create_authority

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
    require_remote("fedhql certs")
    from fedhql.remote.identity import authority

    made = authority.issue(
        home, name, days=days, hosts=host or (), renew=renew, now=datetime.now(UTC)
    )
    certificate, key = home / f"{name}.crt", home / f"{name}.key"
    typer.echo(f"wrote {certificate} and {key}, valid until {made.valid_until:%Y-%m-%d}")
    typer.echo(f"next: bring {home / 'ca.crt'}, {certificate} and {key} to {name}, over a safe way")


@app.command()
def revoke(name: Name, home: Home = Path("certs")) -> None:
    """Shut out whoever holds a certificate of NAME's, also one that was replaced."""
    require_remote("fedhql certs")
    from fedhql.remote.identity import authority

    path = home / authority.REVOKED
    count = authority.revoke(home, name, now=datetime.now(UTC))
    if not count:
        typer.echo(f"nothing to do: every certificate of {name} is revoked or has expired")
        return
    typer.echo(f"wrote {path}, which now lists {count} more, all of {name}'s that had not expired")
    typer.echo(
        f"next: bring {path} to the server; a new certificate for {name}: "
        f"fedhql certs issue {name} --renew{_elsewhere(home)}"
    )


@app.command("list")
def list_(home: Home = Path("certs")) -> None:
    """List every certificate that was made here, and how long it is valid."""
    require_remote("fedhql certs")
    from fedhql.remote.identity.authority import issued

    now = datetime.now(UTC)
    made, unusable = issued(home)
    rows = [("name", "serial", "valid until", "days left", "revoked")]
    rows += [
        (
            one.name,
            f"{one.serial:040x}",
            f"{one.valid_until:%Y-%m-%d}",
            str((one.valid_until - now).days) if one.valid_until > now else "expired",
            "revoked" if one.revoked else "no",
        )
        for one in made
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
    for why in unusable:
        typer.echo(f"left out: {why}", err=True)


def _elsewhere(home: Path) -> str:
    """What the next command needs to find a home that is not where it looks first."""
    return "" if home == Path("certs") else f" --home {shlex.quote(str(home))}"
