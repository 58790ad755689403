"""Pairwise masks: two members draw the same random words, one adds them, the other takes them away.

What a member sends is then as good as random to whoever lacks its secrets, and the masks of a whole
cohort cancel. Each two agree on a secret by X25519 once, as long as their keys last; the words of
an exchange are a ChaCha20 stream under a key that HKDF derives from that secret, the identity of
the exchange, the question and the cohort. So no words are used twice, and members who were told
different identities, states, bounds, cohorts or keys leave nothing but noise.
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

Identity = tuple[int, int]  # of an exchange: the server's epoch and a number in it
Cohort = Mapping[str, bytes]  # public keys by name
_UNIT = np.uint64(0x9E3779B97F4A7C15)  # odd; 2^64 divided by the golden ratio
_NO_NONCE = bytes(16)  # each key encrypts one stream


class UnsafeToMask(Exception):
    """The masks that are asked for would protect nothing."""


class NotTheSum(Exception):
    """Masks are left in it, or something was altered."""


class Masker:
    """One member's masks, for as long as its key pair lasts. An identity is used once."""

    def __init__(self, name: str, federation: str, key: X25519PrivateKey) -> None:
        self._name, self._federation, self._key = name, federation, key
        self.public_key = key.public_key().public_bytes_raw()
        self._last: Identity = (0, 0)
        self._secrets: dict[tuple[str, bytes], bytes] = {}

    def use_up(self, identity: Identity) -> None:
        """Before anything is sent: no other answer goes out under it."""
        if identity <= self._last:
            raise UnsafeToMask(f"exchange {identity} after {self._last}: masks are used once")
        self._last = identity

    def masked(self, words: Words, identity: Identity, cohort: Cohort, about: bytes) -> Words:
        """The words in one row, and a check word, under the masks of this exchange.

        All have to be asked `about` the same.
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
            raise UnsafeToMask(f"a cohort without {self._name}, or with another key of it")

    def _secret(self, name: str, public_key: bytes) -> bytes:
        """Shared with that member alone; agreed once for each key of it."""
        if (name, public_key) not in self._secrets:
            try:
                shared = self._key.exchange(X25519PublicKey.from_public_bytes(public_key))
            except ValueError as error:
                raise UnsafeToMask(f"what should be a key of {name} is none") from error
            both = sorted(((self._name, self.public_key), (name, public_key)))
            info = _joined(b"fedhql pair", self._federation.encode(), *_flat(both))
            self._secrets[name, public_key] = HKDF(hashes.SHA256(), 32, None, info).derive(shared)
        return self._secrets[name, public_key]


def digest_of(
    dtype: str, shape: Sequence[int], data: bytes, *, action_count: int, value_bound: float
) -> bytes:
    """Of a question: its states as they came, and how the answer is written.

    Else a server could ask one member at other states, or have the others' values rounded to 0 by
    a larger bound, and the sum would be that one's values.
    """
    numbers = b"".join(number.to_bytes(8, "little") for number in (action_count, *shape))
    bound = struct.pack("<d", value_bound)
    return hashlib.sha256(
        _joined(b"fedhql question", bound, numbers, dtype.encode(), data)
    ).digest()


def unmasked_sum(masked: Collection[Words]) -> Words:
    """The sum of what a whole cohort masked, without the check word; NotTheSum if it is not."""
    checked: Words = np.stack(list(masked)).sum(axis=0, dtype=np.uint64)
    words = checked[:-1]
    if _check(words) != checked[-1]:
        raise NotTheSum("the masked answers of the cohort do not add up")
    return words


def _check(words: Words) -> np.uint64:
    """A linear function of the words, so that the check words' sum is that of the words' sum.

    Factors are odd, so no change of a single word goes unseen, and noise passes once in 2^64
    times. Who alters on purpose can alter it, too: against that there is TLS.
    """
    factors = _UNIT * (2 * np.arange(len(words), dtype=np.uint64) + 1)
    return np.uint64((factors * words).sum(dtype=np.uint64))


def _stream(secret: bytes, info: bytes, words: int) -> Words:
    key = HKDFExpand(hashes.SHA256(), 32, info).derive(secret)
    cipher = Cipher(algorithms.ChaCha20(key, _NO_NONCE), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * words)), dtype="<u8")


def _information(identity: Identity, cohort: Cohort, about: bytes) -> bytes:
    """Of one exchange: what all who take part in it have to agree on."""
    numbers = (part.to_bytes(8, "little") for part in identity)
    return hashlib.sha256(
        _joined(b"fedhql mask", *numbers, about, *_flat(sorted(cohort.items())))
    ).digest()


def _flat(pairs: Collection[tuple[str, bytes]]) -> list[bytes]:
    return [part for name, key in pairs for part in (name.encode(), key)]


def _joined(*parts: bytes) -> bytes:
    """Each with its length before it, so that other parts never make the same bytes."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
