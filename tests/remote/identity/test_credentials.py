"""Certificates: the files written, invalid input, revocation, and TLS handshakes."""

import asyncio
import re
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

from fedhql.cli.certificates import app
from fedhql.errors import CredentialsError, MissingExtra
from fedhql.remote.identity.authority import create_authority, issue, issued, revoke
from fedhql.remote.identity.credentials import (
    Credentials,
    channel_credentials,
    load_credentials,
    peer_of,
    read_revoked,
    require_server,
    server_credentials,
)

NOW = datetime(2030, 5, 6, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "certs"
    create_authority(path, days=1000, now=NOW)
    return path


def certificate(home: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((home / f"{name}.crt").read_bytes())


def load(home: Path, name: str, *, now: datetime = NOW, ca: Path | None = None) -> Credentials:
    pair = (home / f"{name}.crt", home / f"{name}.key")
    return load_credentials(ca or home / "ca.crt", *pair, now=now)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


# Files written


def test_a_key_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "certs"
    home.mkdir()
    (home / ".alice.key.tmp").write_text("left by a killed process")
    (home / ".alice.key.tmp").chmod(0o644)
    seen: dict[str, set[int]] = {}

    def look(_: int) -> None:
        for path in home.glob("*.key*"):
            seen.setdefault(path.name, set()).add(stat.S_IMODE(path.stat().st_mode))

    monkeypatch.setattr("os.fsync", look)
    create_authority(home, days=10, now=NOW)
    (home / ".alice.key.tmp").chmod(0o644)
    seen.pop(".alice.key.tmp")
    issue(home, "alice", days=1, now=NOW)
    issue(home, "alice", days=1, renew=True, now=NOW)
    assert seen == {
        name: {0o600} for name in ("ca.key", ".ca.key.tmp", "alice.key", ".alice.key.tmp")
    }
    assert not list(home.glob("*.tmp"))
    assert not list(home.glob(".*.tmp"))


def test_a_new_home_is_readable_only_by_its_owner(home: Path) -> None:
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_existing_files_are_not_overwritten(home: Path) -> None:
    issue(home, "alice", days=1, now=NOW)
    before = contents(home)
    with pytest.raises(CredentialsError, match=r"ca\.key exists and is not overwritten; use it"):
        create_authority(home, days=1, now=NOW)
    with pytest.raises(CredentialsError, match=r"alice\.key exists .*replace it with --renew"):
        issue(home, "alice", days=1, now=NOW)
    assert contents(home) == before
    (home / "alice.key").unlink()
    with pytest.raises(CredentialsError, match=r"alice\.crt exists"):
        issue(home, "alice", days=1, now=NOW)
    (home / "ca.key").unlink()
    with pytest.raises(CredentialsError, match=r"ca\.crt exists"):
        create_authority(home, days=1, now=NOW)


def test_renewing_replaces_only_the_certificate_and_the_key(home: Path) -> None:
    issue(home, "alice", days=1, now=NOW)
    issue(home, "bob", days=1, now=NOW)
    before = contents(home)
    renewed = issue(home, "alice", days=30, renew=True, now=NOW)
    after = contents(home)
    assert {name for name in after if after[name] != before[name]} == {"alice.crt", "alice.key"}
    assert after.keys() == before.keys()
    assert stat.S_IMODE((home / "alice.key").stat().st_mode) == 0o600
    assert peer_of(load(home, "alice", now=NOW + 29 * DAY).certificate) == ("alice", renewed.serial)


def test_renewing_keeps_the_hosts_unless_new_ones_are_given(home: Path) -> None:
    def hosts() -> list[str]:
        names = certificate(home, "server").extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        return [str(name.value) for name in names.value]

    issue(home, "server", days=1, hosts=["fed.example.org", "10.0.0.1", "::1"], now=NOW)
    issue(home, "server", days=1, renew=True, now=NOW)
    assert hosts() == ["fed.example.org", "10.0.0.1", "::1"]
    issue(home, "server", days=1, hosts=["other.example.org"], renew=True, now=NOW)
    assert hosts() == ["other.example.org"]


def test_validity_starts_an_hour_ago_and_ends_no_later_than_the_authority(home: Path) -> None:
    made = issue(home, "alice", days=365, now=NOW)
    alice = certificate(home, "alice")
    assert alice.not_valid_before_utc == NOW - timedelta(hours=1)
    assert alice.not_valid_after_utc == made.valid_until == NOW + 365 * DAY
    authority = certificate(home, "ca")
    assert authority.not_valid_before_utc == NOW - timedelta(hours=1)
    assert issue(home, "bob", days=1001, now=NOW).valid_until == NOW + 1000 * DAY
    assert certificate(home, "bob").not_valid_after_utc == authority.not_valid_after_utc


def test_every_key_is_p256_and_every_serial_is_unique(home: Path) -> None:
    serials = {issue(home, name, days=1, now=NOW).serial for name in ("alice", "bob")}
    serials.add(issue(home, "bob", days=1, renew=True, now=NOW).serial)
    serials.add(certificate(home, "ca").serial_number)
    assert len(serials) == 4
    for path in home.glob("*.key"):
        key = load_pem_private_key(path.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_only_a_server_certificate_is_accepted_and_only_for_its_hosts(home: Path) -> None:
    issue(home, "server", days=10, hosts=["fed.example.org", "10.0.0.1"], now=NOW)
    issue(home, "fed.example.org", days=10, now=NOW)
    builder = PolicyBuilder().store(Store([certificate(home, "ca")]))
    policy = builder.time(NOW)
    verifier = policy.build_server_verifier(x509.DNSName("fed.example.org"))
    chain = verifier.verify(certificate(home, "server"), [])
    assert chain == [certificate(home, "server"), certificate(home, "ca")]
    for wrong in (
        policy.build_server_verifier(x509.DNSName("other.example.org")),
        builder.time(NOW + 11 * DAY).build_server_verifier(x509.DNSName("fed.example.org")),
    ):
        with pytest.raises(VerificationError):
            wrong.verify(certificate(home, "server"), [])
    with pytest.raises(VerificationError):
        verifier.verify(certificate(home, "fed.example.org"), [])
    usage = certificate(home, "fed.example.org").extensions.get_extension_for_class(
        x509.ExtendedKeyUsage
    )
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "ca", "CA", "a/b", "../up", "a b", "ä", "a\n", "a" * 65]
)
def test_an_invalid_name_is_refused(home: Path, name: str) -> None:
    before = contents(home)
    with pytest.raises(CredentialsError, match="allowed: 1 to 64 letters, digits, '-', '_' and"):
        issue(home, name, days=1, now=NOW)
    with pytest.raises(CredentialsError, match="allowed: 1 to 64 letters"):
        revoke(home, name, now=NOW)
    assert contents(home) == before


@pytest.mark.parametrize("name", ["consensus", "All", "policy.json"])
def test_a_reserved_name_is_for_no_member(home: Path, name: str) -> None:
    reserved = "reserved: 'consensus', 'all', 'policy.json', 'ca'"
    with pytest.raises(CredentialsError, match=re.escape(reserved)):
        issue(home, name, days=1, now=NOW)
    # A server's name stands beside no agent's. A certificate that there is can be revoked.
    assert issue(home, name, days=1, hosts=["127.0.0.1"], now=NOW).is_servers
    assert issue(home, name, days=1, renew=True, now=NOW).is_servers
    assert revoke(home, name, now=NOW) == 2


@pytest.mark.parametrize("name", ["a", "a" * 64, "site-1_b.example.org", "9", "ca2"])
def test_a_valid_name_becomes_the_common_name_unchanged(home: Path, name: str) -> None:
    serial = issue(home, name, days=1, now=NOW).serial
    assert peer_of(load(home, name).certificate) == (name, serial)


def test_invalid_hosts_days_and_homes_are_refused(home: Path, tmp_path: Path) -> None:
    for host in ("fed.example.org:7000", "https://fed.example.org", "", "a..b", "ä.org"):
        with pytest.raises(CredentialsError, match="a DNS name or an IP address, without a port"):
            issue(home, "server", days=1, hosts=[host], now=NOW)
    for days in (0, -1, 36_501):
        with pytest.raises(CredentialsError, match=f"{days} days: allowed: 1 to 36500"):
            issue(home, "alice", days=days, now=NOW)
        with pytest.raises(CredentialsError, match=f"{days} days: allowed: 1 to 36500"):
            create_authority(tmp_path / "new", days=days, now=NOW)
    with pytest.raises(CredentialsError, match=r"none has no ca\.crt; start with: fedhql certs"):
        issue(tmp_path / "none", "alice", days=1, now=NOW)
    with pytest.raises(CredentialsError, match=r"none has no ca\.crt; start with: fedhql certs"):
        issued(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(CredentialsError, match="file cannot be written: File exists"):
        create_authority(tmp_path / "file", days=1, now=NOW)
    assert {path.name for path in tmp_path.iterdir()} == {"certs", "file"}
    assert {path.name for path in home.iterdir()} == {"ca.crt", "ca.key", ".lock"}


def test_an_authority_that_expired_or_has_the_wrong_key_does_not_sign(
    home: Path, tmp_path: Path
) -> None:
    with pytest.raises(CredentialsError, match=r"ca\.crt expired on 2033-01-30 .*; create a new"):
        issue(home, "alice", days=1, now=NOW + 1001 * DAY)
    create_authority(tmp_path / "other", days=1, now=NOW)
    shutil.copy(tmp_path / "other" / "ca.key", home / "ca.key")
    with pytest.raises(CredentialsError, match=r"ca\.key does not belong to .*ca\.crt"):
        issue(home, "alice", days=1, now=NOW)


# Loading


def test_issued_credentials_load_and_hide_the_key_in_their_repr(home: Path) -> None:
    issue(home, "alice", days=1, now=NOW)
    loaded = load(home, "alice")
    assert loaded.authority == (home / "ca.crt").read_bytes()
    assert loaded.certificate == (home / "alice.crt").read_bytes()
    assert loaded.key == (home / "alice.key").read_bytes()
    assert "PRIVATE" not in repr(loaded)
    assert "CERTIFICATE" in repr(loaded)


@pytest.mark.parametrize("missing", ["ca.crt", "alice.crt", "alice.key"])
def test_the_error_names_a_missing_file(home: Path, missing: str) -> None:
    issue(home, "alice", days=1, now=NOW)
    (home / missing).unlink()
    with pytest.raises(CredentialsError, match=f"{missing} cannot be read: No such file"):
        load(home, "alice")


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o601, 0o644])
def test_a_key_that_others_can_access_is_refused(home: Path, mode: int) -> None:
    issue(home, "alice", days=1, now=NOW)
    for name in ("alice", "ca"):
        (home / f"{name}.key").chmod(mode)
    with pytest.raises(CredentialsError, match=r"other users; run: chmod 600 .*/alice\.key$"):
        load(home, "alice")
    with pytest.raises(CredentialsError, match=r"other users; run: chmod 600 .*/ca\.key$"):
        issue(home, "bob", days=1, now=NOW)


