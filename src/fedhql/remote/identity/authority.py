"""A federation's certificate authority: it issues, lists and revokes certificates."""

import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhql.errors import CredentialsError
from fedhql.remote.identity.credentials import (
    AUTHORITY,
    MEMBER_NAME_RULE,
    NAME,
    is_signed_by,
    key_pem,
    name_of,
    read_authority,
    read_certificate,
    read_key,
    read_revoked,
    require_fit,
    require_valid,
)
from fedhql.storage.files import locked, write_atomically
from fedhql.storage.records import RESERVED_NAMES

REVOKED = "revoked.crl"
ISSUED = "issued"  # directory with every certificate, named by serial, including replaced ones
CLOCKS_DIFFER = timedelta(hours=1)  # certificates are valid from this long before now
LONGEST_DAYS = 36_500

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Issued:
    """One certificate of an authority."""

    name: str
    serial: int
    valid_until: datetime
    revoked: bool
    is_servers: bool  # it has host names


def create_authority(home: Path, *, days: int, now: datetime) -> None:
    """Write ca.crt and ca.key. Whoever has ca.key decides who belongs to the federation.

    Raise CredentialsError if either file exists.
    """
    _require_days(days)
    with _changing(home):
        _require_new(home, AUTHORITY, "use it, or choose another --home")
        key = _new_key()
        subject = _named("fedhql authority")
        certificate = (
            _unsigned(subject, subject, key, now)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_key(home, AUTHORITY, key)
        _write_certificate(home / f"{AUTHORITY}.crt", certificate)


def issue(
    home: Path,
    name: str,
    *,
    days: int,
    hosts: Sequence[str] = (),
    renew: bool = False,
    now: datetime,
) -> Issued:
    """Write NAME.crt and NAME.key, and return the new certificate's data.

    With `hosts` the certificate is for a server at those hosts; without, it is for a member.
    Renewing without `hosts` keeps the hosts of the replaced certificate. The replaced certificate
    stays valid until it expires or is revoked.
    """
    _require_name(name)
    _require_days(days)
    authority, authority_key = _signing(home, now)
    names = [_host(host) for host in hosts]
    path = home / f"{name}.crt"
    with _changing(home):
        if not renew:
            _require_new(home, name, "replace it with --renew")
        elif path.exists():
            replaced = read_certificate(path)
            _keep(home, replaced)  # an older version may not have copied it to `issued`
            names = names or _hosts_of(replaced)
        _require_name(name, () if names else RESERVED_NAMES)  # those are reserved among members
        key = _new_key()
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        unsigned = (
            _unsigned(_named(name), authority.subject, key, now)
            .not_valid_after(min(now + timedelta(days=days), authority.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(_identifier(authority), critical=False)
        )
        # A member has no host names; its common name identifies it.
        if names:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
            unsigned = unsigned.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = unsigned.add_extension(x509.ExtendedKeyUsage(usages), critical=False).sign(
            authority_key, hashes.SHA256()
        )
        _write_key(home, name, key)
        _keep(home, certificate)  # before anybody can use it, so that it can be revoked
        _write_certificate(path, certificate)
    return _issued(name, certificate, revoked=False)


def revoke(home: Path, name: str, *, now: datetime) -> int:
    """Add all of NAME's certificates that have not expired to the list of revoked ones.

    Return how many were added. Raise CredentialsError if NAME has no certificate.
    """
    _require_name(name)
    authority, authority_key = _signing(home, now)
    path = home / REVOKED
    with _changing(home):
        made, unusable = issued(home)
        of_name = [one for one in made if one.name == name]
        if not of_name:
            raise CredentialsError("; ".join((f"{home} has no certificate of {name}", *unusable)))
        added = [one for one in of_name if not one.revoked and now <= one.valid_until]
        if not added:
            return 0
        listed = read_revoked(path, authority) | {one.serial: now for one in added}
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(now)
            .next_update(authority.not_valid_after_utc)  # valid until another list replaces it
            .add_extension(_identifier(authority), critical=False)
            .add_extension(x509.CRLNumber(len(listed)), critical=False)  # grows with the list
        )
        for number, date in listed.items():
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(date)
            builder = builder.add_revoked_certificate(entry.build())
        signed = builder.sign(authority_key, hashes.SHA256())
        write_atomically(path, signed.public_bytes(Encoding.PEM))
    return len(added)


def issued(home: Path) -> tuple[list[Issued], list[str]]:
    """Return all certificates of an authority, including its own, and why files are unusable."""
    authority = read_authority(home)
    revoked = read_revoked(home / REVOKED, authority)
    made: dict[int, Issued] = {}
    unusable = []
    for path in (*sorted(home.glob("*.crt")), *sorted((home / ISSUED).glob("*.crt"))):
        try:
            found = read_certificate(path)
            if not is_signed_by(found, authority):
                raise CredentialsError(f"{path} is not signed by this authority")
            name = AUTHORITY if found == authority else name_of(found, str(path))
        except CredentialsError as error:
            unusable.append(str(error))
            continue
        serial = found.serial_number
        made[serial] = _issued(name, found, revoked=serial in revoked)
    return sorted(made.values(), key=lambda one: (one.name, one.valid_until)), unusable


@contextmanager
def _changing(home: Path) -> Iterator[None]:
    """Create `home` if needed and lock it, so that one process at a time changes it."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(home, wait=True):
            yield
    except OSError as error:
        raise CredentialsError(f"{home} cannot be written: {error.strerror}") from error


def _require_days(days: int) -> None:
    if not 1 <= days <= LONGEST_DAYS:
        raise CredentialsError(f"{days} days: allowed: 1 to {LONGEST_DAYS}")


def _require_name(name: str, reserved: Sequence[str] = ()) -> None:
    # Ignore case: some file systems do not tell Ca.key from ca.key.
    if not NAME.fullmatch(name) or name.lower() in (AUTHORITY, *reserved):
        raise CredentialsError(f"name {name!r}: allowed: {MEMBER_NAME_RULE}, {AUTHORITY!r}")


def _require_new(home: Path, name: str, otherwise: str) -> None:
    for path in (home / f"{name}.key", home / f"{name}.crt"):
        if path.exists():
            raise CredentialsError(f"{path} exists and is not overwritten; {otherwise}")


def _new_key() -> ec.EllipticCurvePrivateKey:
    # P-256: gRPC's TLS library offers Ed25519 only if configured to, and gRPC does not do that.
    return ec.generate_private_key(ec.SECP256R1())


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .add_extension(identifier, critical=False)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    """Return the key usage of an authority (`signs`), or of a server or member."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError as error:
        if _HOST.fullmatch(host):
            return x509.DNSName(host)
        raise CredentialsError(
            f"host {host!r}: allowed: a DNS name or an IP address, without a port"
        ) from error


def _issued(name: str, certificate: x509.Certificate, *, revoked: bool) -> Issued:
    serial, valid_until = certificate.serial_number, certificate.not_valid_after_utc
    return Issued(name, serial, valid_until, revoked, is_servers=bool(_hosts_of(certificate)))


def _hosts_of(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(names.value)


def _signing(home: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    authority, key = read_authority(home), read_key(home / f"{AUTHORITY}.key")
    require_fit(home / f"{AUTHORITY}.key", key, home / f"{AUTHORITY}.crt", authority)
    require_valid(
        home / f"{AUTHORITY}.crt", authority, now, "create a new authority in another --home"
    )
    return authority, key


def _keep(home: Path, certificate: x509.Certificate) -> None:
    """Store a copy, so that the certificate can be revoked after it was replaced."""
    _write_certificate(home / ISSUED / f"{certificate.serial_number:040x}.crt", certificate)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    write_atomically(path, certificate.public_bytes(Encoding.PEM))


def _write_key(home: Path, name: str, key: ec.EllipticCurvePrivateKey) -> None:
    # Write a temporary file first, as write_atomically does, but never readable by others.
    temporary = home / f".{name}.key.tmp"
    temporary.unlink(missing_ok=True)  # left by a process that was killed
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key_pem(key))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(home / f"{name}.key")
