"""What the steps of a node are asked, packed around their input."""

import msgspec
import pytest

from weft.codec import decode_plain, encode_plain, join_packed
from weft.core.model import SPEC_DECODER, Limit, RunSpec
from weft.core.published import Asked


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536])
def test_a_spec_packed_around_its_input_is_the_spec(size):
    spec = RunSpec(
        "billing.i", queue="slow", retries=3, tags={"i": "\x01"}, limits=[Limit("task:x", 2)], definition="f" * 64
    )
    input = bytes(range(256)) * (size // 256 + 1)

    opened = Asked(spec).open("s1", input[:size])

    assert SPEC_DECODER.decode(opened.packed) == msgspec.structs.replace(spec, input=input[:size])


@pytest.mark.parametrize("n", [0, 1, 15, 16, 65_535, 65_536])
def test_packed_values_are_joined_to_a_list(n):
    values = [None, 1, "é", [True], {"a": 2.5}] * (n // 5 + 1)

    assert decode_plain(join_packed([encode_plain(value) for value in values[:n]])) == values[:n]
