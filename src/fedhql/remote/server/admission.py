"""Admission checks for a connecting member: its certificate, its Hello and its masking key."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from grpc import StatusCode

from fedhql.errors import CredentialsError
from fedhql.remote.identity.credentials import (
    MEMBER_NAME_RULE,
    Credentials,
    is_member_name,
    parse_certificate,
    peer_of,
    read_revoked,
)
from fedhql.remote.identity.masking_keys import require_signed, without_the_rest
from fedhql.remote.server.roster import Roster
from fedhql.remote.server.session import Peer
from fedhql.remote.server.status import printable
from fedhql.remote.wire import DEFAULT_RECEIVE_BYTES, NOTICES, PROTOCOL, WireError
from fedhql.remote.wire_pb2 import Cause, FromMember, Goodbye, Hello, MaskingKey

HELLO_SECONDS = 10.0
RETRY_SECONDS = 30.0  # for a member that is refused because of the server
EXPIRY_MARGIN = timedelta(minutes=5)  # allows for clocks that differ between machines


class Refused(Exception):
    """The server refuses a connection. The message gives the reason, and both sides log it."""

    def __init__(
        self,
        why: str,
        cause: Cause,
        *,
        retry_after_seconds: float | None = None,
        logged: bool = False,
    ) -> None:
        """With `retry_after_seconds` the member may try again."""
        super().__init__(why)
        self.goodbye = Goodbye(
            reason=Goodbye.REFUSED if retry_after_seconds is None else Goodbye.STOPPED,
            detail=why,
            cause=cause,
            retry_after_seconds=retry_after_seconds or 0.0,
        )
        self.logged = logged  # the server has logged this reason before


@dataclass(frozen=True)
class PeerCertificate:
    """What the server needs of a member's certificate."""

    serial: int = 0
    expires: datetime | None = None


def certified(
    context: Any, credentials: Credentials | None, revoked: Path | None
) -> tuple[str, PeerCertificate]:
    """Return the name in the peer's certificate, and the rest of it; "" without TLS.

    Raise Refused if the certificate is invalid or revoked, if its name is not allowed, or if the
    list of revoked certificates cannot be used.
    """
    if credentials is None:
        return "", PeerCertificate()
    content = context.auth_context()["x509_pem_cert"][0]
    try:
        name, serial = peer_of(content)
        expires = parse_certificate(content, "the certificate").not_valid_after_utc
    except CredentialsError as error:
        raise Refused(str(error), Cause.CERTIFICATE) from error
    require_name(name)
    try:
        serials = revoked_serials(credentials, revoked)
    except CredentialsError as error:  # without a valid list, a revoked member could get in
        why = f"the list of revoked certificates cannot be used: {error}"
        raise Refused(why, Cause.CERTIFICATE, retry_after_seconds=RETRY_SECONDS) from error
    if serial in serials:
        raise Refused(
            f"the certificate of {name} (serial {serial:040x}) is revoked", Cause.CERTIFICATE
        )
    return name, PeerCertificate(serial, expires)


async def receive_hello(name: str, requests: Any) -> tuple[str, Hello]:
    """Wait for the Hello; return the member's name and the Hello.

    `name` is the name in the certificate; if it is empty, the name in the Hello counts. Raise
    Refused if no valid Hello arrives in time.
    """
    try:
        first: FromMember = await asyncio.wait_for(anext(requests), HELLO_SECONDS)
    except TimeoutError as error:
        why = f"no Hello arrived within {HELLO_SECONDS:g} seconds"
        raise Refused(why, Cause.NO_HELLO, retry_after_seconds=1.0) from error
    except StopAsyncIteration as error:
        why = "the peer ended the stream without a Hello"
        raise Refused(why, Cause.NO_HELLO, retry_after_seconds=1.0) from error
    except WireError as error:
        raise Refused(str(error), error.cause) from error
    if first.WhichOneof("message") != "hello":
        raise Refused("the first message must be a Hello", Cause.INVALID_MESSAGE)
    hello = first.hello
    if not name:
        name = hello.name
        require_name(name)
    elif hello.name and hello.name != name:
        raise Refused(
            f"the certificate is for {name}, but the Hello gives the name {hello.name[:64]!r}",
            Cause.NAME,
        )
    return name, hello


def peer_of_hello(
    hello: Hello, address: str, certificate: PeerCertificate, masking_key: MaskingKey | None
) -> Peer:
    """Return what is known about the other end of a connection."""
    return Peer(
        address=printable(unquote(address), 100),
        software=printable(hello.software, 100),
        protocol=f"{hello.protocol}.{hello.minor}",
        receive_bytes=hello.most_message_bytes or DEFAULT_RECEIVE_BYTES,
        gets_notices=NOTICES in hello.capabilities,
        certificate_expires=certificate.expires,
        masking_key=masking_key,
    )


def status_of(goodbye: Goodbye) -> StatusCode:
    """Return the gRPC status that ends a stream after a Goodbye."""
    if (code := _STATUS_OF_CAUSES.get(goodbye.cause)) is not None:
        return code
    return {
        Goodbye.FINISHED: StatusCode.OK,
        Goodbye.REPLACED: StatusCode.ABORTED,
        Goodbye.REFUSED: StatusCode.PERMISSION_DENIED,
    }.get(goodbye.reason, StatusCode.UNAVAILABLE)


