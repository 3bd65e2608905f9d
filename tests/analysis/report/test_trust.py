"""Which methods are safe, which are left out, and why."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.analysis.report.selection import at_largest
from gcsim.analysis.report.trust import fault_of, is_safe, recorded_workers, scale_of
from gcsim.scenarios.result import Result, Row

MEMORY = "residual (n)"


@pytest.fixture
def row(result: Result) -> Row:
    """Top-k without memory: nothing is known against it."""
    return next(row for row in at_largest(result) if row.compressor == "topk")


def errors(update: np.ndarray, dense: np.ndarray) -> tuple[float, float]:
    """NMSE and cosine by their definitions."""
    nmse = np.sum((update - dense) ** 2) / np.sum(dense**2)
    cosine = np.sum(update * dense) / np.sqrt(np.sum(update**2) * np.sum(dense**2))
    return float(nmse), float(cosine)


def of(row: Row, update: np.ndarray, dense: np.ndarray) -> Row:
    nmse, cosine = errors(update, dense)
    return replace(row, nmse=nmse, cosine_similarity=cosine)


DENSE = np.random.default_rng(0).normal(size=1000)


def test_rounding_to_half_precision_is_safe_and_to_eight_bits_is_not(row: Row) -> None:
    assert is_safe(of(row, DENSE.astype(np.float16).astype(float), DENSE))
    # bfloat16: eight bits of significand are kept
    mantissa, exponent = np.frexp(DENSE)
    assert is_safe(of(row, np.ldexp(np.round(mantissa * 2**8) / 2**8, exponent), DENSE))
    step = np.abs(DENSE).max() / 127
    assert not is_safe(of(row, np.round(DENSE / step) * step, DENSE))


def test_memory_and_an_unknown_scale_are_not_safe(row: Row) -> None:
    near = replace(row, nmse=1e-8, cosine_similarity=1.0)
    assert is_safe(near)
    assert not is_safe(replace(near, memory=MEMORY))
    assert not is_safe(replace(near, nmse=None))
    assert is_safe(replace(near, compressor="none", memory=MEMORY))


@given(
    st.floats(1.0, 8.0), st.floats(0.0, 3.0), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_the_scale_is_that_of_least_squares(times: float, noise: float, seed: int) -> None:
    update = times * DENSE + noise * np.random.default_rng(seed).normal(size=len(DENSE))
    nmse, cosine = errors(update, DENSE)
    row = Row(
        compressor="x", label="x", nodes=1, workers=2, iteration_s=1.0, forward_s=1.0,
        backward_s=0.0, encode_s=0.0, communication_s=0.0, exposed_communication_s=0.0,
        decode_s=0.0, throughput_samples_per_s=1.0, speedup_vs_dense=None, scaling_efficiency=1.0,
        wire_bytes_per_worker=1.0, compression_ratio=1.0, nmse=nmse, cosine_similarity=cosine,
        steps_run=1, memory="none", period=1,
    )  # fmt: skip
    expected = float(np.sum(update * DENSE) / np.sum(DENSE**2))
    if nmse >= 1:
        assert scale_of(row) == pytest.approx(expected, rel=1e-6)
    elif nmse < 0.99:
        assert scale_of(row) is None


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("memory", ["none", MEMORY])
def test_a_sum_in_the_place_of_a_mean_is_named(row: Row, workers: int, memory: str) -> None:
    summed = replace(of(row, workers * DENSE.astype(np.float16), DENSE), memory=memory)
    assert f"{workers}.00 times the dense one: the sum over the {workers} workers" in fault_of(
        summed, workers
    )
    assert "sum" not in fault_of(summed, None)
    assert "sum" not in fault_of(summed, workers + 1)
    assert fault_of(of(row, DENSE.astype(np.float16), DENSE), workers) == ""


def test_a_method_that_sent_nothing_is_named(row: Row) -> None:
    silent = replace(row, wire_bytes_per_worker=0.0, compression_ratio=None)
    assert fault_of(silent, 2) == "it sent nothing in 4 steps"
    assert fault_of(replace(silent, workers=1), 2) == ""  # there is nobody to send to
    assert fault_of(replace(silent, compressor="none"), 2) == ""


@pytest.mark.parametrize(
    ("nmse", "cosine", "memory", "said"),
    [
        (0.99, 0.1, "none", "almost none of the gradient (cosine similarity 0.100)"),
        (0.99, 0.1, MEMORY, ""),  # the rest comes later
        (1.0, 0.001, MEMORY, "almost none"),
        (None, -0.5, MEMORY, "almost none"),
        (1.2, 0.5, "none", "a zero update would be as close (NMSE 1.20, cosine similarity 0.5"),
        (1.2, 0.5, MEMORY, ""),
        (None, 0.5, "none", ""),  # signs
        (0.8, 0.45, "none", ""),
    ],
)
def test_what_nothing_can_be_trained_with_is_left_out(
    row: Row, nmse: float | None, cosine: float, memory: str, said: str
) -> None:
    found = fault_of(replace(row, nmse=nmse, cosine_similarity=cosine, memory=memory), 2)
    assert found == said if not said else said in found


def test_the_number_of_workers_is_that_of_the_gradients(result: Result) -> None:
    assert recorded_workers(result) is None
    known = replace(result, provenance={"gradients": {"workers": 4}})
    assert recorded_workers(known) == 4
