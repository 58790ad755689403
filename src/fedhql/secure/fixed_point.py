"""Action values as integers modulo 2^64, and the moments of a cohort from their sums. Pure.

A member encodes q and q² as integer multiples of 2^-bits. The integers of all members are added
modulo 2^64. Neither sum can overflow, because the size of the cohort and the bound on its values
are known beforehand.
"""

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhql.federation.moments import Moments

Words = NDArray[np.uint64]

LARGEST_ERROR = 2.0**-16  # of a sum, from the rounding of the numbers that are added
LEAST_MEMBERS = 3  # with two, each could compute the other's values from the sum


@dataclass(frozen=True)
class FixedPoint:
    """The encoding of the values of one cohort. Both sides derive it from these two numbers."""

    members: int
    value_bound: float

    @property
    def value_bits(self) -> int:
        """The number of fraction bits of q. Sums are signed, so they must stay within ±2^63."""
        return _bits(2**63, self.members, Fraction(self.value_bound))

    @property
    def square_bits(self) -> int:
        """The number of fraction bits of q². Sums must stay below 2^64."""
        return _bits(2**64, self.members, Fraction(self.value_bound) ** 2)

    @property
    def largest_error(self) -> float:
        """The largest error of a sum: each member rounds its number by at most half a unit."""
        return self.members * 2.0 ** -(min(self.value_bits, self.square_bits) + 1)

    def encoded(self, q_BA: NDArray[np.floating]) -> Words:
        """Return q and q² as words (2, B, A). All values must be within the bound."""
        exact_BA = q_BA.astype(np.float64)  # has twice the digits of float32, so q² is exact, too
        values_BA = np.rint(np.ldexp(exact_BA, self.value_bits)).astype(np.int64)
        squares_BA = np.rint(np.ldexp(exact_BA**2, self.square_bits)).astype(np.uint64)
        return np.stack((values_BA.view(np.uint64), squares_BA))

    def moments(self, sums_2BA: Words) -> Moments:
        """Return the moments of all members' values, from the sums of their words modulo 2^64."""
        values_BA, squares_BA = sums_2BA[0].view(np.int64), sums_2BA[1]
        mean_BA = np.ldexp(values_BA.astype(np.float64), -self.value_bits) / self.members
        mean_square_BA = np.ldexp(squares_BA.astype(np.float64), -self.square_bits) / self.members
        variance_BA = mean_square_BA - mean_BA**2
        # The two numbers nearly cancel. Below this limit the difference is only their rounding
        # error, and members that agree would seem to differ.
        rounding_BA = 2.0 ** -(self.square_bits + 1) + mean_BA**2 * 2.0**-51
        variance_BA = np.where(variance_BA > rounding_BA, variance_BA, 0.0)
        return Moments(self.members, mean_BA, self.members * variance_BA)


@lru_cache
def most_members(value_bound: float) -> int:
    """Return the size of the largest cohort whose sums keep within `LARGEST_ERROR`, or 0."""
    # The number of sizes before the first one that does not fit.
    return bisect_left(range(1, 2**20), True, key=lambda n: not _fits(n, value_bound))


def wrong_size(members: int, value_bound: float, whose: str) -> str | None:
    """Return why secure aggregation cannot have so many members, or None if it can.

    `whose` is the word for the members; the answer names the settings.
    """
    secure, most = "federation.secure_aggregation", most_members(value_bound)
    if most < LEAST_MEMBERS:
        bound = f"federation.secure_value_bound is {value_bound:g}"
        return f"{bound}: no room for fractions; allowed: less, so that {LEAST_MEMBERS} members fit"
    if LEAST_MEMBERS <= members <= most:
        return None
    allowed = f"{LEAST_MEMBERS} to {most}, for values up to {value_bound:g}"
    return f"{secure} with {members} {whose}; allowed: {allowed}"


def _fits(members: int, value_bound: float) -> bool:
    fixed = FixedPoint(members, value_bound)
    # Check the bits first: if they are negative, `largest_error` may overflow a float.
    has_bits = min(fixed.value_bits, fixed.square_bits) >= 0
    return has_bits and fixed.largest_error <= LARGEST_ERROR


@lru_cache
def _bits(room: int, members: int, largest: Fraction) -> int:
    """Return the most fraction bits with which the sum of `members` numbers fits into `room`.

    Each number is at most `largest`, and rounded. The arithmetic is exact, because both sides must
    get the same result, and one bit too many would let a sum overflow.
    """
    most = (Fraction(room, members) - 1) / largest
    near = most.numerator.bit_length() - most.denominator.bit_length()
    return near if Fraction(2) ** near <= most else near - 1


def unusable(q_BA: NDArray[np.floating], value_bound: float) -> str | None:
    """Return why a member may not encode these values, or None. The server cannot check them."""
    largest = float(np.abs(q_BA).max(initial=0))
    if not np.isfinite(largest):
        return "NaN or infinity"
    return None if largest <= value_bound else f"a value of {largest:g}, allowed: {value_bound:g}"
