"""Who may come in: by its certificate, by what it says first, and by its masking key."""

from collections.abc import Container
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedhql.errors import CredentialsError
from fedhql.remote.identity.credentials import (
    NAME,
    NAME_RULE,
    Credentials,
    parse_certificate,
    peer_of,
    read_revoked,
)
from fedhql.remote.identity.masking_keys import require_signed, without_the_rest
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.status import printable
from fedhql.remote.wire import PROTOCOL
from fedhql.remote.wire_pb2 import Goodbye, Hello, MaskingKey

EXPIRY_MARGIN = timedelta(minutes=5)  # for clocks that differ


class Refused(Exception):
    """Why somebody is not let in; both sides log it."""

    def __init__(
        self, why: str, reason: Goodbye.Reason = Goodbye.REFUSED, *, told: bool = False
    ) -> None:
        super().__init__(why)
        self.reason = reason  # STOPPED: it may try again
        self.told = told  # here, before; only the other side hears it again


def certified(
    context: Any, credentials: Credentials | None, revoked: Path | None
) -> tuple[str, int]:
    """Name and serial; of nobody if there is no TLS."""
    if credentials is None:
        return "", 0
    try:
        name, serial = peer_of(context.auth_context()["x509_pem_cert"][0])
    except CredentialsError as error:
        raise Refused(str(error)) from error
    require_name(name)
    try:
        serials = revoked_serials(credentials, revoked)
    except CredentialsError as error:  # nobody comes in on a list that cannot be trusted
        why = f"the list of revoked certificates cannot be used: {error}"
        raise Refused(why, Goodbye.STOPPED) from error
    if serial in serials:
        raise Refused(f"the certificate of {name} (serial {serial:040x}) is revoked")
    return name, serial


def revoked_serials(credentials: Credentials | None, revoked: Path | None) -> Container[int]:
    """As the list in that file has them now."""
    if credentials is None or revoked is None:
        return ()
    authority = x509.load_pem_x509_certificate(credentials.authority)
    return read_revoked(revoked, authority)


def require_name(name: str) -> None:
    """One that may stand in logs and files, whoever made the certificate."""
    if not NAME.fullmatch(name):
        raise Refused(f"a member needs a name of {NAME_RULE}")


def require_welcome(name: str, hello: Hello, roster: Roster, federation: str) -> None:
    """It is one of this federation's, and can go on from where it stands."""
    if hello.protocol != PROTOCOL:
        raise Refused(f"{name} speaks protocol {hello.protocol}, this server {PROTOCOL}")
    if roster.settings.members and name not in roster.settings.members:
        raise Refused(f"{name} is not among the members of this federation")
    if hello.federation not in ("", federation):
        raise Refused(
            f"{name} belongs to federation {printable(hello.federation, 64)}, this is "
            f"{federation}; a member needs a --home for each"
        )
    if hello.applied_improvements > roster.improvements:
        raise Refused(
            f"{name} has applied {hello.applied_improvements} improvements, this server has "
            f"sent {roster.improvements}: it may have lost its journal"
        )
    ours = roster.window.fingerprint(hello.applied_improvements)
    if hello.last_improvement and ours and hello.last_improvement != ours:
        raise Refused(
            f"{name}'s improvement {hello.applied_improvements} is another than ours: the "
            "server's journal, or the member's home, is an older copy"
        )
    if (member := roster.members.get(name)) is not None and member.quarantined:
        raise Refused(f"{name} is quarantined: {member.quarantined}")


def accepted_masking_key(
    name: str, hello: Hello, roster: Roster, credentials: Credentials | None
) -> MaskingKey | None:
    """One that the others will accept: they would all leave at another."""
    if roster.secure_value_bound is None:
        return None
    if not hello.HasField("masking_key"):
        raise Refused("this federation has secure aggregation: join with --secure-aggregation")
    if hello.masking_key.name != name:
        raise Refused(f"{name} comes with the masking key of another")
    try:
        public = X25519PublicKey.from_public_bytes(hello.masking_key.public_key)
        X25519PrivateKey.generate().exchange(public)  # which does not work with every one
        require_signed(hello.masking_key, credentials, now=datetime.now(UTC))
    except (CredentialsError, ValueError) as error:
        raise Refused(f"the masking key of {name} is refused: {error}") from error
    key = without_the_rest(hello.masking_key, credentials)
    if is_about_to_expire(expiry(key)):
        raise Refused(f"the certificate of {name} expires")
    return key


def expiry(key: MaskingKey | None) -> datetime | None:
    """After it, whoever comes would be sent this key, refuse it and leave."""
    if key is None or not key.certificate:
        return None
    return parse_certificate(key.certificate, "what came with a masking key").not_valid_after_utc


def is_about_to_expire(at: datetime | None) -> bool:
    return at is not None and at - EXPIRY_MARGIN <= datetime.now(UTC)
