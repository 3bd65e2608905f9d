"""Methods that round at random keep what their properties promise, with all their options."""

import math
from typing import Any

import pytest
import torch

from gcsim.compressors.registry import check_parameters, compressor_class
from tests.compressors.shared import Team, normal

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("nuqsgd", {"zero": zero, "bits": bits}) for zero in (True, False) for bits in (2, 4, 6)),
    ("alq", {}),
    ("alq", {"symmetric": False, "distribution": "single"}),
    *(("amq", {"zero": zero}) for zero in (True, False)),
    ("linear", {}),
    ("linear", {"levels": 9, "clip": 1.0}),
    ("orq", {}),
    ("orq", {"levels": 3, "clip": 1.7}),
    ("orq", {"levels": 9, "refine": True}),
    *(("terngrad", {"clip": clip, "scalar": scalar})
      for clip in (2.5, None) for scalar in ("largest", "clip")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), OPTIONS)
def test_the_mean_and_the_error_are_those_of_the_properties(
    name: str, parameters: dict[str, Any]
) -> None:
    values, draws = normal(1200, seed=2), 300
    given = parameters if name == "terngrad" else {"bucket": 256, **parameters}
    crew = Team(name, [(1200,)], workers=1, **given)
    properties = compressor_class(name).properties(check_parameters(name, given))
    assert properties.error_bound is not None
    expected = properties.error_bound(values)
    errors = torch.stack([crew.step([values], step)[0] for step in range(draws)]).double() - values
    totals = errors.square().sum(1)
    slack = 5 * float(totals.std()) / math.sqrt(draws)  # five standard errors
    if not properties.error_is_exact:  # jumps to the highest level that were not drawn
        slack += 0.1 * expected
    assert abs(float(totals.mean()) - expected) <= slack
    # |mean error|^2 is a sum of nearly independent terms with mean expected / draws
    bias = float(errors.mean(0).square().sum()) / (expected / draws)
    assert properties.unbiased is (bias < 1.5)
