"""Admission checks for a connecting member: its certificate, its Hello and its masking key."""

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

EXPIRY_MARGIN = timedelta(minutes=5)  # allows for clocks that differ between machines


class Refused(Exception):
    """The server refuses a connection. The message gives the reason, and both sides log it."""

    def __init__(
        self, why: str, reason: Goodbye.Reason = Goodbye.REFUSED, *, logged: bool = False
    ) -> None:
        super().__init__(why)
        self.reason = reason  # STOPPED: the member may try again
        self.logged = logged  # the server has logged this reason before


def certified(
    context: Any, credentials: Credentials | None, revoked: Path | None
) -> tuple[str, int]:
    """Return the name and the serial number in the peer's certificate; ("", 0) without TLS.

    Raise Refused if the certificate is invalid or revoked, if its name is not allowed, or if the
    list of revoked certificates cannot be used.
    """
    if credentials is None:
        return "", 0
    try:
        name, serial = peer_of(context.auth_context()["x509_pem_cert"][0])
    except CredentialsError as error:
        raise Refused(str(error)) from error
    require_name(name)
    try:
        serials = revoked_serials(credentials, revoked)
    except CredentialsError as error:  # without a valid list, a revoked member could get in
        why = f"the list of revoked certificates cannot be used: {error}"
        raise Refused(why, Goodbye.STOPPED) from error
    if serial in serials:
        raise Refused(f"the certificate of {name} (serial {serial:040x}) is revoked")
    return name, serial


def revoked_serials(credentials: Credentials | None, revoked: Path | None) -> Container[int]:
    """Read the serial numbers of the revoked certificates from the file `revoked`."""
    if credentials is None or revoked is None:
        return ()
    authority = x509.load_pem_x509_certificate(credentials.authority)
    return read_revoked(revoked, authority)


def require_name(name: str) -> None:
    """Raise Refused unless the name is safe to write into logs and files."""
    if not NAME.fullmatch(name):
        raise Refused(f"the member name must consist of {NAME_RULE}")


def require_welcome(name: str, hello: Hello, roster: Roster, federation: str) -> None:
    """Raise Refused unless the member belongs to this federation and can continue in it."""
    if hello.protocol != PROTOCOL:
        raise Refused(
            f"{name} speaks protocol {hello.protocol}, but this server speaks protocol {PROTOCOL}"
        )
    if roster.settings.members and name not in roster.settings.members:
        raise Refused(f"{name} is not among the members of this federation")
    if hello.federation not in ("", federation):
        raise Refused(
            f"{name} belongs to federation {printable(hello.federation, 64)}, but this is "
            f"federation {federation}; use a separate --home for each federation"
        )
    if hello.applied_improvements > roster.improvements:
        raise Refused(
            f"{name} has applied {hello.applied_improvements} improvements, but this server has "
            f"sent {roster.improvements}; the server may have lost its journal"
        )
    ours = roster.catch_up_window.fingerprint(hello.applied_improvements)
    if hello.last_improvement and ours and hello.last_improvement != ours:
        raise Refused(
            f"improvement {hello.applied_improvements} of {name} differs from the server's; either "
            "the server's journal or the member's home is an older copy"
        )
    if (member := roster.members.get(name)) is not None and member.quarantined:
        raise Refused(f"{name} is quarantined: {member.quarantined}")


def accepted_masking_key(
    name: str, hello: Hello, roster: Roster, credentials: Credentials | None
) -> MaskingKey | None:
    """Return the masking key to send to the other members; None without secure aggregation.

    Raise Refused for a key that the other members would reject: they leave when they receive one.
    """
    if roster.secure_value_bound is None:
        return None
    if not hello.HasField("masking_key"):
        raise Refused("this federation uses secure aggregation; join with --secure-aggregation")
    if hello.masking_key.name != name:
        raise Refused(f"{name} sent the masking key of another member")
    try:
        public = X25519PublicKey.from_public_bytes(hello.masking_key.public_key)
        X25519PrivateKey.generate().exchange(public)  # raises ValueError for a weak key
        require_signed(hello.masking_key, credentials, now=datetime.now(UTC))
    except (CredentialsError, ValueError) as error:
        raise Refused(f"the masking key of {name} is refused: {error}") from error
    key = without_the_rest(hello.masking_key, credentials)
    if is_about_to_expire(expiry(key)):
        raise Refused(f"the certificate of {name} expires too soon; renew it")
    return key


def expiry(key: MaskingKey | None) -> datetime | None:
    """Return when the certificate in the key expires; None if it has no certificate.

    After that time a member that receives this key refuses it and leaves.
    """
    if key is None or not key.certificate:
        return None
    return parse_certificate(key.certificate, "a masking key's certificate").not_valid_after_utc


def is_about_to_expire(at: datetime | None) -> bool:
    return at is not None and at - EXPIRY_MARGIN <= datetime.now(UTC)
