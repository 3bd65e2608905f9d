"""Memory of a worker: bytes a parameter, TorchTitan's published peaks, methods' own state."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.registry import REGISTRY, check_parameters, compressor_class
from gcsim.simulator.memory import STAGES, activations, floats, in_flight, memory, states
from gcsim.simulator.training import Strategy, Training
from gcsim.traces.models.building import build_model, sample_batch
from gcsim.traces.models.registry import MODELS, ModelEntry

GIB = 1 << 30
LLAMA = MODELS["llama3_8b"]


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [
        ({}, 16),  # ZeRO (arXiv:1910.02054, section 3.1): 4 + 4 + 8 in float32
        ({"optimizer_state": "momentum"}, 12),
        ({"optimizer_state": "none"}, 8),
        ({"precision": "fp16"}, 18),  # and copies of 2 for the products
        ({"precision": "fp16", "gradients": "bf16"}, 16),  # there: 2 + 2 + 12, mixed precision
    ],
)
def test_states_take_their_bytes_a_parameter(given: dict[str, Any], nbytes: int) -> None:
    found = list(states(1000, Training(**given)))
    assert sum(part.low for part in found) == sum(part.high for part in found) == 1000 * nbytes
    shard = sum(part.low for part in states(1000, Training(**given), 8, "zero3"))
    assert shard == 125 * (16 if nbytes == 18 else nbytes)  # copies come with what is gathered


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)]
)
def test_the_stages_of_zero_take_their_published_bytes(stage: Strategy, gigabytes: float) -> None:
    """Figure 1 of arXiv:1910.02054: 7.5 billion parameters on 64 GPUs, 12 bytes of optimizer."""
    training = Training(precision="fp16", gradients="bf16")
    found = sum(part.low for part in states(7_500_000_000, training, 64, stage))
    assert found / 1e9 == pytest.approx(gigabytes, abs=0.05)
    of_one = [sum(part.low for part in states(1000, training, 1, one)) for one in STAGES]
    assert of_one == [16_000] * len(STAGES)


def test_weights_that_stay_gathered_are_in_16_bits() -> None:
    """ZeRO's second stage as `fully_shard(reshard_after_forward=False)` with a policy of bfloat16:
    of float32 weights, gradients and Adam each worker has its part."""
    held = states(1000, Training(precision="bf16"), 8, "zero2")
    assert sum(part.low for part in held) == 2 * 1000 + (4 + 4 + 8) * 1000 / 8


def test_a_second_copy_of_the_weights_is_shared_by_the_devices_of_a_node() -> None:
    plain = Training(precision="bf16", strategy="zero3")
    held = [
        memory(LLAMA, 1, training, workers=32, device=None, devices=8)
        for training in (plain, replace(plain, secondary=True))
    ]
    assert held[0] is not None
    assert held[1] is not None
    assert held[1].low - held[0].low == pytest.approx(2 * (LLAMA.parameters or 0) / 8)


def test_a_worker_gathers_no_more_than_the_root_and_two_blocks() -> None:
    parameters, network = LLAMA.parameters, LLAMA.transformer
    assert parameters is not None
    assert network is not None
    held = {one: memory(LLAMA, 1, Training(), workers=8, device=None, stage=one) for one in STAGES}
    lows = [one.low for one in held.values() if one]
    assert lows == sorted(lows, reverse=True)
    whole, shards = held["ddp"], held["zero3"]
    assert whole is not None
    assert shards is not None
    root = 2 * network.vocabulary * network.width
    units = root + 2 * (parameters - root) / network.blocks
    assert in_flight(LLAMA) == units
    assert whole.low - shards.low == pytest.approx(16 * parameters * 7 / 8 - 4 * units)


@pytest.mark.parametrize(
    ("gpus", "fused", "published"),
    [
        # pytorch/torchtitan @b5bcd76c, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3:
        # FSDP2, with compile, with float8; two sequences of 8192, selective checkpointing
        (8, False, 82.4), (8, False, 77.0), (8, False, 76.8),
        (128, False, 67.0), (128, False, 62.0), (128, False, 61.8),
        # llama3-8b_h200_202506_trainy-whitefiber.md: the loss is compiled, too
        (32, True, 48.0), (64, True, 47.0),
    ],
)  # fmt: skip
def test_torchtitans_peaks_are_met_within_a_tenth(gpus: int, fused: bool, published: float) -> None:
    training = Training(precision="fp16", checkpointing="selective")
    network, parameters = LLAMA.transformer, LLAMA.parameters
    assert network is not None
    assert parameters is not None
    found = activations(LLAMA, 2, training)
    assert found is not None
    kept, logits = found
    # FSDP2 keeps float32 shards alone, and gathers the root unit and two blocks in 16 bits
    sharded = sum(part.low for part in states(parameters, Training(), gpus, "zero3"))
    root = 2 * network.vocabulary * network.width
    gathered = 2 * (root + 2 * (parameters - root) / network.blocks)
    total = sharded + gathered + kept.low + (logits.low if fused else logits.high)
    assert total / GIB == pytest.approx(published, rel=0.1)


def test_whole_states_of_8_billion_parameters_need_more_than_a_board_of_80_gib() -> None:
    held = memory(LLAMA, 1, Training(checkpointing="full"), workers=16, device=80 * GIB)
    assert held is not None
    assert held.fits == "no"
    assert held.low >= 16 * 8_030_261_248


def test_what_is_between_the_ends_may_fit() -> None:
    given = LLAMA, 1, Training()
    ends = memory(*given, workers=2, device=None)
    assert ends is not None
    assert ends.fits is None
    devices = (ends.low - 1, (ends.low + ends.high) / 2, ends.high)
    held = [memory(*given, workers=2, device=size) for size in devices]
    assert [each and each.fits for each in held] == ["no", "perhaps", "yes"]


@pytest.mark.parametrize("name", REGISTRY)
def test_the_state_of_each_method_is_read(name: str) -> None:
    cls = compressor_class(name)
    said = cls.memory(check_parameters(name, {}))
    said = said.replace("(n each)", "(n)").partition(";")[0]
    vectors = said.count("(n)") + said.count("(n/2)") / 2
    assert floats(cls.memory(check_parameters(name, {}))) >= vectors
    assert (floats(said) > 0) == (vectors > 0)


def test_a_methods_state_and_exchange_are_added() -> None:
    # onebit_adam: momentum, variance and error; an exchange takes six floats of the largest bucket
    assert floats("momentum, variance, error (n each), error of the owned chunk (n / workers)") == 3
    assert floats("momentum (n), error (n); server: error (n)") == 2
    assert floats("order of the groups (n/2)") == 0.5
    dense, own = (
        memory(LLAMA, 1, Training(), workers=2, device=None, dense=one, state=state, largest=1000)
        for one, state in ((True, "none"), (False, "residual (n)"))
    )
    assert dense is not None
    assert own is not None
    assert own.low - dense.low == 4 * 8_030_261_248
    assert own.high - dense.high == pytest.approx(1.1 * (4 * 8_030_261_248 + 24_000))


def saved_bytes(entry: ModelEntry) -> int:
    """Bytes in float32 that autograd keeps of a sample besides the parameters, each storage once.
    Counted by its hooks on the meta device, as the difference between batches of four and two."""
    model = build_model(entry, seed=0, device="meta")
    own = {_storage(parameter) for parameter in model.parameters()}

    def kept(batch: int) -> int:
        found: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            found.setdefault(_storage(tensor), tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(sample_batch(entry, batch, torch.device("meta")))
        del output
        others = [tensor for storage, tensor in found.items() if storage not in own]
        return sum(tensor.untyped_storage().nbytes() for tensor in others)

    return (kept(4) - kept(2)) // 2


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@pytest.mark.parametrize("name", ["resnet18", "lstm_ptb_650", "transformer_small"])
def test_saved_activations_are_those_of_autograd(name: str) -> None:
    assert MODELS[name].saved == saved_bytes(MODELS[name])
