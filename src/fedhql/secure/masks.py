"""Pairwise masks: two members draw the same random words; one adds them, the other subtracts them.

A masked answer looks random to anyone who lacks the member's secrets, and the masks of a whole
cohort cancel. Each pair of members agrees on a secret by X25519 once for each pair of keys. The
words of an exchange are a ChaCha20 stream. HKDF derives its key from that secret, the identity of
the exchange, the question and the cohort. So no words are used twice. If members were told
different identities, states, bounds, cohorts or keys, the sum of their answers is noise.
"""

import hashlib
import struct
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from fedhql.secure.fixed_point import LEAST_MEMBERS, Words

Identity = tuple[int, int]  # of an exchange: the server's epoch, and a number within the epoch
Cohort = Mapping[str, bytes]  # public keys by name
_UNIT = np.uint64(0x9E3779B97F4A7C15)  # odd; 2^64 divided by the golden ratio
_NO_NONCE = bytes(16)  # each key encrypts only one stream


class UnsafeToMask(Exception):
    """The requested masks would not protect the answer."""


class NotTheSum(Exception):
    """The answers do not add up: masks are left over, or an answer was altered."""


class Masker:
    """The masks of one member, for the lifetime of its key pair. Each identity is used once."""

    def __init__(self, name: str, federation: str, key: X25519PrivateKey) -> None:
        self._name, self._federation, self._key = name, federation, key
        self.public_key = key.public_key().public_bytes_raw()
        self._last: Identity = (0, 0)
        self._secrets: dict[tuple[str, bytes], bytes] = {}

    def use_up(self, identity: Identity) -> None:
        """Mark an identity as used, before any answer is sent. Raise UnsafeToMask if it is old."""
        if identity <= self._last:
            raise UnsafeToMask(f"exchange {identity} after {self._last}: masks are used once")
        self._last = identity

    def masked(self, words: Words, identity: Identity, cohort: Cohort, about: bytes) -> Words:
        """Return the words in one row, with a check word, under the masks of this exchange.

        The masks cancel only if all members are asked `about` the same question. Raise UnsafeToMask
        if the cohort or the identity is not safe.
        """
        self._require_safe(cohort)
        self.use_up(identity)
        checked = np.append(words.ravel(), _check(words.ravel()))
        info = _information(identity, cohort, about)
        for name, public_key in cohort.items():
            if name > self._name:
                checked += _stream(self._secret(name, public_key), info, len(checked))
            elif name < self._name:
                checked -= _stream(self._secret(name, public_key), info, len(checked))
        return checked

    def _require_safe(self, cohort: Cohort) -> None:
        if len(cohort) < LEAST_MEMBERS:
            raise UnsafeToMask(f"a cohort of {len(cohort)}, allowed: at least {LEAST_MEMBERS}")
        if cohort.get(self._name) != self.public_key:
            raise UnsafeToMask(f"a cohort without {self._name}, or with another key for it")

    def _secret(self, name: str, public_key: bytes) -> bytes:
        """Return the secret shared with that member; derive it once for each of its keys."""
        if (name, public_key) not in self._secrets:
            try:
                shared = self._key.exchange(X25519PublicKey.from_public_bytes(public_key))
            except ValueError as error:
                raise UnsafeToMask(f"the public key of {name} is not valid") from error
            both = sorted(((self._name, self.public_key), (name, public_key)))
            info = _joined(b"fedhql pair", self._federation.encode(), *_flat(both))
            self._secrets[name, public_key] = HKDF(hashes.SHA256(), 32, None, info).derive(shared)
        return self._secrets[name, public_key]


def digest_of(
    dtype: str, shape: Sequence[int], data: bytes, *, action_count: int, value_bound: float
) -> bytes:
    """Return the digest of a question: its states as they came, and the encoding of the answer.

    Without it a server could ask one member about other states, or give the other members a bound
    so large that their values round to 0. The sum would then reveal the values of that one member.
    """
    numbers = b"".join(number.to_bytes(8, "little") for number in (action_count, *shape))
    bound = struct.pack("<d", value_bound)
    return hashlib.sha256(
        _joined(b"fedhql question", bound, numbers, dtype.encode(), data)
    ).digest()


def unmasked_sum(masked: Collection[Words]) -> Words:
    """Return the sum of a whole cohort's words. Raise NotTheSum if the check word is wrong."""
    checked: Words = np.stack(list(masked)).sum(axis=0, dtype=np.uint64)
    words = checked[:-1]
    if _check(words) != checked[-1]:
        raise NotTheSum("the masked answers of the cohort do not add up")
    return words


def _check(words: Words) -> np.uint64:
    """Return a linear function of the words: check words add up to the check word of the sum.

    The factors are odd, so every change of a single word is detected. Noise passes once in 2^64
    times. An attacker could adapt the check word, too; TLS protects against that.
    """
    factors = _UNIT * (2 * np.arange(len(words), dtype=np.uint64) + 1)
    return np.uint64((factors * words).sum(dtype=np.uint64))


def _stream(secret: bytes, info: bytes, words: int) -> Words:
    key = HKDFExpand(hashes.SHA256(), 32, info).derive(secret)
    cipher = Cipher(algorithms.ChaCha20(key, _NO_NONCE), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * words)), dtype="<u8")


def _information(identity: Identity, cohort: Cohort, about: bytes) -> bytes:
    """Return a digest of everything that the members of an exchange must agree on."""
    numbers = (part.to_bytes(8, "little") for part in identity)
    return hashlib.sha256(
        _joined(b"fedhql mask", *numbers, about, *_flat(sorted(cohort.items())))
    ).digest()


def _flat(pairs: Collection[tuple[str, bytes]]) -> list[bytes]:
    return [part for name, key in pairs for part in (name.encode(), key)]


def _joined(*parts: bytes) -> bytes:
    """Join parts with their lengths, so that different parts never give the same bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
