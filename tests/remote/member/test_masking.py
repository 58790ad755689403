"""A member's side of secure aggregation: which queries it masks, and which keys it accepts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedhql.remote.identity.credentials import Credentials
from fedhql.remote.member.masking import Masking
from fedhql.remote.wire import WireError, pack, unpack
from fedhql.remote.wire_pb2 import MaskingKey, Order, OrderId, Query, Tensor, Welcome
from fedhql.secure.fixed_point import FixedPoint
from fedhql.secure.masks import NotTheSum, unmasked_sum
from tests.remote.authority import Authority

NAMES = ("ann", "bob", "cyd")
VALUES = np.array([[1.5, -2]], dtype=np.float32)
WELCOME = Welcome(federation="f", secure_value_bound=1e6)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Credentials]:
    ours, theirs = (Authority(tmp_path_factory.mktemp(name) / "certs") for name in ("a", "b"))
    made = {name: ours.make(name) for name in NAMES}
    return made | {
        "expired": ours.make("old", days_ago=20),
        "server": ours.make("server", hosts=("fed.example.org",)),
        "theirs": theirs.make("bob"),
    }


def masking(name: str, credentials: Credentials | None, bound: float = 1e6) -> Masking:
    made = Masking(name, credentials)
    made.begin(Welcome(federation="f", secure_value_bound=bound))
    return made


def order(
    number: int,
    *keys: MaskingKey,
    cohort: tuple[str, ...] = NAMES,
    epoch: int = 1,
    state: float = 0.0,
) -> Order:
    id_, states = OrderId(epoch=epoch, number=number), pack(np.array([state]))
    return Order(id=id_, query=Query(states=states, cohort=cohort, keys=keys))


def test_signed_keys_are_accepted_and_remembered(credentials: dict[str, Credentials]) -> None:
    members = [masking(name, credentials[name]) for name in NAMES]
    keys = [member.key for member in members]
    for number, sent in ((1, keys), (2, [])):
        tensors = [member.answer(order(number, *sent), VALUES) for member in members]
        sums = unmasked_sum([unpack(tensor) for tensor in tensors]).reshape(2, 1, 2)
        assert FixedPoint(3, 1e6).moments(sums).mean_BA.tolist() == VALUES.tolist()


def changed(key: MaskingKey, **fields: Any) -> MaskingKey:
    made = MaskingKey()
    made.CopyFrom(key)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


Change = Callable[[MaskingKey, dict[str, Credentials]], MaskingKey]
ALTERED: dict[str, tuple[Change, str]] = {
    "another key": (
        lambda key, _: changed(key, public_key=Masking("bob", None).key.public_key),
        "is not signed with its certificate's key",
    ),
    "another signature": (
        lambda key, _: changed(key, signature=key.signature[:-1] + bytes([key.signature[-1] ^ 1])),
        "is not signed with its certificate's key",
    ),
    "no signature": (lambda key, _: changed(key, signature=b""), "is not signed"),
    "no certificate": (lambda key, _: changed(key, certificate=b""), "is not a certificate"),
    "a long certificate": (
        lambda key, _: changed(key, certificate=key.certificate + bytes(8192)),
        r"a certificate of 8,\d+ bytes, allowed: 8,192",
    ),
    "a long signature": (
        lambda key, _: changed(key, signature=bytes(257)),
        "a signature of 257 bytes, allowed: 256",
    ),
    "another name": (lambda key, _: changed(key, name="cyd"), "certificate of another member"),
    "another member's": (
        lambda key, known: changed(Masking("cyd", known["cyd"]).key, name="bob"),
        "certificate of another member",
    ),
    "another authority's": (
        lambda _, known: Masking("bob", known["theirs"]).key,
        "a certificate of another authority",
    ),
    "the server's": (
        lambda _, known: Masking("server", known["server"]).key,
        "a server's certificate, not a member's",
    ),
    "expired": (lambda _, known: Masking("old", known["expired"]).key, "not valid now"),
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_key_is_refused(what: str, credentials: dict[str, Credentials]) -> None:
    change, why = ALTERED[what]
    ann, bob, cyd = (masking(name, credentials[name]) for name in NAMES)
    keys = (ann.key, change(bob.key, credentials), cyd.key)
    with pytest.raises(WireError, match=why):
        ann.answer(order(1, *keys), VALUES)


def test_a_replayed_query_is_refused(credentials: dict[str, Credentials]) -> None:
    """Two answers with the same masks would reveal their difference."""
    ann, *others = (masking(name, credentials[name]) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    ann.answer(order(5, *keys, epoch=2), VALUES)
    for replayed in (order(5, epoch=2), order(4, epoch=2), order(9, epoch=1)):
        with pytest.raises(WireError, match=r"masks are used once"):
            ann.answer(replayed, 2 * VALUES)
    ann.answer(order(6, epoch=2), VALUES)


def test_a_new_key_replaces_the_old_one(credentials: dict[str, Credentials]) -> None:
    members = {name: masking(name, credentials[name]) for name in NAMES}
    keys = [member.key for member in members.values()]
    for member in members.values():
        member.answer(order(1, *keys), VALUES)
    members["bob"] = again = masking("bob", credentials["bob"])
    found = [
        member.answer(order(2, *(keys if member is again else ()), again.key), VALUES)
        for member in members.values()
    ]
    unmasked_sum([unpack(tensor) for tensor in found])


@pytest.mark.parametrize(
    ("cohort", "why"),
    [
        ((), "without masks"),
        (("ann", "bob"), "with 2 members; allowed: 3 to 17"),
        (("ann", "bob", "bob"), "with 2 members"),
        (("bob", "cyd", "dan"), "a cohort with 'dan', whose key is unknown"),
    ],
)
def test_a_query_with_an_unsafe_cohort_is_refused(
    cohort: tuple[str, ...], why: str, credentials: dict[str, Credentials]
) -> None:
    ann, *others = (masking(name, credentials[name]) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    with pytest.raises(WireError, match=why):
        ann.answer(order(1, *keys, cohort=cohort), VALUES)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.1e6])
def test_values_that_cannot_be_summed_are_not_sent(value: float) -> None:
    """The server could not detect them in the sum."""
    members = [masking(name, None) for name in NAMES]
    values = VALUES.copy()
    values[0, 1] = value
    assert not members[0].answer(order(1, *(each.key for each in members)), values).ByteSize()


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf])
def test_a_welcome_without_secure_aggregation_is_refused(bound: float) -> None:
    with pytest.raises(WireError, match=r"a welcome without secure aggregation; join without --s"):
        Masking("ann", None).begin(Welcome(federation="f", secure_value_bound=bound))


def test_a_second_welcome_is_refused() -> None:
    """It would allow identities to be used again."""
    ann = masking("ann", None)
    with pytest.raises(WireError, match="a second welcome"):
        ann.begin(WELCOME)


def test_a_cohort_that_is_too_large_for_the_bound_is_refused() -> None:
    """The rounding errors of the sum would be too large."""
    names = tuple(f"m{n}" for n in range(18))
    members = [masking(name, None) for name in names]
    keys = [member.key for member in members]
    with pytest.raises(WireError, match="with 18 members; allowed: 3 to 17"):
        members[0].answer(order(1, *keys, cohort=names), VALUES)
    members[0].answer(order(1, *keys, cohort=names[:17]), VALUES)


@pytest.mark.parametrize("bound", [1e25, 1e300])
def test_a_bound_that_leaves_no_room_for_fractions_is_refused(bound: float) -> None:
    with pytest.raises(WireError, match="no room for fractions"):
        masking("ann", None, bound)


def assert_noise(answers: list[Tensor]) -> None:
    """The check word is wrong, and some words are large, where unmasked sums would be small."""
    words = [unpack(tensor) for tensor in answers]
    with pytest.raises(NotTheSum):
        unmasked_sum(words)
    total = np.stack(words).sum(axis=0, dtype=np.uint64)[:-1]
    assert ((total > 2**56) & (total < 2**64 - 2**56)).any()


def test_answers_with_different_bounds_sum_to_noise() -> None:
    """Otherwise the sum could show the values of the one member with a smaller bound."""
    members = [masking("ann", None), masking("bob", None), masking("cyd", None, bound=1e3)]
    keys = [member.key for member in members]
    assert_noise([member.answer(order(1, *keys), VALUES) for member in members])


def test_answers_at_different_states_sum_to_noise() -> None:
    """Otherwise the difference of two sums could show one member's values."""
    members = [masking(name, None) for name in NAMES]
    keys = [member.key for member in members]
    for number, states in ((1, (0.0, 0.0, 1.0)), (2, (0.0, 0.0, -0.0))):
        orders = [order(number, *keys, state=state) for state in states]
        assert_noise(
            [member.answer(each, VALUES) for member, each in zip(members, orders, strict=True)]
        )


def test_an_empty_answer_uses_up_its_identity() -> None:
    """Otherwise a server could query again with it, at other states."""
    ann, *others = (masking(name, None) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    assert not ann.answer(order(2, *keys), np.nan * VALUES).ByteSize()
    for values in (VALUES, np.nan * VALUES):
        for number in (1, 2):
            with pytest.raises(WireError, match="masks are used once"):
                ann.answer(order(number), values)
    ann.answer(order(3), VALUES)
