"""Test vectors of secure aggregation, for members in other languages: docs/secure_vectors.json.

After a change of the protocol: python -m tests.secure.vectors > docs/secure_vectors.json
"""

import hashlib
import json
import sys
from itertools import combinations
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedhql.remote.identity.masking_keys import _signed_part, masking_key
from fedhql.secure.fixed_point import FixedPoint, Words
from fedhql.secure.masks import Masker, _check, _information, _stream, digest_of, unmasked_sum

ABOUT = (
    "Secure aggregation by docs/protocol.md, for three members, two states and two actions. Bytes "
    "are in hexadecimal, numbers are decimal strings. Values are float32."
)
FEDERATION = "59b1e94454bf4aa083d4ae5495f324c3"
NAMES = ("Bob", "ann", "cyd")  # byte by byte, capital letters come first
IDENTITY = (2, 2**53 + 1)  # a number that a double cannot hold
VALUE_BOUND = 1e6
ACTIONS = 2
STATES = np.array([0, 2**40 + 5], dtype="<i8")
UNIT = 2.0**-41  # of the integers for q, with this bound: the values below have halves of it
VALUES = (
    [[0.5 * UNIT, 1.5 * UNIT], [-0.5 * UNIT, -2.5 * UNIT]],
    [[0.1, -123.456], [1e6, -1e6]],
    [[0.0, 3.14159], [-0.000123, 999_999.9375]],
)
BITS = ((3, 1e6), (3, 10.0), (5, 0.1), (15, 1000.0), (1000, 12.3456789), (4, 2.0**-30), (3, 5e6))


def vectors() -> dict[str, Any]:
    """Compute all numbers with the package's own code."""
    keys = {
        name: X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        for name in NAMES
    }
    maskers = {name: Masker(name, FEDERATION, key) for name, key in keys.items()}
    cohort = {name: masker.public_key for name, masker in maskers.items()}
    fixed = FixedPoint(len(NAMES), VALUE_BOUND)
    digest = digest_of(
        "int64", STATES.shape, STATES.tobytes(), action_count=ACTIONS, value_bound=VALUE_BOUND
    )
    info = _information(IDENTITY, cohort, digest)
    members, answers = [], []
    for name, values in zip(NAMES, VALUES, strict=True):
        q_BA = np.array(values, dtype="<f4")
        words = fixed.encoded(q_BA).ravel()
        answers.append(maskers[name].masked(words, IDENTITY, cohort, digest))
        members.append(
            {
                "name": name,
                "private_key": keys[name].private_bytes_raw().hex(),
                "public_key": cohort[name].hex(),
                "signed_part": _signed_part(masking_key(name, cohort[name], None)).hex(),
                "values": q_BA.tobytes().hex(),
                "words": _decimal(words),
                "check_word": str(_check(words)),
                "masked": _decimal(answers[-1]),
            }
        )
    pairs = []
    for first, second in combinations(NAMES, 2):
        secret = maskers[first]._secret(second, cohort[second])
        mask = _stream(secret, info, len(answers[0]))
        names = {"first": first, "second": second}
        pairs.append({**names, "secret": secret.hex(), "mask": _decimal(mask)})
    sums = unmasked_sum(answers)
    bits = (FixedPoint(members, bound) for members, bound in BITS)
    return {
        "about": ABOUT,
        "federation": FEDERATION,
        "value_bound": repr(VALUE_BOUND),
        "actions": str(ACTIONS),
        "exchange": {"epoch": str(IDENTITY[0]), "number": str(IDENTITY[1])},
        "states": {"dtype": "int64", "shape": ["2"], "data": STATES.tobytes().hex()},
        "value_bits": str(fixed.value_bits),
        "square_bits": str(fixed.square_bits),
        "question_digest": digest.hex(),
        "mask_info": info.hex(),
        "members": members,
        "pairs": pairs,
        "sums": _decimal(sums),
        "other_bits": [
            {
                "members": str(each.members),
                "value_bound": repr(each.value_bound),
                "value_bits": str(each.value_bits),
                "square_bits": str(each.square_bits),
            }
            for each in bits
        ],
    }


def _decimal(words: Words) -> list[str]:
    return [str(word) for word in words]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(vectors(), indent=2) + "\n")
