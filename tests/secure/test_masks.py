"""Masks cancel in the sum of the whole cohort, and in no other sum.

The statistical tests use fixed keys, so each of them always passes or always fails. With other
keys, a correct implementation would fail one of them once in a million times.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedhql.secure import masks
from fedhql.secure.fixed_point import LARGEST_ERROR, LEAST_MEMBERS, FixedPoint
from fedhql.secure.masks import Identity, Masker, NotTheSum, UnsafeToMask, unmasked_sum

FEDERATION = "a federation"
NAMES = ("ann", "bob", "cyd", "dan", "eve")
BOUND = 1e6
ERROR_RATE = 1e-6
ABOUT = b"a question"
WORDS = 2**15


@cache
def key_of(name: str, which: int = 0) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(f"{name} {which}".encode()).digest())


def masker(name: str, which: int = 0) -> Masker:
    return Masker(name, FEDERATION, key_of(name, which))


def cohort_of(*names: str) -> dict[str, bytes]:
    return {name: key_of(name).public_key().public_bytes_raw() for name in names}


def masked_by(
    maskers: Mapping[str, Masker], values: Mapping[str, Any], identity: Identity
) -> list[Any]:
    cohort = cohort_of(*maskers)
    return [maskers[name].masked(values[name], identity, cohort, ABOUT) for name in maskers]


@given(
    st.permutations(NAMES),
    st.lists(st.integers(0, 1), min_size=len(NAMES), max_size=len(NAMES)),
    st.integers(0, 2**32),
)
def test_sums_are_exact_when_members_drop_out_in_any_order(
    order: Sequence[str], pace: Sequence[int], seed: int
) -> None:
    """The members that are left repeat the exchange under new identities, down to three."""
    rng = np.random.default_rng(seed)
    q = {name: rng.uniform(-BOUND, BOUND, (2, 3)).astype(np.float32) for name in NAMES}
    left, leaving = {name: masker(name) for name in NAMES}, list(order)
    for number, how_many in enumerate((0, *pace), start=1):
        for _ in range(how_many):
            if len(left) > LEAST_MEMBERS:
                del left[leaving.pop()]
        fixed = FixedPoint(len(left), BOUND)
        words = {name: fixed.encoded(q[name]) for name in left}
        total = unmasked_sum(masked_by(left, words, (1, number))).reshape(2, 2, 3)
        exact = np.sum(list(words.values()), axis=0, dtype=np.uint64)
        np.testing.assert_array_equal(
            total, exact
        )  # test_fixed_point compares these with plain sums
        mean = fixed.moments(total).mean_BA
        plain = np.sum([q[name].astype(np.float64) for name in left], axis=0)
        np.testing.assert_allclose(mean * len(left), plain, rtol=0, atol=LARGEST_ERROR)


def assert_uniform(words: Any) -> None:
    """Compare byte counts, over all bytes and at each position in a word, with random bytes."""
    counted = np.ascontiguousarray(words).view(np.uint8)
    for bytes_ in (counted, *counted.reshape(-1, 8).T):
        observed, expected = np.bincount(bytes_, minlength=256), len(bytes_) / 256
        statistic = ((observed - expected) ** 2 / expected).sum()
        assert chi2.sf(statistic, 255) > ERROR_RATE
        assert chi2.cdf(statistic, 255) > ERROR_RATE  # they are not too even, either


def test_a_single_masked_answer_looks_like_random_bytes() -> None:
    """The masked words are all zero, which a server could tell from noise most easily."""
    nothing = np.zeros(WORDS, dtype=np.uint64)
    with pytest.raises(AssertionError):
        assert_uniform(nothing)
    for answer in masked_by({name: masker(name) for name in NAMES}, dict.fromkeys(NAMES, nothing),
                            (1, 1)):  # fmt: skip
        assert_uniform(answer)


def test_the_difference_of_two_answers_of_one_member_looks_random() -> None:
    nothing, ann, cohort = np.zeros(WORDS, dtype=np.uint64), masker("ann"), cohort_of(*NAMES)
    answers = [
        ann.masked(nothing, identity, cohort, ABOUT) for identity in ((1, 1), (1, 2), (2, 1))
    ]
    fewer = ann.masked(nothing, (2, 2), cohort_of(*NAMES[:3]), ABOUT)
    again = masker("ann", which=1)  # ann with a new key, after a reconnect
    other = ann.masked(nothing, (2, 3), cohort, b"another question")
    answers += [fewer, other]
    answers += [again.masked(nothing, (1, 1), cohort | {"ann": again.public_key}, ABOUT)]
    for one, other in permutations(answers, 2):
        assert_uniform(one - other)


def test_a_server_and_all_but_two_members_learn_only_the_sum_of_the_two() -> None:
    """They can remove every mask except the one that the two share."""
    nothing, cohort = np.zeros(WORDS, dtype=np.uint64), cohort_of(*NAMES)
    secret = {name: np.full(WORDS, n, dtype=np.uint64) for n, name in enumerate(NAMES, start=1)}
    answers = dict(
        zip(NAMES, masked_by({n: masker(n) for n in NAMES}, secret, (1, 1)), strict=True)
    )
    # The colluders know the masks that they share with the two honest members.
    info = masks._information((1, 1), cohort, ABOUT)
    for honest in ("ann", "dan"):
        for colluder in ("bob", "cyd", "eve"):
            shared = masker(colluder)._secret(honest, cohort[honest])
            stream = masks._stream(shared, info, WORDS + 1)
            answers[honest] = answers[honest] + (stream if colluder < honest else -stream)
        assert_uniform((answers[honest][:-1]) - nothing)
    both = (answers["ann"] + answers["dan"])[:-1]
    np.testing.assert_array_equal(both, secret["ann"] + secret["dan"])


def test_an_old_identity_is_refused() -> None:
    words, cohort, ann = np.ones(4, dtype=np.uint64), cohort_of(*NAMES), masker("ann")
    ann.masked(words, (2, 5), cohort, ABOUT)
    for replayed in ((2, 5), (2, 4), (1, 9)):
        with pytest.raises(UnsafeToMask, match=r"after \(2, 5\): masks are used once"):
            ann.masked(words, replayed, cohort, ABOUT)
    ann.masked(words, (2, 6), cohort, ABOUT)
    ann.masked(words, (3, 1), cohort, ABOUT)


@pytest.mark.parametrize(
    ("cohort", "why"),
    [
        (cohort_of("ann", "bob"), "a cohort of 2, allowed: at least 3"),
        (cohort_of("bob", "cyd", "dan"), "a cohort without ann"),
        (cohort_of("ann", "bob", "cyd") | {"ann": cohort_of("bob")["bob"]}, "or with another key"),
        (cohort_of("ann", "bob", "cyd") | {"bob": b"short"}, "key of bob is not valid"),
        (cohort_of("ann", "bob", "cyd") | {"bob": bytes(32)}, "key of bob is not valid"),
    ],
)
def test_cohorts_in_which_masks_protect_nothing_are_refused(cohort: Any, why: str) -> None:
    with pytest.raises(UnsafeToMask, match=why):
        masker("ann").masked(np.ones(4, dtype=np.uint64), (1, 1), cohort, ABOUT)


def answers(identity: Identity = (1, 1), *, about: bytes = ABOUT, **changed: bytes) -> list[Any]:
    """Return all members' answers; ann gets the changed keys and the question `about`."""
    words, cohort = np.arange(6, dtype=np.uint64), cohort_of(*NAMES)
    return [
        masker("ann").masked(words, identity, cohort | changed, about),
        *(masker(name).masked(words, identity, cohort, ABOUT) for name in NAMES[1:]),
    ]


