"""An authority for tests, which makes valid, expired and revoked certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedhql.remote.identity.authority import create_authority, issue, revoke
from fedhql.remote.identity.credentials import Credentials, load_credentials


class Authority:
    """A directory with certificates, as `fedhql certs` writes them."""

    def __init__(self, home: Path) -> None:
        self.home, self._now = home, datetime.now(UTC)
        create_authority(home, days=100, now=self._now - timedelta(days=50))

    def make(self, name: str, *, days_ago: int = 0, hosts: tuple[str, ...] = ()) -> Credentials:
        then = self._now - timedelta(days=days_ago)
        issue(self.home, name, days=10, hosts=hosts, now=then)
        pair = (self.home / f"{name}.crt", self.home / f"{name}.key")
        return load_credentials(self.home / "ca.crt", *pair, now=then)

    def revoke(self, name: str) -> None:
        revoke(self.home, name, now=self._now)

    @property
    def revoked(self) -> Path:
        return self.home / "revoked.crl"
