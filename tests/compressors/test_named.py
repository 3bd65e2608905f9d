"""Compressors by the names that people write."""

from typing import Any

import pytest

import gcsim
from gcsim.compressors.named import method_named
from gcsim.compressors.registry import REGISTRY, compressor_class


@pytest.mark.parametrize(
    ("word", "kind", "parameters"),
    [
        ("Top-K", "topk", {}),
        ("top k 1 %", "topk", {"ratio": 0.01}),
        ("TopK(0.01)", "topk", {"ratio": 0.01}),
        ("1-bit Adam", "onebit_adam", {}),
        ("one-bit SGD", "onebit_sgd", {}),
        ("DGC 0.1%", "dgc", {"ratio": 0.001}),
        ("Deep Gradient Compression", "dgc", {}),
        ("PowerSGD rank 4", "powersgd", {"rank": 4}),
        ("powersgd-2", "powersgd", {"rank": 2}),
        ("QSGD 4 bit", "qsgd", {"steps": 7}),
        ("QSGD-8bit", "qsgd", {"steps": 127}),
        ("4-bit QSGD", "qsgd", {"steps": 7}),
        ("qsgd-4", "qsgd", {"steps": 7}),
        ("1% top-k", "topk", {"ratio": 0.01}),
        ("topk(ratio=0.01)", "topk", {"ratio": 0.01}),
        ("rank-4 PowerSGD", "powersgd", {"rank": 4}),
        ("half precision", "fp16", {}),
        ("Dense", "none", {}),
        ("allreduce", "none", {}),
        ("EF-SignSGD", "ef_signsgd", {}),
        ("FetchSGD", "count_sketch", {}),
        ("post-local SGD", "torch_post_local_sgd", {}),
        ("fp16 all-reduce", "fp16", {}),
        ("Local SGD 8 steps", "local_sgd", {"interval": 8}),
        ("DiLoCo, 100 steps", "diloco", {"interval": 100}),
        ("QSGD 8 steps", "qsgd", {"steps": 8}),
        ("my_module:Mine", "my_module:Mine", {}),
    ],
)
def test_a_name_is_read(word: str, kind: str, parameters: dict[str, Any]) -> None:
    assert method_named(word) == (kind, parameters)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("1-bit", "onebit_sgd"),
        ("sign", "signsgd"),
        ("topkk", "topk"),
        ("quantization", ""),
        ("fp16 all-gather", ""),
    ],
)
def test_what_is_ambiguous_is_asked_back(word: str, hint: str) -> None:
    with pytest.raises(gcsim.InputError, match="unknown compressor") as caught:
        method_named(word)
    assert hint in str(caught.value)


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_the_title_of_a_method_is_a_name_of_it(kind: str) -> None:
    title = compressor_class(kind).about.title
    short = title.partition("(")[0].partition(",")[0].removeprefix("PyTorch ").strip()
    if short not in ("Dense float32 all-reduce", "Half-precision", "Random-k with a shared mask"):
        assert method_named(short)[0].startswith(kind)


def test_a_scenario_takes_them_and_labels_rows_by_them() -> None:
    overrides = ["compressors=[Dense, 'PowerSGD rank 4', {kind: Top-K, ratio: 2 %}]"]
    found = gcsim.load_scenario("lenet_2node", overrides).compressors
    assert [choice.kind for choice in found] == ["none", "powersgd", "topk"]
    assert [choice.label for choice in found] == ["dense", "PowerSGD rank 4", "topk"]
    assert found[1].parameters["rank"] == 4
    assert found[2].parameters["ratio"] == 0.02
    assert gcsim.ddp_hook("PowerSGD rank 4").parameters.rank == 4  # type: ignore[attr-defined]