_STATUS_OF_CAUSES = {
    Cause.PROTOCOL_VERSION: StatusCode.FAILED_PRECONDITION,
    Cause.OTHER_FEDERATION: StatusCode.FAILED_PRECONDITION,
    Cause.HISTORY: StatusCode.FAILED_PRECONDITION,
    Cause.RECEIVE_LIMIT: StatusCode.FAILED_PRECONDITION,
    Cause.CONNECTION_RATE: StatusCode.RESOURCE_EXHAUSTED,
    Cause.MESSAGE_SIZE: StatusCode.RESOURCE_EXHAUSTED,
    Cause.NO_HELLO: StatusCode.DEADLINE_EXCEEDED,
    Cause.LATE_ANSWER: StatusCode.DEADLINE_EXCEEDED,
    Cause.MISSED_DEADLINES: StatusCode.DEADLINE_EXCEEDED,
    Cause.INVALID_MESSAGE: StatusCode.INVALID_ARGUMENT,
    Cause.SERVER_FAILED: StatusCode.INTERNAL,
}


def revoked_serials(credentials: Credentials | None, revoked: Path | None) -> Container[int]:
    """Read the serial numbers of the revoked certificates from the file `revoked`."""
    if credentials is None or revoked is None:
        return ()
    authority = x509.load_pem_x509_certificate(credentials.authority)
    return read_revoked(revoked, authority)


def require_name(name: str) -> None:
    """Raise Refused unless the name is safe to write into logs and files."""
    if not is_member_name(name):
        raise Refused(f"the member name must consist of {MEMBER_NAME_RULE}", Cause.NAME)


def require_welcome(name: str, hello: Hello, roster: Roster, federation: str) -> None:
    """Raise Refused unless the member belongs to this federation and can continue in it."""
    if roster.failure is not None:
        why = "the server is stopping"
        raise Refused(why, Cause.SERVER_STOPPING, retry_after_seconds=RETRY_SECONDS)
    if hello.protocol != PROTOCOL:
        raise Refused(
            f"{name} speaks protocol {hello.protocol}, but this server speaks protocol {PROTOCOL}",
            Cause.PROTOCOL_VERSION,
        )
    if roster.settings.members and name not in roster.settings.members:
        raise Refused(f"{name} is not among the members of this federation", Cause.NOT_LISTED)
    if hello.federation not in ("", federation):
        raise Refused(
            f"{name} belongs to federation {printable(hello.federation, 64)}, but this is "
            f"federation {federation}; use a separate --home for each federation",
            Cause.OTHER_FEDERATION,
        )
    if hello.applied_improvements > roster.improvements:
        raise Refused(
            f"{name} has applied {hello.applied_improvements} improvements, but this server has "
            f"sent {roster.improvements}; the server may have lost its journal",
            Cause.HISTORY,
        )
    ours = roster.catch_up_window.fingerprint(hello.applied_improvements)
    if hello.last_improvement and ours and hello.last_improvement != ours:
        raise Refused(
            f"improvement {hello.applied_improvements} of {name} differs from the server's; either "
            "the server's journal or the member's home is an older copy",
            Cause.HISTORY,
        )
    receives = hello.most_message_bytes or DEFAULT_RECEIVE_BYTES
    if hello.minor and receives < roster.least_receive_bytes:
        raise Refused(
            f"{name} accepts messages of {receives:,} bytes; the largest one of this federation "
            f"has {roster.least_receive_bytes:,}: raise its grpc.max_receive_message_length",
            Cause.RECEIVE_LIMIT,
        )
    if (member := roster.members.get(name)) is not None and member.quarantined:
        raise Refused(f"{name} is quarantined: {member.quarantined}", Cause.QUARANTINED)


def accepted_masking_key(
    name: str, hello: Hello, roster: Roster, credentials: Credentials | None
) -> MaskingKey | None:
    """Return the masking key to send to the other members; None without secure aggregation.

    Raise Refused for a key that the other members would reject: they leave when they receive one.
    """
    if roster.secure_value_bound is None:
        return None
    if not hello.HasField("masking_key"):
        why = "this federation uses secure aggregation; join with --secure-aggregation"
        raise Refused(why, Cause.MASKING_KEY)
    if hello.masking_key.name != name:
        raise Refused(f"{name} sent the masking key of another member", Cause.MASKING_KEY)
    try:
        public = X25519PublicKey.from_public_bytes(hello.masking_key.public_key)
        X25519PrivateKey.generate().exchange(public)  # raises ValueError for a weak key
        require_signed(hello.masking_key, credentials, now=datetime.now(UTC))
    except (CredentialsError, ValueError) as error:
        why = f"the masking key of {name} is refused: {error}"
        raise Refused(why, Cause.MASKING_KEY) from error
    key = without_the_rest(hello.masking_key, credentials)
    if is_about_to_expire(expiry(key)):
        raise Refused(f"the certificate of {name} expires too soon; renew it", Cause.CERTIFICATE)
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
