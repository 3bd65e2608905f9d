"""What is trained in lockstep is what DistributedDataParallel trains with the deployed hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gcsim.traces.training.plan import Optimizer
from tests.compressors.ddp.gloo_order import in_gloo_ring_order
from tests.compressors.ddp.plan import same_bits
from tests.traces.training.ddp_ranks import CAP, METHODS, MOMENTUM, RANKS, RATE, SEED, STEPS
from tests.traces.training.world import method, team, weights

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("ddp_ranks.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=900,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return found


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(METHODS)), ids=[kind for kind, _ in METHODS])
def test_weights_are_those_of_real_ddp_after_20_steps(
    number: int, real: list[torch.Tensor]
) -> None:
    """Four Gloo processes, momentum SGD, two buckets; the weights bit for bit, with a pass for each
    worker. Both add up in the order of Gloo's ring."""
    kind, parameters = METHODS[number]
    of = team(
        method(kind, **parameters), workers=RANKS, limits=(CAP, CAP), seed=SEED,
        optimizer=Optimizer(momentum=MOMENTUM), reduction=in_gloo_ring_order,
        at_once=False,
    )  # fmt: skip
    assert len(of.layouts) == 2
    for step in range(STEPS):
        of.step(step, RATE)
    found = torch.cat([view.flatten() for view in of._cut(weights(of)[0])])
    assert same_bits(found, real[number])
