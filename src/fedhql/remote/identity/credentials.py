"""Credentials of a server or member: read and check keys, certificates and revocation lists."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhql.errors import CredentialsError
from fedhql.storage.records import RESERVED_NAMES

SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
AUTHORITY = "ca"  # its files are ca.crt and ca.key
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")  # a common name has at most 64 characters
NAME_RULE = "1 to 64 letters, digits, '-', '_' and '.', not starting with '.'"
MEMBER_NAME_RULE = f"{NAME_RULE}; reserved: {', '.join(map(repr, RESERVED_NAMES))}"


@dataclass(frozen=True)
class Credentials:
    """A party's certificate and key, and the authority that it trusts, as PEM."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)  # keep it out of logs and tracebacks


def load_credentials(
    authority: Path, certificate: Path, key: Path, *, now: datetime
) -> Credentials:
    """Read one party's credentials.

    Raise CredentialsError with the reason if a TLS handshake would fail with them.
    """
    trusted, own = read_certificate(authority), read_certificate(certificate)
    private = read_key(key)
    require_fit(key, private, certificate, own)
    if not is_signed_by(own, trusted):
        raise CredentialsError(
            f"{certificate} is not signed by the authority of {authority}; "
            "ask the federation's operator for a certificate"
        )
    otherwise = "ask the federation's operator for a new one"
    require_valid(authority, trusted, now, otherwise)
    require_valid(certificate, own, now, otherwise)
    return Credentials(
        trusted.public_bytes(Encoding.PEM), own.public_bytes(Encoding.PEM), key_pem(private)
    )


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Return gRPC credentials of a server that requires certificates of the same authority."""
    return grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)],
        root_certificates=credentials.authority,
        require_client_auth=True,
    )


def require_server(credentials: Credentials) -> None:
    """Raise CredentialsError if the certificate is for a member: members would reject it."""
    own = parse_certificate(credentials.certificate, "the server's certificate")
    if any(SERVER_AUTH not in usages for usages in usages_of(own)):
        raise CredentialsError(
            f"the certificate of {name_of(own, 'the server')} is for a member, not for a "
            "server; make one with fedhql certs issue NAME --host HOST"
        )


def usages_of(certificate: x509.Certificate) -> list[x509.ExtendedKeyUsage]:
    """Return the extended key usages of a certificate; an empty list if it has none."""
    values = (extension.value for extension in certificate.extensions)
    return [value for value in values if isinstance(value, x509.ExtendedKeyUsage)]


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """Return gRPC credentials of a member.

    The server needs a certificate of the same authority for the host that was dialled.
    """
    return grpc.ssl_channel_credentials(
        credentials.authority, credentials.key, credentials.certificate
    )


def peer_of(certificate_pem: bytes) -> tuple[str, int]:
    """Return the common name and serial of a certificate that a handshake has accepted."""
    certificate = parse_certificate(certificate_pem, "the peer's certificate")
    return name_of(certificate, "the peer's certificate"), certificate.serial_number


def name_of(certificate: x509.Certificate, what: str) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise CredentialsError(f"{what} must have exactly one common name")
    return str(names[0].value)


def is_member_name(name: str) -> bool:
    """Return whether a name is as MEMBER_NAME_RULE says, so that files and commands can use it."""
    return NAME.fullmatch(name) is not None and name.lower() not in RESERVED_NAMES


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def require_fit(
    key_path: Path, key: ec.EllipticCurvePrivateKey, path: Path, certificate: x509.Certificate
) -> None:
    if key.public_key() != certificate.public_key():
        raise CredentialsError(
            f"{key_path} does not belong to {path}; use files that were issued together"
        )


def require_valid(path: Path, certificate: x509.Certificate, now: datetime, otherwise: str) -> None:
    if now > certificate.not_valid_after_utc:
        raise CredentialsError(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {otherwise}"
        )
    if now < certificate.not_valid_before_utc:
        raise CredentialsError(
            f"{path} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; "
            "is this machine's clock right?"
        )


def read_authority(home: Path) -> x509.Certificate:
    path = home / f"{AUTHORITY}.crt"
    if not path.exists():
        raise CredentialsError(f"{home} has no {path.name}; start with: fedhql certs init")
    return read_certificate(path)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    with _reading(path), path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CredentialsError(f"{path} is accessible to other users; run: chmod 600 {path}")
        content = file.read()
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: has a password
        raise CredentialsError(f"{path} is not an unencrypted private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CredentialsError(f"{path} is not a P-256 key; fedhql certs makes such keys")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    with _reading(path):
        return parse_certificate(path.read_bytes(), str(path))


def parse_certificate(pem: bytes, what: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CredentialsError(f"{what} is not a certificate in PEM") from error


def read_revoked(path: Path, authority: x509.Certificate) -> dict[int, datetime]:
    """Return the revoked serials with their dates of revocation; empty if there is no file."""
    with _reading(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # an unreadable list must not count as empty
            return {}
    try:
        crl = x509.load_pem_x509_crl(content)
    except ValueError as error:
        raise CredentialsError(f"{path} is not a list of revoked certificates in PEM") from error
    signer = authority.public_key()
    if not isinstance(signer, ec.EllipticCurvePublicKey) or not crl.is_signature_valid(signer):
        raise CredentialsError(f"{path} is not signed by this federation's authority")
    return {entry.serial_number: entry.revocation_date_utc for entry in crl}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror}") from error


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
