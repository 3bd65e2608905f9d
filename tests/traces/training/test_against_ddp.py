"""What is trained in lockstep is what DistributedDataParallel trains with the deployed hook."""

from pathlib import Path

import pytest
import torch

from gcsim.traces.training.plan import Optimizer
from tests.compressors.ddp.gloo_order import in_gloo_ring_order
from tests.compressors.ddp.plan import same_bits
from tests.process import OVER_LOOPBACK, printed
from tests.traces.training.ddp_ranks import CAP, METHODS, MOMENTUM, RANKS, RATE, SEED, STEPS
from tests.traces.training.world import method, team, weights


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    folder = tmp_path_factory.mktemp("ranks")
    printed(Path(__file__).with_name("ddp_ranks.py"), folder, **OVER_LOOPBACK)
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
