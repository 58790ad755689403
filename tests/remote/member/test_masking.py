"""A member's side of secure aggregation: what it refuses to mask, and whose keys it believes."""

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


def test_signed_keys_are_believed_and_told_once(credentials: dict[str, Credentials]) -> None:
    members = [masking(name, credentials[name]) for name in NAMES]
    keys = [member.key for member in members]
    for number, told in ((1, keys), (2, [])):
        tensors = [member.answer(order(number, *told), VALUES) for member in members]
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
        lambda key, _: changed(key, signature=key.signature[:-1] + b"!"),
        "is not signed with its certificate's key",
    ),
    "no signature": (lambda key, _: changed(key, signature=b""), "is not signed"),
    "no certificate": (lambda key, _: changed(key, certificate=b""), "is not a certificate"),
    "much around its certificate": (
        lambda key, _: changed(key, certificate=key.certificate + bytes(8192)),
        r"a certificate of 8,\d+ bytes, allowed: 8,192",
    ),
    "a long signature": (
        lambda key, _: changed(key, signature=bytes(257)),
        "a signature of 257 bytes, allowed: 256",
    ),
    "another name": (lambda key, _: changed(key, name="cyd"), "another's certificate"),
    "another member's": (
        lambda key, known: changed(Masking("cyd", known["cyd"]).key, name="bob"),
        "another's certificate",
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


def test_a_replayed_question_is_refused(credentials: dict[str, Credentials]) -> None:
    """Two answers under the same masks would tell their difference."""
    ann, *others = (masking(name, credentials[name]) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    ann.answer(order(5, *keys, epoch=2), VALUES)
    for replayed in (order(5, epoch=2), order(4, epoch=2), order(9, epoch=1)):
        with pytest.raises(WireError, match=r"masks are used once"):
            ann.answer(replayed, 2 * VALUES)
    ann.answer(order(6, epoch=2), VALUES)


def test_a_key_that_was_replaced_is_not_used_any_more(credentials: dict[str, Credentials]) -> None:
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
        (("bob", "cyd", "dan"), "a cohort with 'dan', of whom there is no key"),
    ],
)
def test_cohorts_that_are_refused(
    cohort: tuple[str, ...], why: str, credentials: dict[str, Credentials]
) -> None:
    ann, *others = (masking(name, credentials[name]) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    with pytest.raises(WireError, match=why):
        ann.answer(order(1, *keys, cohort=cohort), VALUES)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.1e6])
def test_values_that_may_not_be_added_up_are_not_sent(value: float) -> None:
    """The server could not see what is wrong with the sum."""
    members = [masking(name, None) for name in NAMES]
    values = VALUES.copy()
    values[0, 1] = value
    assert not members[0].answer(order(1, *(each.key for each in members)), values).ByteSize()


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf])
def test_without_secure_aggregation_it_will_not_begin(bound: float) -> None:
    with pytest.raises(WireError, match=r"a welcome without secure aggregation; join without --s"):
        Masking("ann", None).begin(Welcome(federation="f", secure_value_bound=bound))


def test_it_begins_once() -> None:
    """A second welcome would make identities new that are used."""
    ann = masking("ann", None)
    with pytest.raises(WireError, match="a second welcome"):
        ann.begin(WELCOME)


def test_a_cohort_that_is_too_large_for_the_bound_is_refused() -> None:
    """Each value would be rounded by more than it may be."""
    names = tuple(f"m{n}" for n in range(18))
    members = [masking(name, None) for name in names]
    keys = [member.key for member in members]
    with pytest.raises(WireError, match="with 18 members; allowed: 3 to 17"):
        members[0].answer(order(1, *keys, cohort=names), VALUES)
    members[0].answer(order(1, *keys, cohort=names[:17]), VALUES)


@pytest.mark.parametrize("bound", [1e25, 1e300])
def test_it_will_not_begin_where_every_value_is_rounded_away(bound: float) -> None:
    with pytest.raises(WireError, match="no room for fractions"):
        masking("ann", None, bound)


def assert_noise(answers: list[Tensor]) -> None:
    """The check word says so; and whole words are, where sums of these values are small."""
    words = [unpack(tensor) for tensor in answers]
    with pytest.raises(NotTheSum):
        unmasked_sum(words)
    total = np.stack(words).sum(axis=0, dtype=np.uint64)[:-1]
    assert ((total > 2**56) & (total < 2**64 - 2**56)).any()


def test_members_that_were_told_different_bounds_leave_noise() -> None:
    """Else little would be left of those with the larger one, and the sum be the third's values."""
    members = [masking("ann", None), masking("bob", None), masking("cyd", None, bound=1e3)]
    keys = [member.key for member in members]
    assert_noise([member.answer(order(1, *keys), VALUES) for member in members])


def test_members_that_were_asked_at_different_states_leave_noise() -> None:
    """Else one could be asked elsewhere, and the difference of two sums be that one's values."""
    members = [masking(name, None) for name in NAMES]
    keys, elsewhere = [member.key for member in members], (0.0, 0.0, 1.0)
    for number, states in ((1, elsewhere), (2, (0.0, 0.0, -0.0))):
        asked = [order(number, *keys, state=state) for state in states]
        assert_noise(
            [member.answer(each, VALUES) for member, each in zip(members, asked, strict=True)]
        )


def test_an_empty_answer_uses_its_identity_up() -> None:
    """Or a server could ask again under it, at other states."""
    ann, *others = (masking(name, None) for name in NAMES)
    keys = [each.key for each in (ann, *others)]
    assert not ann.answer(order(2, *keys), np.nan * VALUES).ByteSize()
    for values in (VALUES, np.nan * VALUES):
        for number in (1, 2):
            with pytest.raises(WireError, match="masks are used once"):
                ann.answer(order(number), values)
    ann.answer(order(3), VALUES)
