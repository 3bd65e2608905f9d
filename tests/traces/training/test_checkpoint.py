"""A training that goes on from a checkpoint has the bits of one that was never stopped."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.state import CannotBeKeptError
from gcsim.errors import InputError
from gcsim.traces.training import checkpoint
from gcsim.traces.training.plan import Optimizer, Partition
from gcsim.traces.training.team import Method
from tests.traces.training.world import method, team, weights

pytestmark = pytest.mark.usefixtures("digits_read_once")

SHORT: dict[str, dict[str, Any]] = {
    "onebit_adam": {"freeze_step": 2},
    "torch_post_local_sgd": {"start": 1, "interval": 2},
    "cser": {"interval": 2},
    "cser_pl": {"interval": 2},
    "local_sgd": {"interval": 2, "inner": "adam"},
    "diloco": {"interval": 2, "fragments": 2, "values": "int8"},
}
"""So that the steps on both sides of the checkpoint are of all kinds."""


OPTIONS: dict[str, Any] = {
    "dense_steps": 2,
    "dense_tensors": {"names": ["*.bias"]},
    "payload": "fp16",
}


@pytest.mark.parametrize("kind", REGISTRY)
def test_every_method_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """And whether a step's kernels are counted makes no difference."""
    goes_on(method(kind, **SHORT.get(kind, {})), tmp_path)


def with_options(kind: str) -> dict[str, Any]:
    """Parameters with all options that mean something for the method."""
    given = dict(SHORT.get(kind, {}))
    for key, value in OPTIONS.items():
        with suppress(InputError):
            method(kind, **given, **{key: value})
            given[key] = value
    return given


def test_all_but_sign_methods_whose_updates_have_no_size_have_options() -> None:
    without = {kind for kind in REGISTRY if with_options(kind) == SHORT.get(kind, {})}
    assert without == {"none", "signsgd", "signum"}


@pytest.mark.parametrize(
    "kind", ["topk", "dgc", "qsgd", "powersgd", "onebit_adam", "thc", "cser", "local_sgd"]
)
def test_a_method_with_options_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Options keep a state of their own, which is alike for all methods."""
    goes_on(method(kind, **with_options(kind)), tmp_path)


@pytest.mark.parametrize("kind", ["topk", "local_sgd"])
def test_a_round_of_clients_goes_on_with_the_same_bits(kind: str, tmp_path: Path) -> None:
    """From the middle of a round, the second of two steps."""
    clients = Partition(clients=20, round=2, dirichlet=0.3)
    goes_on(method(kind, **SHORT.get(kind, {})), tmp_path, clients)


def goes_on(chosen: Method, tmp_path: Path, partition: Partition = Partition()) -> None:  # noqa: B008
    first, second = (team(chosen, partition=partition) for _ in range(2))
    path = tmp_path / "kept"
    for number in range(3):
        first.step(number, 0.05)
    checkpoint.write(path, {"steps": 3}, first.state())
    found = checkpoint.read(path)
    assert found is not None
    about, kept = found
    assert about == {"steps": 3}
    checkpoint.restore(second.state(), kept)
    assert torch.equal(weights(first), weights(second))
    for number in range(3, 6):
        one = first.step(number, 0.05)
        other = second.step(number, 0.05, metered=number == 4)
        assert (one.loss, one.collectives) == (other.loss, other.collectives)
        assert len(other.exchanges) == (len(second.layouts) if number == 4 else 0)
    assert torch.equal(weights(first), weights(second))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimizer_goes_on_with_the_same_bits(name: Any, tmp_path: Path) -> None:
    chosen, optimizer = method("none"), Optimizer(name=name, weight_decay=0.01)
    first, second = (team(chosen, optimizer=optimizer) for _ in range(2))
    for number in range(3):
        first.step(number, 0.01)
    checkpoint.write(tmp_path / "kept", {}, first.state())
    found = checkpoint.read(tmp_path / "kept")
    assert found is not None
    checkpoint.restore(second.state(), found[1])
    for number in range(3, 6):
        first.step(number, 0.01)
        second.step(number, 0.01)
    assert torch.equal(weights(first), weights(second))


def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    checkpoint.write(path, {}, {"tensor": torch.arange(100.0)})
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert checkpoint.read(path) is None
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    path.write_bytes(flipped)
    assert checkpoint.read(path) is None
    assert checkpoint.read(tmp_path / "nowhere") is None


@dataclass(frozen=True)
class Pair:
    one: object
    other: object


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = {
        "numbers": [1, 2.5, float("inf"), None, True, "text"],
        (1, "key"): {2: torch.tensor([1.0, -0.0])},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "scalar": np.float32(0.1),
        "dtype": torch.int64,
        "object": Pair((1, 2), torch.tensor(7)),
        "empty": torch.zeros(0),
    }
    checkpoint.write(tmp_path / "kept", {}, made)
    found = checkpoint.read(tmp_path / "kept")
    assert found is not None
    again: dict[Any, Any] = {}
    checkpoint.restore(again, found[1])
    assert str(again) == str(made)
    assert again["array"].dtype == np.int16
    assert again["scalar"] == np.float32(0.1)


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CannotBeKeptError, match="function"):
        checkpoint.write(tmp_path / "kept", {}, {"code": lambda: None})
    assert not list(tmp_path.iterdir())


def test_reading_makes_no_object_of_another_class(tmp_path: Path) -> None:
    """A file that names `subprocess.Popen`, or a class that nobody has loaded, makes neither."""
    checkpoint.write(tmp_path / "kept", {}, {"object": Pair(1, 2)})
    body = (tmp_path / "kept").read_bytes()
    path = f"{Pair.__module__}:Pair".encode()
    for other in (b"subprocess:Popen", b"no.such.module:Thing", b"builtins:eval"):
        crafted = body.partition(b"\n")[2].replace(path, other)
        length = int.from_bytes(crafted[:8], "little") + len(other) - len(path)
        crafted = length.to_bytes(8, "little") + crafted[8:]
        from gcsim.files import sealed

        (tmp_path / "crafted").write_bytes(sealed(crafted))
        found = checkpoint.read(tmp_path / "crafted")
        assert found is not None
        with pytest.raises(CannotBeKeptError):
            checkpoint.restore({}, found[1])
