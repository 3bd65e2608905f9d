"""Synthetic gradients have the properties that their fit states, and repeat themselves exactly."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError, InternalError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.profile import Layer, ModelFacts
from gcsim.traces.synthetic.fit_file import POINTS, ModelFit, Wave
from gcsim.traces.synthetic.fit_mapping import kinds, mapped
from gcsim.traces.synthetic.gradients import SyntheticTrace
from gcsim.traces.synthetic.tensor import SyntheticTensor, unit_draws

SIDE: dict[str, Any] = {
    "scale": [1.0] * len(POINTS), "silent": [], "population": [0.3, 0.2], "family": "normal",
    "shape": 1.0, "coherence": 0.0, "offset": 0.0,
}  # fmt: skip
TENSOR: dict[str, Any] = {
    "name": "fc.weight", "shape": [48, 64], "kind": "linear", "depth": 0.0, "rms": 0.5,
    "common": 0.4, "scatter": 0.0, "spectrum": [0.5, 0.3, 0.1], "aligned": 0.0, "rows": SIDE,
    "columns": SIDE,
}  # fmt: skip


def model(tensors: Sequence[dict[str, Any]] = (TENSOR,), **changed: Any) -> ModelFit:
    values = {
        "model": "small", "samples_per_worker": 8, "workers": 2, "iterations": 2, "recording": {},
        "scatter": 0.0, "levels": [], "waves": [], "tensors": list(tensors), **changed,
    }  # fmt: skip
    return ModelFit.model_validate(values)


def tensor(fit: ModelFit, seed: int = 0) -> SyntheticTensor:
    first = fit.tensors[0]
    return SyntheticTensor(first, fit, first.shape, index=0, seed=seed)


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float((a * b).sum() / math.sqrt((a**2).sum() * (b**2).sum()))


def test_a_gradient_is_a_function_of_its_key() -> None:
    fit = model()
    once = tensor(fit).draw(3, 1)
    other = tensor(fit)
    other.draw(0, 0)  # no state is kept between draws
    assert np.array_equal(other.draw(3, 1), once)
    assert once.dtype == np.float32
    for iteration, worker, seed in ((3, 0, 0), (2, 1, 0), (3, 1, 1)):
        assert abs(cosine(tensor(fit, seed).draw(iteration, worker), once)) < 0.9


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    common=st.floats(0, 0.95),
    rms=st.floats(1e-6, 1e3),
)
def test_the_scale_is_that_of_the_fit_whatever_the_size(
    rows: int, columns: int, common: float, rms: float
) -> None:
    """With rank-one terms of unit vectors the mean square differs by cross terms alone."""
    fit = model([{**TENSOR, "common": common, "rms": rms, "aligned": 0.0}])
    made = SyntheticTensor(fit.tensors[0], fit, (rows, columns), index=0, seed=0)
    squares = [np.mean(made.draw(t, w).astype(float) ** 2) for t in range(6) for w in range(4)]
    assert made.draw(0, 0).shape == (rows, columns)
    if min(rows, columns) > 8:
        assert math.sqrt(np.mean(squares)) == pytest.approx(rms, rel=0.35)


def test_workers_have_the_common_share_in_common() -> None:
    """E<g, g'> / E|g|^2 of two workers is `common`, over seeds, by definition."""
    for share in (0.0, 0.3, 0.8):
        fit = model([{**TENSOR, "common": share}])
        found = [
            cosine(tensor(fit, seed).draw(0, 0), tensor(fit, seed).draw(0, 1))
            for seed in range(200)
        ]
        assert np.mean(found) == pytest.approx(share, abs=0.07)


