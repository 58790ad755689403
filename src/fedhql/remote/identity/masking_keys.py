"""Masking keys, signed with the key of the member's certificate so that nobody can replace them."""

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
MOST_CERTIFICATE_BYTES, MOST_SIGNATURE_BYTES = 8192, 256  # ours have fewer than 1024 and 73
# 256 more for the public key, and for the name in the key and in the cohort.
MOST_KEY_BYTES = MOST_CERTIFICATE_BYTES + MOST_SIGNATURE_BYTES + 256


def masking_key(name: str, public_key: bytes, credentials: Credentials | None) -> MaskingKey:
    """Return the key to send. Without credentials, on one machine, it is not signed."""
    key = MaskingKey(name=name, public_key=public_key)
    if credentials is not None:
        private = load_pem_private_key(credentials.key, password=None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)  # checked by read_key
        key.certificate = credentials.certificate
        key.signature = private.sign(_signed_part(key), ALGORITHM)
    return key


def require_signed(key: MaskingKey, credentials: Credentials | None, *, now: datetime) -> None:
    """Raise CredentialsError unless the member that the key names has signed it.

    The member's certificate must be valid and of this federation's authority. Without credentials
    nothing is checked.
    """
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
    certificate = parse_certificate(key.certificate, f"the certificate sent with {whose}")
    if not is_signed_by(certificate, authority):
        raise CredentialsError(f"{whose} comes with a certificate of another authority")
    if name_of(certificate, f"the certificate sent with {whose}") != key.name:
        raise CredentialsError(f"{whose} comes with the certificate of another member")
    if any(SERVER_AUTH in usages for usages in usages_of(certificate)):
        # Otherwise a server could pose as one of the three members that a sum needs.
        raise CredentialsError(f"{whose} comes with a server's certificate, not a member's")
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise CredentialsError(f"{whose} comes with a certificate that is not valid now")
    if not _is_signed(key, certificate):
        raise CredentialsError(f"{whose} is not signed with its certificate's key")


def without_the_rest(key: MaskingKey, credentials: Credentials | None) -> MaskingKey:
    """Return the key with nothing but its checked fields, for sending to other members.

    Text around the certificate and unknown fields are dropped.
    """
    checked = MaskingKey(name=key.name, public_key=key.public_key)
    if credentials is not None:
        certificate = parse_certificate(key.certificate, "the certificate sent with a masking key")
        checked.certificate = certificate.public_bytes(Encoding.PEM)
        checked.signature = key.signature
    return checked


def _is_signed(key: MaskingKey, certificate: x509.Certificate) -> bool:
    public = certificate.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey):  # our authorities make no other keys
        return False
    try:
        public.verify(key.signature, _signed_part(key), ALGORITHM)
    except InvalidSignature:
        return False
    return True


def _signed_part(key: MaskingKey) -> bytes:
    """Return the bytes to sign. Names have no zero byte, so the parts cannot be confused."""
    return b"fedhql masking key\0" + key.name.encode() + b"\0" + key.public_key
