"""`fedhql certs`: create a certificate authority; issue, revoke and list certificates."""

from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Annotated

import typer

from fedhql.cli.network import home_option, require_remote

app = typer.Typer(
    help="Issue and revoke the certificates of a federation's server and members.",
    no_args_is_help=True,
)

Home = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory of the authority; keep it private.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a member or of the server.")]


@app.command()
def init(
    home: Home = Path("certs"),
    days: Annotated[
        int, typer.Option(metavar="N", help="Days until the authority expires.")
    ] = 3650,
) -> None:
    """Create an authority. Each federation needs one."""
    require_remote("fedhql certs")
    from fedhql.remote.identity.authority import create_authority

    create_authority(home, days=days, now=datetime.now(UTC))
    typer.echo(
        f"wrote {home / 'ca.crt'} (give it to everyone) and {home / 'ca.key'} (keep it secret)"
    )
    typer.echo(f"next: fedhql certs issue server --host HOST{home_option(home)}")


@app.command()
def issue(
    name: Name,
    home: Home = Path("certs"),
    days: Annotated[
        int, typer.Option(metavar="N", help="Days until it expires; never after the authority.")
    ] = 365,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="For the server: a DNS name or IP address that members dial; may be repeated.",
        ),
    ] = None,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Replace the certificate and key; keep the hosts."),
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
    files = f"{home / 'ca.crt'}, {certificate} and {key}"
    if made.is_servers:
        typer.echo(f"next: fedhql serve reads {files}; on another machine it needs copies of them")
    else:
        typer.echo(f"next: send {files} to {name} over a safe channel")


@app.command()
def revoke(name: Name, home: Home = Path("certs")) -> None:
    """Revoke every certificate of NAME that has not expired, including replaced ones."""
    require_remote("fedhql certs")
    from fedhql.remote.identity import authority

    path = home / authority.REVOKED
    count = authority.revoke(home, name, now=datetime.now(UTC))
    if not count:
        typer.echo(f"nothing to do: every certificate of {name} is already revoked or has expired")
        return
    typer.echo(f"wrote {path}; newly revoked certificates of {name}: {count}")
    typer.echo(
        f"next: copy {path} to the server; for a new certificate of {name}: "
        f"fedhql certs issue {name} --renew{home_option(home)}"
    )


@app.command("list")
def list_(home: Home = Path("certs")) -> None:
    """List every certificate of the authority, and how long it is valid."""
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
            # Rounded up: a certificate for 365 days has 365 left on its first day.
            str(ceil((one.valid_until - now) / timedelta(days=1)))
            if one.valid_until > now
            else "expired",
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