@pytest.mark.parametrize("waves", [[], [(0.0, 1.0)], [(math.pi / 2, 0.6), (0.0, 0.4)]])
def test_the_common_part_turns_as_its_waves_say(waves: list[tuple[float, float]]) -> None:
    """Correlation after l iterations: sum of share cos(l frequency); what is new adds nothing."""
    made = [Wave(frequency=f, share=s) for f, s in waves]
    fit = model([{**TENSOR, "common": 0.999}], waves=[wave.model_dump() for wave in made])
    for lag in (1, 2):
        found = [
            cosine(tensor(fit, seed).draw(0, 0), tensor(fit, seed).draw(lag, 0))
            for seed in range(150)
        ]
        # a tenth of the energy is noise without structure, which is new each time
        expected = 0.9 * sum(wave.share * math.cos(lag * wave.frequency) for wave in made)
        assert np.mean(found) == pytest.approx(expected, abs=0.08)


def test_the_spectrum_is_that_of_the_fit_without_a_common_part() -> None:
    """Vectors of 400 entries from fresh draws are nearly orthogonal: energies are eigenvalues."""
    fresh = {**SIDE, "population": []}
    shape = [400, 400]
    fit = model([{**TENSOR, "shape": shape, "common": 0.0, "rows": fresh, "columns": fresh}])
    values = np.linalg.svd(tensor(fit).draw(0, 0).astype(float), compute_uv=False) ** 2
    shares = values / values.sum()
    assert shares[:3] == pytest.approx([0.5, 0.3, 0.1], abs=0.02)
    assert shares[3] < 0.01  # the rest, 0.1, is spread over all directions


def test_scales_of_rows_and_exact_zeros_are_kept() -> None:
    scale = [0.0] * 6 + [1.0] * (len(POINTS) - 6)  # POINTS[5] = 0.4, POINTS[6] = 0.5
    silent = [0.0] * 6 + [0.5] * (len(POINTS) - 6)
    rows = {**SIDE, "scale": scale, "silent": silent}
    fit = model([{**TENSOR, "shape": [1000, 20], "rows": rows, "spectrum": [0.6, 0.4]}])
    drawn = [tensor(fit).draw(t, 0) for t in range(20)]
    zero = np.mean([(gradient == 0).all(1) for gradient in drawn], 0)
    assert np.mean(zero == 1) == pytest.approx(0.4, abs=0.02)  # never used
    assert np.mean(zero[zero < 1]) == pytest.approx(0.5 * 0.55 / 0.6, abs=0.05)


def test_lengths_scatter_for_all_tensors_alike() -> None:
    """A scatter of the model moves all tensors by one factor; its mean square is 1."""
    tensors = [{**TENSOR, "name": name} for name in ("a", "b")]
    fit = model(tensors, scatter=0.6)
    facts = ModelFacts(
        name="small", parameters=2 * 48 * 64, samples_per_worker=8,
        layers=(Layer(name="a", parameters=(0, 1), forward_flops=1),),
    )  # fmt: skip
    trace = SyntheticTrace(
        facts, [("a", (48, 64)), ("b", (48, 64))], [fit], workers=300, iterations=1, seed=0
    )
    (layout,) = bucket_layouts(trace.parameters)
    lengths = torch.stack(
        [
            torch.stack(
                [part.norm() for _, part in layout.views(trace.bucket(layout, 0, w).gradient)]
            )
            for w in range(300)
        ]
    )
    logarithms = lengths.log()
    assert float(logarithms.std(0).mean()) == pytest.approx(0.6, abs=0.08)
    assert float(torch.corrcoef(logarithms.T)[0, 1]) > 0.95
    mean_square = float(lengths.square().mean()) / (48 * 64)
    assert mean_square == pytest.approx(0.25, rel=0.35)