@given(st.integers(0, 4), st.integers(0, 6), st.integers(0, 63))
def test_an_altered_answer_is_detected(member: int, word: int, bit: int) -> None:
    found = answers()
    assert unmasked_sum(found).tolist() == [0, 5, 10, 15, 20, 25]
    found[member][word] ^= np.uint64(1 << bit)
    with pytest.raises(NotTheSum):
        unmasked_sum(found)


def test_a_replayed_answer_or_key_is_detected() -> None:
    now = answers((1, 2))
    for found in (
        [answers((1, 1))[0], *now[1:]],  # an older answer under a new identity
        [now[0], now[0], *now[2:]],  # one member's answer in place of another's
        now[:-1],  # one member is missing
        answers((1, 2), bob=masker("bob", which=1).public_key),  # a former key of bob
        answers((1, 2), about=b"another question"),
    ):
        with pytest.raises(NotTheSum):
            unmasked_sum(found)


STATES, BOUND_OF_STATES = ("int16", (2, 3), bytes(range(12))), 0.1
BOUND_BYTES = bytes.fromhex("9a9999999999b93f")  # BOUND_OF_STATES


def joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def masked_by_the_protocol(
    name: str, words: Sequence[int], identity: Identity, cohort: Any
) -> list[int]:
    """Compute a masked answer as docs/protocol.md describes it, in plain Python."""

    def digest(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, "sha256")

    check = sum((2 * i + 1) * 0x9E3779B97F4A7C15 * word for i, word in enumerate(words)) % 2**64
    answer = [*words, check]
    numbers = [part.to_bytes(8, "little") for part in identity]
    members = [part for n in sorted(cohort) for part in (n.encode(), cohort[n])]
    sizes = b"".join(size.to_bytes(8, "little") for size in (2, 2, 3))  # 2 actions
    question = joined(b"fedhql question", BOUND_BYTES, sizes, b"int16", STATES[2])
    asked = hashlib.sha256(question).digest()
    info = hashlib.sha256(joined(b"fedhql mask", *numbers, asked, *members)).digest()
    for other in cohort.keys() - {name}:
        shared = key_of(name).exchange(key_of(other).public_key())
        pair = [part for n in sorted((name, other)) for part in (n.encode(), cohort[n])]
        about = joined(b"fedhql pair", FEDERATION.encode(), *pair)
        secret = digest(digest(bytes(32), shared), about + b"\x01")
        cipher = Cipher(algorithms.ChaCha20(digest(secret, info + b"\x01"), bytes(16)), mode=None)
        stream = cipher.encryptor().update(bytes(8 * len(answer)))
        sign = 1 if name < other else -1
        for i in range(len(answer)):
            mask = int.from_bytes(stream[8 * i : 8 * i + 8], "little")
            answer[i] = (answer[i] + sign * mask) % 2**64
    return answer


@pytest.mark.parametrize("name", NAMES)
def test_masks_follow_the_protocol(name: str) -> None:
    words, cohort = [3, 2**64 - 1, 0, 2**63], cohort_of(*NAMES)
    about = masks.digest_of(*STATES, action_count=2, value_bound=BOUND_OF_STATES)
    found = masker(name).masked(np.array(words, dtype=np.uint64), (7, 11), cohort, about)
    assert found.tolist() == masked_by_the_protocol(name, words, (7, 11), cohort)


def test_different_questions_have_different_digests() -> None:
    dtype, shape, data = STATES
    digests = [
        masks.digest_of(*states, action_count=actions, value_bound=bound)
        for states, actions, bound in (
            (STATES, 2, 0.1),
            (STATES, 3, 0.1),
            (STATES, 2, 0.2),
            (("uint16", shape, data), 2, 0.1),
            ((dtype, (3, 2), data), 2, 0.1),
            ((dtype, (6,), data), 2, 0.1),
            ((dtype, shape, data[::-1]), 2, 0.1),
        )
    ]
    assert len(set(digests)) == len(digests)
