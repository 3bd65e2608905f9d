"""A bucket of each kind stands for all of a network of equal blocks: the oracle is the whole
network, measured bucket by bucket at full size."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.registry import MODELS
from gcsim.traces.models.table import facts_and_parameters
from gcsim.traces.profile import TrafficProfile, holds_together, weighted
from gcsim.traces.stage1.alike import measure_alike
from gcsim.traces.stage1.measure import Subject, measure
from gcsim.traces.synthetic.fit_file import open_fits
from gcsim.traces.synthetic.gradients import SyntheticTrace

EXACT = {
    "none": {}, "fp16": {}, "powersgd": {}, "qsgd": {"steps": 7}, "thc": {}, "ef_signsgd": {},
    "onebit_adam": {}, "torch_powersgd": {"rank": 4, "start": 2},
}  # fmt: skip
"""Element-wise, by group, by tensor, and of low rank."""
NEAR = {"topk": {"ratio": 0.01}, "dgc": {"ratio": 0.01}, "terngrad": {}, "cser": {}}
"""Bytes that gradients determine, or counts that are rounded."""


def both(methods: dict[str, dict[str, Any]], blocks: int) -> list[list[TrafficProfile]]:
    """Profiles of the whole network, and by kinds of buckets."""
    entry = MODELS["gpt2_medium"]
    assert entry.transformer is not None
    network = replace(
        entry.transformer, blocks=blocks, width=256, heads=4, kv_heads=4, inner=1024,
        vocabulary=1024, positions=64, sequence=64,
    )  # fmt: skip
    facts, parameters = facts_and_parameters(replace(entry, transformer=network), 1)
    trace = SyntheticTrace(facts, parameters, open_fits(None)[0], workers=2, iterations=2, seed=0)
    layouts = bucket_layouts(parameters, first=1 << 18, cap=1 << 19)
    subjects = [
        Subject(
            kind=kind, compressor=compressor_class(kind), parameters=check_parameters(kind, given)
        )
        for kind, given in methods.items()
    ]
    return [
        run(subjects, trace, layouts, workers=2, seed=0, provenance={})
        for run in (measure, measure_alike)
    ]


def costs(profile: TrafficProfile) -> dict[tuple[str, ...], Fraction]:
    """Launches, bytes and FLOPs of a mean iteration, by stage and kernel."""
    found: defaultdict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    for weight, _, exchange in weighted(profile):
        for compute in exchange.computes:
            for cost in (*compute.fixed, *compute.per_payload, *compute.per_part):
                for what in ("launches", "nbytes", "flops"):
                    found[compute.stage, cost.kind, cost.name, what] += weight * getattr(cost, what)
    return found


@pytest.mark.parametrize("blocks", [2, pytest.param(6, marks=pytest.mark.long)])
def test_bytes_and_kernels_are_those_of_the_whole_network(blocks: int) -> None:
    for whole, alike in zip(*both(EXACT, blocks), strict=True):
        assert holds_together(alike)
        assert alike.buckets == whole.buckets
        sent = [
            [[record.sent for record in e.collectives] for _, _, e in weighted(profile)]
            for profile in (whole, alike)
        ]
        assert sent[0] == sent[1], whole.compressor
        assert costs(alike) == costs(whole), whole.compressor


def test_bytes_that_gradients_determine_are_near() -> None:
    for whole, alike in zip(*both(NEAR, 2), strict=True):
        near = 0.05 if whole.compressor == "dgc" else 1e-3  # its threshold is a sample's
        assert alike.wire_bytes(2) == pytest.approx(whole.wire_bytes(2), rel=near)
        assert alike.quality.nmse == pytest.approx(whole.quality.nmse, rel=0.2)