@pytest.mark.parametrize(
    ("family", "shape", "kurtosis"),
    # fourth moments of unit variance: 3; 6; Gamma(5/b) Gamma(1/b) / Gamma(3/b)^2; 3 + 6/(v - 4)
    [("normal", 1.0, 3.0), ("laplace", 1.0, 6.0), ("generalized_normal", 2.0, 3.0),
     ("generalized_normal", 1.0, 6.0), ("student_t", 12.0, 3.75)],
)  # fmt: skip
def test_families_have_their_moments(family: str, shape: float, kurtosis: float) -> None:
    fit = model([{**TENSOR, "rows": {**SIDE, "family": family, "shape": shape}}]).tensors[0].rows
    drawn = unit_draws(np.random.default_rng(0), fit, (400, 1000)).astype(float)
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert (drawn**2).mean() == pytest.approx(1, rel=0.02)
    assert (drawn**4).mean() == pytest.approx(kurtosis, rel=0.06)


def test_buckets_are_cut_from_the_same_numbers() -> None:
    """One large bucket and many small ones hold the same gradients."""
    parameters = [("a.weight", (6, 5, 3, 3)), ("a.bias", (6,)), ("b.weight", (4, 54))]
    facts = ModelFacts(
        name="mine", parameters=492, samples_per_worker=8,
        layers=(Layer(name="a", parameters=(0, 1, 2), forward_flops=1),),
    )  # fmt: skip
    trace = SyntheticTrace(facts, parameters, [model()], workers=2, iterations=2, seed=0)
    together: dict[str, torch.Tensor] = {}
    for cap in (1, 10**6):
        for layout in bucket_layouts(parameters, first=cap, cap=cap):
            for piece, part in layout.views(trace.bucket(layout, 1, 1).gradient):
                assert torch.equal(together.setdefault(piece.name, part), part)
    with pytest.raises(InternalError):
        trace.bucket(bucket_layouts(parameters)[0], 0, 0, second_moments=True)


# --- which tensor is drawn from which ------------------------------------------------------------


def test_kinds_are_told_by_shape_name_and_neighbour() -> None:
    parameters = [
        ("conv.weight", (8, 3, 3, 3)), ("conv.bias", (8,)), ("bn.weight", (8,)), ("bn.bias", (8,)),
        ("wte.weight", (50, 8)), ("fc.weight", (4, 8)), ("scale", (8,)),
    ]  # fmt: skip
    assert kinds(parameters) == [
        "convolution", "bias", "scale", "shift", "embedding", "linear", "scale",
    ]  # fmt: skip


def test_own_tensors_are_taken_by_name_and_others_by_kind_and_size() -> None:
    fit = model(
        [
            TENSOR,
            {**TENSOR, "name": "big.weight", "shape": [500, 600], "rms": 0.01},
            {**TENSOR, "name": "fc.bias", "shape": [48], "kind": "bias"},
        ]
    )
    own = mapped([fit], "small", [("fc.weight", (48, 64)), ("new.bias", (7,))], 8)
    assert [each.fit.name for each in own] == ["fc.weight", "fc.bias"]
    assert [each.exact for each in own] == [True, False]
    assert own[0].rms == fit.tensors[0].rms
    other = mapped([fit], "mine", [("fc.weight", (400, 640)), ("x.weight", (40, 60))], 8)
    assert [each.fit.name for each in other] == ["big.weight", "fc.weight"]
    assert not any(each.exact for each in other)


def test_a_larger_batch_has_less_noise_and_the_same_common_part() -> None:
    fit = model()
    (as_fitted,) = mapped([fit], "small", [("fc.weight", (48, 64))], 8)
    (larger,) = mapped([fit], "small", [("fc.weight", (48, 64))], 32)
    assert larger.common * larger.rms**2 == pytest.approx(as_fitted.common * as_fitted.rms**2)
    noise = (1 - as_fitted.common) * as_fitted.rms**2
    assert (1 - larger.common) * larger.rms**2 == pytest.approx(noise / 4)


def test_a_fit_of_this_very_model_with_other_tensors_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        mapped([model()], "small", [("fc.weight", (48, 63))], 8)
    assert "has shape [48, 63]; in the fit of 'small' it has [48, 64]" in str(caught.value)
    with pytest.raises(InputError, match="has no tensor of the fit of 'small'"):
        mapped([model()], "small", [("other", (48, 64))], 8)
