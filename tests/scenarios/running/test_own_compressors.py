"""A run believes a compressor of the user's only where it could run on a cluster."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.run import run
from gcsim.scenarios.trained.study import train
from tests.scenarios.files import load

SCENARIO = """
model: lenet
batch_size: 4
cluster: {nodes: 2, devices_per_node: 1, device: v100, network: 1gbe}
gradients: {source: synthetic, workers: 2, iterations: 2}
uncertainty: {draws: 0}
compressors: [none, {kind: 'own_one:Mine'}]
"""
TRAIN = "train: {task: digits, workers: 2, steps: 2, evaluate_every: 1, target: {accuracy: 0.01}}"
HEAD = """
import torch
from gcsim.compressors.base import About, Compressor
from gcsim.compressors.requests import AllGather, AllReduce
SHARED = {}
class Mine(Compressor):
    about = About(
        family="mine", title="Mine", collective="all-reduce", bits="32", state="none", paper="none"
    )
    def exchange(self, bucket, step):
        gradient, rank, count = bucket.gradient, self.worker.rank, self.worker.count
"""
HONEST = """
        total = yield AllReduce(tensor=gradient.clone())
        return total / count
"""
BODIES = {
    **{
        f"a {kind} of a {name} tensor": (
            f"""
        yield {kind}({argument}={made})
        return torch.zeros_like(gradient)
""",
            f"{kind} of a",
        )
        for kind, argument in (("AllReduce", "tensor"), ("AllGather", "payload"))
        for name, made in (
            ("sparse", "gradient.to_sparse()"),
            ("compressed sparse", "gradient.reshape(1, -1).to_sparse_csr()"),
            ("meta", "gradient.to('meta')"),
        )
    },
    "a variable of the module that is overwritten": (
        """
        SHARED[rank] = gradient
        yield AllGather(payload=torch.zeros(1, dtype=torch.uint8))
        return sum(SHARED[each] for each in range(count)) / count
""",
        "depends on more than the replies",
    ),
    "a variable by bucket and step": (
        """
        SHARED.setdefault((bucket.layout.index, step), {})[rank] = gradient
        yield AllGather(payload=torch.zeros(1, dtype=torch.uint8))
        return sum(SHARED[bucket.layout.index, step][each] for each in range(count)) / count
""",
        "depends on more than the replies",
    ),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path / "own_one.py"
    sys.modules.pop("own_one", None)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("case", BODIES)
def test_a_mistake_is_the_users_and_names_the_file(own: Path, case: str) -> None:
    body, message = BODIES[case]
    own.write_text(HEAD + body)
    with pytest.raises(InputError, match=message) as caught:
        run(load(own.parent, SCENARIO))
    assert str(own) in str(caught.value)


@pytest.mark.parametrize("case", [name for name in BODIES if "variable" in name])
def test_a_side_channel_is_found_before_anything_is_trained(own: Path, case: str) -> None:
    own.write_text(HEAD + BODIES[case][0])
    scenario = load(own.parent, SCENARIO + TRAIN)
    with pytest.raises(InputError, match=r"own_one.py:\d+: .* depends on more than the replies"):
        train(scenario)
    assert not list(own.parent.glob("cache/trajectories/*"))


def test_a_compressor_that_uses_collectives_alone_is_believed(own: Path) -> None:
    own.write_text(HEAD + HONEST)
    dense, mine = run(load(own.parent, SCENARIO)).rows
    assert mine.wire_bytes_per_worker == dense.wire_bytes_per_worker
    assert mine.nmse == 0
