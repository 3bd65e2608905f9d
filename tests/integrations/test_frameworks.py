"""Trainers of Hugging Face and Lightning record gradients and train with compressors: on the CPU,
two processes over Gloo for the hook. `make integrations` has the packages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from gcsim.api import run
from gcsim.scenarios.load import load_scenario
from gcsim.traces.storage.store import Trace
from tests.process import printed

HERE = Path(__file__).parent
FRAMEWORKS = ("huggingface", "lightning")
STEPS = 12
Outcome = dict[str, Any]
SCENARIO = """
model: recorded
gradients: {{source: recorded, trace: {trace}}}
compute: {{recorded: true}}
batch_size: 4
cluster: {{nodes: [2, 4], device: v100, network: 10gbe}}
training: {{accumulation: 2}}
compressors: [none, fp16, {{kind: topk, ratio: 0.01}}]
"""


def loops(framework: str, folder: Path, processes: int, *jobs: str) -> Mapping[str, list[Outcome]]:
    """What each rank made of each job."""
    command: list[object] = [HERE / f"{framework}_loop.py", folder]
    if framework != "huggingface":
        command.append(processes)
    elif processes > 1:
        command[:0] = ["-m", "torch.distributed.run", "--nproc-per-node", processes]
    printed(*command, *jobs, GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1", PYTHONWARNINGS="")
    return {
        job: [torch.load(folder / f"{job}.{rank}.pt") for rank in range(processes)] for job in jobs
    }


def same(one: Outcome, other: Outcome) -> bool:
    pairs = zip(one["weights"].values(), other["weights"].values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_recording_changes_nothing_and_gcsim_runs_on_it(framework: str, tmp_path: Path) -> None:
    found = loops(framework, tmp_path, 1, "plain", "record", "record and stop")
    (plain,), (recorded,), (stopped,) = found.values()
    assert plain["steps"] == recorded["steps"] == STEPS
    assert same(plain, recorded)
    assert stopped["steps"] == 4 + 2  # iterations, and those that are timed
    trace = Trace.open(tmp_path / "record")
    assert trace.iterations == 4
    assert trace.workers == 1
    scenario = tmp_path / "recorded.yaml"
    scenario.write_text(SCENARIO.format(trace=tmp_path / "record"))
    result = run(load_scenario(scenario), cache=False)
    numbers = sum(one.numel() for one in plain["weights"].values())
    dense = next(row for row in result.rows if row.compressor == "none" and row.nodes == 4)
    assert dense.wire_bytes_per_worker == 4 * numbers
    assert dense.forward_s > 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_of_two_processes_travel_as_the_compressor_has_it(
    framework: str, tmp_path: Path
) -> None:
    found = loops(framework, tmp_path, 2, "plain", "none", "topk", "record")
    for job, (first, second) in found.items():
        assert same(first, second), job  # replicas stay equal
        assert first["steps"] == STEPS
    plain, dense, sparse = (found[job][0] for job in ("plain", "none", "topk"))
    # the first iteration is exchanged uncompressed; steps count from 0
    assert dense["compressed"] == sparse["compressed"] == STEPS - 2
    for name, weights in plain["weights"].items():
        torch.testing.assert_close(dense["weights"][name], weights, rtol=1e-4, atol=1e-6)
    assert not same(plain, sparse)
    assert same(plain, found["record"][0])
    assert Trace.open(tmp_path / "record").workers == 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_training_that_raises_leaves_no_recording(framework: str, tmp_path: Path) -> None:
    """Two that raise after two steps, and then one that is recorded."""
    found = loops(framework, tmp_path, 1, "record fails", "record twice")
    assert found["record fails"] == [{"left": [], "hooks": 0}]
    assert Trace.open(tmp_path / "record twice").iterations == 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_second_training_is_exchanged_too(framework: str, tmp_path: Path) -> None:
    found = loops(framework, tmp_path, 2, "none twice", "topk twice")
    for job, (first, second) in found.items():
        assert same(first, second), job  # replicas stay equal
    # Hugging Face keeps the wrapped model, and the hook goes on; Lightning wraps it anew, and the
    # first iteration of each training is exchanged uncompressed
    steps = 2 * STEPS - 2 if framework == "huggingface" else STEPS - 2
    assert found["topk twice"][0]["compressed"] == steps
    assert not same(found["none twice"][0], found["topk twice"][0])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_no_ddp_model_is_refused(framework: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is not a DistributedDataParallel model"):
        loops(framework, tmp_path, 1, "topk")
