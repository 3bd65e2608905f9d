"""The randomised Hadamard transform is the orthogonal matrix of its definition."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from gcsim.compressors.coding.rounding.rotation import LANES, STAGES, rotate
from gcsim.compressors.random import random_key
from gcsim.compressors.segments import Segments
from tests.compressors.shared import normal, split_mix


def rotation(n: int, key: np.uint64) -> NDArray[np.float64]:
    """The matrix of signs and Hadamard transforms; in Sylvester's, the sign of an element is the
    parity of the bits that i and j share."""
    matrix, first = np.zeros((n, n)), 0
    while n - first:  # whole parts, then powers of two
        length = min(LANES << STAGES, 1 << int(math.log2(n - first)))
        order = min(1 << STAGES, length)  # elements of a transform, length / order apart
        signs = [[(-1.0) ** (i & j).bit_count() for j in range(order)] for i in range(order)]
        part = slice(first, first + length)
        matrix[part, part] = np.kron(signs, np.eye(length // order)) / math.sqrt(order)
        first += length
    bits = [split_mix(int(key), i // 64) >> (i % 64) & 1 for i in range(n)]
    return matrix * np.where(bits, -1.0, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 100, 129, 2048, 3000])
def test_both_directions_are_those_of_the_definition(n: int) -> None:
    keys, scales = np.array([random_key(1, 2, 3, "signs")]), np.array([0.25])
    for back in (False, True):
        given, out = normal(n).double().numpy(), normal(n)
        rotate(out, Segments.alone(n), keys, scales, back=back)
        matrix = rotation(n, keys[0])
        expected = 0.25 * (matrix.T if back else matrix) @ given
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-6)
