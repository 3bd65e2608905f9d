"""Two processes under DistributedDataParallel: each rank's own gradient, and one trace."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.storage.store import Trace
from tests.traces.recording.recorded_ranks import KINDS, RANKS, STEPS, batch, network

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("recorded_ranks.py")
ROOT = SCRIPT.parent.parent.parent


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each kind of job, and `stderr-RANK`: the processes start once for all."""
    folder = tmp_path_factory.mktemp("jobs")
    for kind in KINDS:
        (folder / kind).mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(RANKS)
    ]
    try:
        for rank, process in enumerate(ranks):
            _, told = process.communicate(timeout=600)
            assert process.returncode == 0, told
            (folder / f"stderr-{rank}").write_text(told)
    finally:
        for process in ranks:
            process.kill()
    return folder


def local_gradients() -> list[list[list[Tensor]]]:
    """By iteration, rank and parameter: autograd's of one process, weights moved by the mean."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for step in range(STEPS):
        of_ranks = []
        for rank in range(RANKS):
            inputs, labels = batch(rank, step)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            of_ranks.append(list(torch.autograd.grad(loss, list(model.parameters()))))
        for parameter, a, b in zip(model.parameters(), *of_ranks, strict=True):
            parameter.grad = a / RANKS + b / RANKS
        optimizer.step()
        found.append(of_ranks)
    return found


def weights(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"weights-{r}.pt", weights_only=True) for r in range(RANKS)]


@pytest.mark.parametrize("kind", ["together", "views", "apart"])
def test_each_rank_is_a_worker_with_its_gradient_from_before_the_mean(
    jobs: Path, kind: str
) -> None:
    trace = Trace.open(jobs / kind / "trace")
    assert (trace.workers, trace.iterations) == (RANKS, 3)
    expected = local_gradients()
    (layout,) = bucket_layouts(trace.parameters, first=1 << 30)
    for iteration in range(3):
        for rank in range(RANKS):
            held = trace.bucket(layout, iteration, rank).gradient
            for piece, part in layout.views(held):
                wanted = expected[iteration][rank][piece.index].flatten()
                assert torch.allclose(part, wanted, rtol=1e-5, atol=1e-7)
    # DDP's, of 0.2 MiB, after its rebuild: the last parameters first, whole layers of 361 kB
    assert trace.buckets == (("3.bias", "3.weight", "2.bias", "2.weight"), ("0.bias", "0.weight"))
    assert trace.parameters[0] == ("0.weight", (300, 40))  # not module.0.weight
    losses = trace.source["losses"]
    assert isinstance(losses, list)
    assert len(losses) == 6
    assert losses[0] != losses[1]
    assert trace.passes is not None
    assert "4 iterations of 2 ranks" in trace.passes.source
    left = sorted(path.name for path in (jobs / kind).iterdir())
    assert left == ["trace", "weights-0.pt", "weights-1.pt"]


def test_one_rank_speaks_for_all(jobs: Path) -> None:
    assert (jobs / "stderr-0").read_text().count("recorded 3 iterations, 2 workers") == 3
    assert "recorded" not in (jobs / "stderr-1").read_text()


@pytest.mark.parametrize("kind", ["together", "apart"])
def test_ranks_train_bit_identically_with_and_without_a_recording(jobs: Path, kind: str) -> None:
    one, other = weights(jobs / "alone"), weights(jobs / kind)
    for rank in range(RANKS):
        for name, value in one[rank].items():
            assert torch.equal(value, other[rank][name]), name


def test_what_goes_wrong_on_one_rank_is_told_by_all_and_leaves_nothing(jobs: Path) -> None:
    for rank in range(RANKS):
        assert "the loss is nan" in (jobs / "nan" / f"error-{rank}").read_text()
    assert not [path for path in (jobs / "nan").iterdir() if "trace" in path.name]
