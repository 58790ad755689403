"""docs/secure_vectors.json has the numbers that the code computes."""

import json
from pathlib import Path

from tests.secure.vectors import NAMES, vectors

FILE = Path(__file__).parents[2] / "docs" / "secure_vectors.json"
MODULUS = 2**64


def test_the_vectors_are_those_of_the_code() -> None:
    assert json.loads(FILE.read_text()) == vectors()


def test_the_masked_words_of_the_vectors_add_up() -> None:
    """Each masked answer is the words and the masks, and the sums need no mask."""
    found = json.loads(FILE.read_text())
    masked_sums = [0] * len(found["members"][0]["masked"])
    for member in found["members"]:
        total = [int(word) for word in (*member["words"], member["check_word"])]
        for pair in found["pairs"]:
            sign = {pair["first"]: 1, pair["second"]: -1}.get(member["name"], 0)
            total = [
                (word + sign * int(mask)) % MODULUS
                for word, mask in zip(total, pair["mask"], strict=True)
            ]
        assert [str(word) for word in total] == member["masked"]
        masked_sums = [(a + b) % MODULUS for a, b in zip(masked_sums, total, strict=True)]
    assert [str(word) for word in masked_sums[:-1]] == found["sums"]
    assert [member["name"] for member in found["members"]] == sorted(NAMES)


def test_the_vectors_include_halves_that_round_to_even() -> None:
    words = json.loads(FILE.read_text())["members"][0]["words"]
    assert words[:4] == ["0", "2", "0", str(MODULUS - 2)]
