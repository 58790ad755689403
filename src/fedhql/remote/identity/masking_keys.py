"""Masking keys as they cross: signed with the certificate's key, so that none can be swapped."""

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedhql.errors import CredentialsError
from fedhql.remote.identity.credentials import (
    SERVER_AUTH,
    Credentials,
    is_signed_by,
    name_of,
    parse_certificate,
    usages_of,
)
from fedhql.remote.wire_pb2 import MaskingKey

ALGORITHM = ec.ECDSA(hashes.SHA256())
MOST_CERTIFICATE_BYTES, MOST_SIGNATURE_BYTES = 8192, 256  # ours have less than 1024 and 73
MOST_KEY_BYTES = MOST_CERTIFICATE_BYTES + MOST_SIGNATURE_BYTES + 256  # its name, twice, and itself


def masking_key(name: str, public_key: bytes, credentials: Credentials | None) -> MaskingKey:
    """Without credentials there is nothing to sign it with; that is for one machine alone."""
    key = MaskingKey(name=name, public_key=public_key)
    if credentials is not None:
        private = load_pem_private_key(credentials.key, password=None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)  # as it was read
        key.certificate = credentials.certificate
        key.signature = private.sign(_signed_part(key), ALGORITHM)
    return key


def require_signed(key: MaskingKey, credentials: Credentials | None, *, now: datetime) -> None:
    """By whom it says, and that one belongs to the federation; else CredentialsError."""
    if credentials is None:
        return
    whose = f"the masking key of {key.name[:64]!r}"
    for what, bytes_, most in (
        ("certificate", len(key.certificate), MOST_CERTIFICATE_BYTES),
        ("signature", len(key.signature), MOST_SIGNATURE_BYTES),
    ):
        if bytes_ > most:
            raise CredentialsError(
                f"{whose} comes with a {what} of {bytes_:,} bytes, allowed: {most:,}"
            )
    authority = parse_certificate(credentials.authority, "the authority's certificate")
    certificate = parse_certificate(key.certificate, f"what came with {whose}")
    if not is_signed_by(certificate, authority):
        raise CredentialsError(f"{whose} comes with a certificate of another authority")
    if name_of(certificate, f"the certificate of {whose}") != key.name:
        raise CredentialsError(f"{whose} comes with another's certificate")
    if any(SERVER_AUTH in usages for usages in usages_of(certificate)):
        # Else a server could count as one of the three that its sums are over.
        raise CredentialsError(f"{whose} comes with a server's certificate, not a member's")
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise CredentialsError(f"{whose} comes with a certificate that is not valid now")
    if not _is_signed(key, certificate):
        raise CredentialsError(f"{whose} is not signed with its certificate's key")


def without_the_rest(key: MaskingKey, credentials: Credentials | None) -> MaskingKey:
    """Text around its certificate, and unknown fields: they would go on to all others."""
    checked = MaskingKey(name=key.name, public_key=key.public_key)
    if credentials is not None:
        certificate = parse_certificate(key.certificate, "what came with a masking key")
        checked.certificate = certificate.public_bytes(Encoding.PEM)
        checked.signature = key.signature
    return checked


def _is_signed(key: MaskingKey, certificate: x509.Certificate) -> bool:
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):  # our authorities make no others
        return False
    try:
        public.verify(key.signature, _signed_part(key), ALGORITHM)
    except InvalidSignature:
        return False
    return True


def _signed_part(key: MaskingKey) -> bytes:
    """No name has a zero byte in it, so none can be taken for another."""
    return b"fedhql masking key\0" + key.name.encode() + b"\0" + key.public_key