def test_an_invalid_certificate_or_key_is_refused(home: Path) -> None:
    issue(home, "alice", days=1, now=NOW)
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for content in (b"nonsense", b"", locked):
        (home / "alice.key").write_bytes(content)
        with pytest.raises(CredentialsError, match=r"alice\.key is not an unencrypted private key"):
            load(home, "alice")
    for key in (
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        ec.generate_private_key(ec.SECP384R1()),
    ):
        (home / "alice.key").write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        with pytest.raises(CredentialsError, match=r"alice\.key is not a P-256 key"):
            load(home, "alice")
    (home / "alice.crt").write_text("nonsense")
    with pytest.raises(CredentialsError, match=r"alice\.crt is not a certificate in PEM"):
        load(home, "alice")
    (home / "ca.crt").write_bytes(b"\xff\x00")
    with pytest.raises(CredentialsError, match=r"ca\.crt is not a certificate in PEM"):
        load(home, "alice")


def test_a_key_of_another_certificate_is_refused(home: Path) -> None:
    issue(home, "alice", days=1, now=NOW)
    issue(home, "bob", days=1, now=NOW)
    shutil.copy(home / "bob.key", home / "alice.key")
    with pytest.raises(CredentialsError, match=r"alice\.key does not belong to .*alice\.crt; use"):
        load(home, "alice")


