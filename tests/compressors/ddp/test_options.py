"""A method with options under DDP gives what lockstep gives, bit for bit, in processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import gcsim
from gcsim.errors import InputError
from tests.compressors.ddp.plan import (
    SOME,
    STEPS,
    carried_with_options,
    gradients,
    in_lockstep,
    layouts_of,
    planned,
    same_bits,
    start_ranks,
    steps_of,
)

COUNT = 2


@pytest.mark.parametrize(
    ("job", "kinds"),
    [("some_with_options", SOME), pytest.param("with_options", (), marks=pytest.mark.long)],
)
def test_updates_equal_those_of_lockstep(tmp_path: Path, job: str, kinds: tuple[str, ...]) -> None:
    (found,) = start_ranks(tmp_path, COUNT, job)
    given = [[gradients(step + 1, rank) for rank in range(COUNT)] for step in range(STEPS)]
    cases = carried_with_options(*kinds)
    assert len(found[0]) == len(cases) > 2 * len(kinds)
    for case, (name, parameters) in enumerate(cases):
        layouts = layouts_of(found[0][case]["buckets"])
        for step, updates in enumerate(in_lockstep(name, parameters, layouts, given)):
            for rank, expected in enumerate(updates):
                got = found[rank][case]["updates"][step + 1]
                equal = [same_bits(a, b) for a, b in zip(got, expected, strict=True)]
                assert all(equal), f"{name} {parameters}, step {step}, rank {rank}: {equal}"


def test_a_share_of_the_steps_needs_their_number(alone: None) -> None:
    with pytest.raises(InputError, match="training_steps="):
        gcsim.ddp_hook("topk", dense_steps=0.5)
    model = planned()
    hook = gcsim.ddp_hook("topk", dense_steps=0.5, training_steps=4, ratio=0.1).register(model)
    dense = [
        all(bool((part != 0).all()) for part in updates) for updates in steps_of(model, 0, 1 + 4)
    ]
    # the first is DDP's own; then two of four are dense
    assert dense == [True, True, True, False, False]
    assert hook.measured().steps == 2
    assert hook.measured().sent_bytes < 4 * sum(p.numel() for p in model.parameters()) / 3


def test_a_pattern_of_no_parameter_is_refused(alone: None) -> None:
    hook = gcsim.ddp_hook("topk", dense_tensors={"names": ["*.bias"]})
    with pytest.raises(InputError, match=r"'\*\.bias' matches no tensor of the model"):
        hook.register(planned())
