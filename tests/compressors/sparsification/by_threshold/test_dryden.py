"""Dryden: the largest share of each sign, as that sign's mean."""

import numpy as np
import pytest
import torch

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import HEADER_BYTES, read_frames
from gcsim.compressors.coding.selecting.each_sign import largest_of_each_sign
from gcsim.compressors.segments import Segments
from tests.compressors.shared import Team, normal


def naive_selection(values: list[float], proportion: float) -> list[int]:
    """Indices of the largest share of each sign; ties to the lowest index."""
    found = []
    for side in (
        [i for i, x in enumerate(values) if x > 0],
        [i for i, x in enumerate(values) if x < 0],
    ):
        if side:
            k = max(1, round(proportion * len(side)))
            found += sorted(side, key=lambda i: (-abs(values[i]), i))[:k]
    return sorted(found)


@pytest.mark.parametrize("proportion", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("step", [0.25, 1e-7], ids=["ties", "distinct"])
def test_several_steps_are_those_of_the_definition(proportion: float, step: float) -> None:
    crew, n = 2, 300
    workers = Team("dryden", [(100,), (10, 20)], workers=crew, proportion=proportion)
    residuals = [torch.zeros(n) for _ in range(crew)]
    for t in range(5):
        gradients = [(normal(n, 9 * t + rank) / step).round() * step for rank in range(crew)]
        expected = torch.zeros(n)
        for rank in range(crew):
            residuals[rank] += gradients[rank]
            for part in (residuals[rank][:100], residuals[rank][100:]):
                sent = torch.zeros_like(part)
                chosen = naive_selection(part.tolist(), proportion)
                for side in (
                    [i for i in chosen if part[i] > 0],
                    [i for i in chosen if part[i] < 0],
                ):
                    if side:
                        level = np.float32(np.mean([float(part[i]) for i in side]))
                        sent[side] = float(level)
                at = 0 if part.numel() == 100 else 100
                expected[at : at + part.numel()] += sent / crew
                part.sub_(sent)
        for update in workers.step(gradients, t):
            torch.testing.assert_close(update, expected, rtol=1e-5, atol=1e-6)
        for rank, worker in enumerate(workers.workers):
            residual_of = worker.residual_of(
                Bucket(layout=workers.layout, gradient=gradients[rank])
            )
            torch.testing.assert_close(residual_of, residuals[rank], rtol=1e-5, atol=1e-6)
            residuals[rank] = residual_of  # ties are decided by the last bit


def test_hand_calculated_levels_words_and_residual() -> None:
    # half of 4 positives: 4 and 2, mean 3; half of 2 negatives: -5
    crew = Team("dryden", [(7,)], workers=1, proportion=0.5)
    gradient = torch.tensor([4.0, -1.0, 1.0, 0.0, 2.0, -5.0, 1.0])
    assert crew.step([gradient])[0].tolist() == [3.0, 0, 0, 0, 3.0, -5.0, 0]
    assert crew.workers[0].residual[0].tolist() == [1.0, -1.0, 1.0, 0.0, -1.0, 0.0, 1.0]
    (frame,) = read_frames(crew.listener.received[-1][0])
    assert frame.body[:8].clone().view(torch.float32).tolist() == [3.0, -5.0]
    assert frame.body[8:].clone().view(torch.int32).tolist() == [0, 4, 5 - 2**31]
    assert crew.sent[-1] == (HEADER_BYTES + 8 + 3 * 4,)  # 64 bits, and 32 a sent element


@pytest.mark.parametrize("kind", ["normal", "lopsided", "one sign", "heavy", "spikes", "two"])
@pytest.mark.parametrize("proportion", [0.0005, 0.01, 0.3])
def test_the_sample_does_not_change_what_is_selected(kind: str, proportion: float) -> None:
    n = 120_000  # enough for a sample
    z = normal(n, 8)
    values = {
        "normal": z,
        "lopsided": z + 2.5,
        "one sign": z.abs(),
        "heavy": z**5,
        "spikes": torch.where(torch.arange(n) % 255 == 0, 100.0 * z, z),  # all in the sample
        "two": torch.where(z > 0, 1.0, -1.0),
    }[kind]
    memory = values.clone()
    indices, found, _, _ = largest_of_each_sign(
        torch.zeros(n), Segments.alone(n), proportion, memory=memory
    )
    assert torch.equal(memory, values)
    assert indices.tolist() == naive_selection(values.tolist(), proportion)
    assert torch.equal(found, values[indices])


def test_the_error_bound_is_tight_for_equal_elements_of_a_sign() -> None:
    crew = Team("dryden", [(1000,)], workers=1, proportion=0.1)
    bound = type(crew.workers[0]).properties(crew.workers[0].parameters).error_bound
    equal = torch.where(normal(1000) > 0.5, 2.0, -1.0)
    error = float((crew.step([equal])[0] - equal).square().sum())
    assert error == pytest.approx(bound(equal), rel=1e-6)