def test_a_certificate_of_another_authority_is_refused(home: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other", days=1, now=NOW)
    issue(home, "alice", days=1, now=NOW)
    with pytest.raises(CredentialsError, match=r"alice\.crt is not signed by the authority of .*c"):
        load(home, "alice", ca=tmp_path / "other" / "ca.crt")
    with pytest.raises(CredentialsError, match=r"alice\.crt is not signed by the authority"):
        load(home, "alice", ca=home / "alice.crt")


def test_a_certificate_outside_its_validity_dates_is_refused(home: Path) -> None:
    issue(home, "alice", days=10, now=NOW)
    load(home, "alice", now=NOW + 10 * DAY)
    load(home, "alice", now=NOW - timedelta(hours=1))
    late, early = NOW + 10 * DAY + timedelta(seconds=1), NOW - timedelta(hours=1, seconds=1)
    with pytest.raises(CredentialsError, match=r"alice\.crt expired on 2030-05-16 12:00 UTC; ask"):
        load(home, "alice", now=late)
    issue(home, "bob", days=10, now=NOW + 5 * DAY)
    with pytest.raises(CredentialsError, match=r"bob\.crt is not valid before 2030-05-11 11:00 UT"):
        load(home, "bob", now=NOW)
    with pytest.raises(CredentialsError, match=r"ca\.crt is not valid before 2030-05-06 11:00 UTC"):
        load(home, "bob", now=early)
    with pytest.raises(CredentialsError, match=r"ca\.crt expired on 2033-01-30 12:00 UTC; ask"):
        load(home, "bob", now=NOW + 1001 * DAY)


def test_a_peer_needs_a_certificate_with_one_common_name() -> None:
    with pytest.raises(CredentialsError, match="the peer's certificate is not a certificate"):
        peer_of(b"nonsense")
    key = ec.generate_private_key(ec.SECP256R1())
    for names in ([], ["alice", "bob"]):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        made = (
            x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW, NOW + DAY)
            .sign(key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
        with pytest.raises(CredentialsError, match="must have exactly one common name"):
            peer_of(made)


# Revocation


def revoked_in(home: Path) -> dict[int, datetime]:
    return read_revoked(home / "revoked.crl", certificate(home, "ca"))


def test_certificates_stay_revoked_and_renewed_ones_are_not_revoked(home: Path) -> None:
    old = {name: issue(home, name, days=1, now=NOW).serial for name in ("alice", "bob", "carol")}
    assert revoked_in(home) == {}
    assert revoke(home, "alice", now=NOW) == 1
    assert revoke(home, "bob", now=NOW + DAY) == 1
    content = (home / "revoked.crl").read_bytes()
    assert revoke(home, "alice", now=NOW + DAY) == 0
    assert (home / "revoked.crl").read_bytes() == content
    new = issue(home, "alice", days=2, renew=True, now=NOW).serial
    assert revoked_in(home) == {old["alice"]: NOW, old["bob"]: NOW + DAY}
    made, unusable = issued(home)
    assert [(one.name, one.serial, one.revoked) for one in made] == [
        ("alice", old["alice"], True),
        ("alice", new, False),
        ("bob", old["bob"], True),
        ("ca", certificate(home, "ca").serial_number, False),
        ("carol", old["carol"], False),
    ]
    assert not unusable
    listed = x509.load_pem_x509_crl(content)
    assert listed.issuer == certificate(home, "ca").subject
    assert listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2


@pytest.mark.parametrize("older", [False, True])
def test_a_replaced_certificate_is_revoked_too(home: Path, older: bool) -> None:
    """`older`: the authority's version did not store a copy of each certificate."""
    later = NOW + 2 * DAY  # the first certificate has expired by then
    issue(home, "alice", days=1, now=NOW)
    first = issue(home, "alice", days=10, renew=True, now=later)
    if older:
        shutil.rmtree(home / "issued")
    second = issue(home, "alice", days=10, renew=True, now=later)
    issue(home, "bob", days=10, now=later)
    assert revoke(home, "alice", now=later) == 2
    assert revoked_in(home).keys() == {first.serial, second.serial}


def test_an_authority_without_stored_copies_still_lists_and_revokes(home: Path) -> None:
    serial = issue(home, "alice", days=1, now=NOW).serial
    shutil.rmtree(home / "issued")
    assert [one.name for one in issued(home)[0]] == ["alice", "ca"]
    assert revoke(home, "alice", now=NOW) == 1
    assert revoked_in(home).keys() == {serial}


def test_only_an_issued_certificate_can_be_revoked(home: Path) -> None:
    with pytest.raises(CredentialsError, match=r"certs has no certificate of alice$"):
        revoke(home, "alice", now=NOW)
    (home / "alice.crt").write_text("nonsense")
    with pytest.raises(CredentialsError, match=r"of alice; .*alice\.crt is not a certificate"):
        revoke(home, "alice", now=NOW)
    assert not (home / "revoked.crl").exists()


def test_unusable_files_are_reported_and_the_rest_is_listed(home: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other", days=1, now=NOW)
    shutil.copy(tmp_path / "other" / "ca.crt", home / "friends.crt")
    (home / "broken.crt").write_bytes(b"\xff")
    issue(home, "alice", days=1, now=NOW)
    made, unusable = issued(home)
    assert [one.name for one in made] == ["alice", "ca"]
    assert [why.rpartition("/")[2] for why in unusable] == [
        "broken.crt is not a certificate in PEM",
        "friends.crt is not signed by this authority",
    ]


def test_an_unreadable_revocation_list_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path.exists must not decide: newer Python versions return False on any error."""
    (home / "revoked.crl").mkdir()
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(CredentialsError, match=r"revoked\.crl cannot be read: Is a directory"):
        revoked_in(home)


def test_a_revocation_list_of_another_signer_is_refused(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create_authority(other, days=1, now=NOW)
    issue(other, "mallory", days=1, now=NOW)
    issue(home, "alice", days=1, now=NOW)
    revoke(other, "mallory", now=NOW)
    crl = home / "revoked.crl"
    shutil.copy(other / "revoked.crl", crl)
    signed_by_a_member = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate(home, "ca").subject)
        .last_update(NOW)
        .next_update(NOW + DAY)
        .sign(_key(home / "alice.key"), hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    for forged in (crl.read_bytes(), signed_by_a_member):
        crl.write_bytes(forged)
        with pytest.raises(
            CredentialsError, match=r"revoked\.crl is not signed by this federation"
        ):
            revoked_in(home)
        with pytest.raises(
            CredentialsError, match=r"revoked\.crl is not signed by this federation"
        ):
            revoke(home, "alice", now=NOW)
        assert crl.read_bytes() == forged
    crl.write_text("nonsense")
    with pytest.raises(CredentialsError, match=r"revoked\.crl is not a list of revoked"):
        revoked_in(home)


def test_concurrent_revocations_are_all_kept(home: Path) -> None:
    names = [f"member{n}" for n in range(8)]
    for name in names:
        issue(home, name, days=1, now=NOW)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: revoke(home, name, now=NOW), names))
    assert [one.name for one in issued(home)[0] if one.revoked] == names


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


# TLS handshakes


async def _who(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    shown: Mapping[str, Iterable[bytes]] = context.auth_context()
    (common_name,) = shown["x509_common_name"]
    (pem,) = shown["x509_pem_cert"]
    name, serial = peer_of(pem)
    assert common_name.decode() == name
    return f"{name} {serial}".encode()


async def _call_server(server: Credentials, member: grpc.ChannelCredentials, host: str) -> str:
    service = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_who)
    service.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Service", {"Who": handler}),)
    )
    port = service.add_secure_port("127.0.0.1:0", server_credentials(server))
    await service.start()
    try:
        async with grpc.aio.secure_channel(f"{host}:{port}", member) as channel:
            who: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            who = channel.unary_unary("/test.Service/Who")
            return (await who(b"", timeout=20)).decode()
    finally:
        await service.stop(None)


@pytest.fixture
def today(tmp_path: Path) -> Path:
    """Return a home with current dates: a handshake uses the real clock."""
    path = tmp_path / "today"
    now = datetime.now(UTC)
    create_authority(path, days=100, now=now - 10 * DAY)
    issue(path, "server", days=10, hosts=["localhost", "127.0.0.1"], now=now)
    issue(path, "alice", days=10, now=now)
    issue(path, "expired", days=1, now=now - 5 * DAY)
    return path


def _loaded(home: Path, name: str) -> Credentials:
    """Load credentials as of their last day, so that expired ones load too."""
    return load(home, name, now=certificate(home, name).not_valid_after_utc)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_member_connects_and_the_server_knows_its_name_and_serial(today: Path, host: str) -> None:
    member = channel_credentials(_loaded(today, "alice"))
    serial = certificate(today, "alice").serial_number
    assert asyncio.run(_call_server(_loaded(today, "server"), member, host)) == f"alice {serial}"


@pytest.mark.parametrize("shown", ["of another authority", "expired", "none"])
def test_a_client_without_a_valid_certificate_cannot_connect(
    today: Path, tmp_path: Path, shown: str
) -> None:
    server = _loaded(today, "server")
    if shown == "of another authority":
        create_authority(tmp_path / "other", days=10, now=datetime.now(UTC))
        issue(tmp_path / "other", "alice", days=10, now=datetime.now(UTC))
        own = _loaded(tmp_path / "other", "alice")
        stranger = channel_credentials(Credentials(server.authority, own.certificate, own.key))
    elif shown == "expired":
        stranger = channel_credentials(_loaded(today, "expired"))
    else:
        stranger = grpc.ssl_channel_credentials(server.authority)
    _connection_error(server, stranger)


def test_members_reject_a_server_with_a_certificate_that_is_not_for_it(today: Path) -> None:
    now = datetime.now(UTC)
    issue(today, "localhost", days=10, now=now)
    issue(today, "elsewhere", days=10, hosts=["fed.example.org"], now=now)
    issue(today, "old-server", days=1, hosts=["localhost"], now=now - 5 * DAY)
    member = channel_credentials(_loaded(today, "alice"))
    for name, reason in (
        ("localhost", "unsupported certificate purpose"),
        ("elsewhere", "Hostname Verification Check failed"),
        ("old-server", "certificate has expired"),
    ):
        assert reason in _connection_error(_loaded(today, name), member)
    with pytest.raises(CredentialsError, match="of localhost is for a member, not for a server"):
        require_server(_loaded(today, "localhost"))
    require_server(_loaded(today, "elsewhere"))


def test_a_member_does_not_trust_the_server_of_another_authority(
    today: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    create_authority(other, days=10, now=datetime.now(UTC))
    issue(other, "server", days=10, hosts=["localhost"], now=datetime.now(UTC))
    member = channel_credentials(_loaded(today, "alice"))
    assert "CERTIFICATE_VERIFY_FAILED" in _connection_error(_loaded(other, "server"), member)


def _connection_error(server: Credentials, member: grpc.ChannelCredentials) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        asyncio.run(_call_server(server, member, "localhost"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    return str(refused.value.details())


# Commands


def succeed(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_print_what_they_wrote_and_what_comes_next(tmp_path: Path) -> None:
    home = tmp_path / "my certs"
    at = ("--home", home)
    assert f"next: fedhql certs issue server --host HOST --home '{home}'" in succeed("init", *at)
    output = succeed("issue", "server", "--host", "localhost", "--host", "127.0.0.1", *at)
    servers = f"fedhql serve reads {home}/ca.crt, {home}/server.crt and {home}/server.key;"
    assert servers in output
    output = succeed("issue", "alice", "--days", 30, *at)
    assert f"send {home}/ca.crt, {home}/alice.crt and {home}/alice.key to alice" in output
    output = succeed("revoke", "alice", *at)
    assert f"wrote {home}/revoked.crl; newly revoked certificates of alice: 1" in output
    assert "nothing to do" in succeed("revoke", "alice", *at)
    assert servers in succeed("issue", "server", "--renew", *at)
    hosts = certificate(home, "server").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert hosts.value.get_values_for_type(x509.DNSName) == ["localhost"]
    header, *rows = (line.split("  ") for line in succeed("list", *at).splitlines())
    assert header[0] == "name"
    found = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    alice = certificate(home, "alice")
    assert found["alice"] == [
        f"{alice.serial_number:040x}",
        f"{alice.not_valid_after_utc:%Y-%m-%d}",
        "30",
        "revoked",
    ]
    assert found["server"][2:] == ["365", "no"]
    assert found["ca"][2:] == ["3650", "no"]


def test_the_list_has_replaced_certificates_and_names_unusable_files(tmp_path: Path) -> None:
    at = ("--home", tmp_path)
    for arguments in (("init",), ("issue", "alice"), ("revoke", "alice")):
        succeed(*arguments, *at)
    succeed("issue", "alice", "--renew", *at)
    (tmp_path / "stray.crt").write_text("nonsense")
    *rows, left_out = succeed("list", *at).splitlines()
    assert sorted(row.split()[-1] for row in rows if row.startswith("alice")) == ["no", "revoked"]
    assert left_out == f"left out: {tmp_path}/stray.crt is not a certificate in PEM"
    assert "newly revoked certificates of alice: 1" in succeed("revoke", "alice", *at)


def test_an_expired_certificate_is_listed_as_expired(tmp_path: Path) -> None:
    past = datetime.now(UTC) - 5 * DAY
    create_authority(tmp_path, days=100, now=past)
    issue(tmp_path, "alice", days=1, now=past)
    assert succeed("list", "--home", tmp_path).splitlines()[1].split()[3:] == ["expired", "no"]


def test_a_command_raises_its_error_for_the_command_line_to_print(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["issue", "alice", "--home", str(tmp_path)])
    assert isinstance(done.exception, CredentialsError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["cryptography", "grpc"])
def test_the_error_names_the_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["init", "--home", str(tmp_path / "certs")])
    assert isinstance(done.exception, MissingExtra)
    assert "pip install 'fedhql[remote]'" in str(done.exception)
    assert CliRunner().invoke(app, ["issue", "--help"]).exit_code == 0
