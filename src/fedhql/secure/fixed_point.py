"""Action values as whole numbers modulo 2^64, and a cohort's moments from their sums. Pure.

A member writes q and q² as whole numbers of 2^-bits. Numbers of all members are added modulo 2^64;
neither sum can pass around, since the size of the cohort and of its values is known beforehand.
"""

from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedhql.contract import Values
from fedhql.federation.moments import Moments

Words = NDArray[np.uint64]

LARGEST_ERROR = 2.0**-16  # of a sum, by the rounding of what is added
LEAST_MEMBERS = 3  # of two, each would know the other's values from the sum


@dataclass(frozen=True)
class FixedPoint:
    """How the values of one cohort are written; both sides know it from the two numbers."""

    members: int
    value_bound: float

    @property
    def value_bits(self) -> int:
        """Of the fraction of q. Sums have a sign, so they stay within 2^63 of zero."""
        return _bits(2**63, self.members, Fraction(self.value_bound))

    @property
    def square_bits(self) -> int:
        """Of the fraction of q². Sums are below 2^64."""
        return _bits(2**64, self.members, Fraction(self.value_bound) ** 2)

    @property
    def largest_error(self) -> float:
        """Of a sum: each member's number is rounded, by half a unit at most."""
        return self.members * 2.0 ** -(min(self.value_bits, self.square_bits) + 1)

    def encoded(self, q_BA: Values) -> Words:
        """-> (2, B, A): q, then q². Values have to be within the bound."""
        exact_BA = q_BA.astype(np.float64)  # twice the digits of float32: so is its square
        values_BA = np.rint(np.ldexp(exact_BA, self.value_bits)).astype(np.int64)
        squares_BA = np.rint(np.ldexp(exact_BA**2, self.square_bits)).astype(np.uint64)
        return np.stack((values_BA.view(np.uint64), squares_BA))

    def moments(self, sums_2BA: Words) -> Moments:
        """Of all members' values, from the sums modulo 2^64 of what they encoded."""
        values_BA, squares_BA = sums_2BA[0].view(np.int64), sums_2BA[1]
        mean_BA = np.ldexp(values_BA.astype(np.float64), -self.value_bits) / self.members
        mean_square_BA = np.ldexp(squares_BA.astype(np.float64), -self.square_bits) / self.members
        variance_BA = mean_square_BA - mean_BA**2
        # Two large numbers that nearly cancel: below this there is nothing but their rounding, and
        # members that agree would seem to differ.
        rounding_BA = 2.0 ** -(self.square_bits + 1) + mean_BA**2 * 2.0**-51
        variance_BA = np.where(variance_BA > rounding_BA, variance_BA, 0.0)
        return Moments(self.members, mean_BA, self.members * variance_BA)


@lru_cache
def most_members(value_bound: float) -> int:
    """So many can be added up with no larger error than `LARGEST_ERROR`; 0: not even one."""
    # How many stand before the first that does not fit.
    return bisect_left(range(1, 2**20), True, key=lambda n: not _fits(n, value_bound))


def wrong_size(members: int, value_bound: float, whose: str) -> str | None:
    """Why so many cannot be added up securely and precisely; in words for settings."""
    secure, most = "federation.secure_aggregation", most_members(value_bound)
    if most < LEAST_MEMBERS:
        bound = f"federation.secure_value_bound is {value_bound:g}"
        return f"{bound}: no room for fractions; allowed: less, for three members or more"
    if LEAST_MEMBERS <= members <= most:
        return None
    allowed = f"{LEAST_MEMBERS} to {most}, for values up to {value_bound:g}"
    return f"{secure} with {members} {whose}; allowed: {allowed}"


def _fits(members: int, value_bound: float) -> bool:
    fixed = FixedPoint(members, value_bound)
    # Whole numbers at least: the error of others may be too large even to be written down.
    whole = min(fixed.value_bits, fixed.square_bits) >= 0
    return whole and fixed.largest_error <= LARGEST_ERROR


@lru_cache
def _bits(room: int, members: int, largest: Fraction) -> int:
    """The most that keep `members` numbers up to `largest`, each rounded, within the room.

    Exact, for both sides must come to the same, and one bit too many would be one lap too many.
    """
    most = (Fraction(room, members) - 1) / largest
    near = most.numerator.bit_length() - most.denominator.bit_length()
    return near if Fraction(2) ** near <= most else near - 1


def unusable(q_BA: Values, value_bound: float) -> str | None:
    """Why a member may not encode these values: a server could not see it later."""
    largest = float(np.abs(q_BA).max(initial=0))
    if not np.isfinite(largest):
        return "NaN or infinity"
    return None if largest <= value_bound else f"a value of {largest:g}, allowed: {value_bound:g}"
