"""A member's side of secure aggregation, for one connection.

The key pair is drawn for the connection and forgotten with it, and nothing is stored. So no mask
is used twice, even if either side is killed, restored from a copy or started anew. Answers sent
earlier stay unreadable if a machine is compromised later.
"""

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhql.contract import Values
from fedhql.errors import CredentialsError
from fedhql.remote.identity.credentials import Credentials
from fedhql.remote.identity.masking_keys import masking_key, require_signed
from fedhql.remote.wire import WireError, key_of, pack
from fedhql.remote.wire_pb2 import MaskingKey, Order, Tensor, Welcome
from fedhql.secure.fixed_point import LEAST_MEMBERS, FixedPoint, unusable, wrong_size
from fedhql.secure.masks import Masker, UnsafeToMask, digest_of

log = logging.getLogger(__name__)


class Masking:
    """Masks values so that only the sum over a whole cohort can be read."""

    def __init__(self, name: str, credentials: Credentials | None) -> None:
        self._name, self._credentials = name, credentials
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        self.key: MaskingKey = masking_key(name, public, credentials)
        self._keys: dict[str, bytes] = {}  # newest public key of each member
        self._masker: Masker | None = None
        self._value_bound = 0.0

    def begin(self, welcome: Welcome) -> None:
        """Prepare to mask; raise WireError if the server's settings do not allow it."""
        if self._masker is not None:  # a new Masker would forget which identities were used
            raise WireError("a second welcome")
        if not 0 < welcome.secure_value_bound < math.inf:
            raise WireError(
                "a welcome without secure aggregation; join without --secure-aggregation if the "
                "server may see this agent's values"
            )
        self._value_bound = welcome.secure_value_bound
        self._require_room(LEAST_MEMBERS)
        self._masker = Masker(self._name, welcome.federation, self._private)

    def answer(self, order: Order, values: Values) -> Tensor:
        """Return the values masked for the order's cohort; empty if they cannot be summed.

        Raise WireError if answering would be unsafe.
        """
        assert self._masker is not None  # begin() comes first
        try:
            if not order.query.cohort:
                raise WireError("a query that would be answered without masks")
            self._add_keys(order.query.keys)
            cohort = {name: self._keys[name] for name in order.query.cohort}
            self._require_room(len(cohort))
            if (why := unusable(values, self._value_bound)) is not None:
                self._masker.use_up(key_of(order.id))
                log.warning("%s: no answer to a query: %s", self._name, why)
                return Tensor()
            words = FixedPoint(len(cohort), self._value_bound).encoded(values)
            about = self._about(order.query.states, values.shape[1])
            return pack(self._masker.masked(words, key_of(order.id), cohort, about))
        except KeyError as error:
            raise WireError(f"a cohort with {error}, whose key is unknown") from error
        except (CredentialsError, UnsafeToMask) as error:
            raise WireError(str(error)) from error

    def _require_room(self, members: int) -> None:
        """Raise WireError if a sum over so many members would round too coarsely."""
        if (why := wrong_size(members, self._value_bound, "members")) is not None:
            raise WireError(why)

    def _about(self, states: Tensor, action_count: int) -> bytes:
        return digest_of(
            states.dtype,
            states.shape,
            states.data,
            action_count=action_count,
            value_bound=self._value_bound,
        )

    def _add_keys(self, keys: Iterable[MaskingKey]) -> None:
        """Check and store keys. The server sends each key once."""
        for key in keys:
            require_signed(key, self._credentials, now=datetime.now(UTC))
            self._keys[key.name] = key.public_key
