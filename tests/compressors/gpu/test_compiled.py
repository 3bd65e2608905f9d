"""Every kernel that a method launches compiles for GPUs, to the arithmetic of the loops."""

import inspect
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.coding.scans import finite_part, not_finite
from gcsim.compressors.registry import REGISTRY
from tests.compressors.gpu.conftest import whole_methods, wrap_launches
from tests.compressors.gpu.test_methods import MORE, QUICK
from tests.compressors.shared import Team
from tests.process import printed

TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64",
    torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8", torch.float16: "*fp16",
}  # fmt: skip

FLUSHING = {"div.rn.ftz.f32", "cvt.rmi.ftz.f32.f32"}
"""Division and floor, which take subnormals for zero: to `levels._encode` none matters."""


@pytest.mark.long
@pytest.mark.parametrize("capability", [90])
def test_kernels_compile_and_neither_fuse_nor_approximate(
    capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fused multiply-add, no approximate division or root, nothing that flushes subnormals but
    `FLUSHING`. Atomic operations are on integers: histograms, sums modulo 2^64."""
    launches: set[str] = set()
    wrap_launches(monkeypatch, lambda run: _noting(run, launches))
    with whole_methods():
        for name, parameters in [*QUICK, *MORE, *((each, {}) for each in REGISTRY)]:
            workers = Team(name, ((30, 10),), workers=2, **parameters)
            for step in range(2 if parameters else 1):
                workers.step(torch.randn(2, 300).unbind(), step)
        for scale in (1.0, 2.0):  # the hook's own
            finite_part(torch.randn(300), scale, torch.zeros(1, dtype=torch.int64))
        not_finite(torch.randn(300).half())
    assert len(launches) > 60
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for launch in sorted(launches):  # kernels that differ in numbers alone: the first and the last
        module, kernel, types, known = json.loads(launch)
        form = {key: "" if type(value) is int else value for key, value in known.items()}
        kinds[f"{module}.{kernel}", f"{types} {form}"].append(launch)
    chosen = {launch for alike in kinds.values() for launch in (alike[0], alike[-1])}
    noted = tmp_path / "launches.json"
    noted.write_text(f"[{', '.join(sorted(chosen))}]")
    script = Path(__file__).with_name("compiling.py")
    said = printed(script, noted, capability, TRITON_INTERPRET="0")
    compiled = [json.loads(line) for line in said.splitlines()]
    assert len(compiled) == len(chosen)
    for name, instructions in compiled:
        for each in instructions:
            assert not each.startswith("fma."), name
            assert "approx" not in each, name
            assert "div.full" not in each, name
            assert ".ftz" not in each or each in FLUSHING, name
            whole = ".or." in each or name in ("_histogram", "_saturate", "_weigh", "_count_faults")
            assert not each.startswith("atom.") or whole, name


def _noting(run: Callable[..., None], launches: set[str]) -> Callable[..., None]:
    def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
        parameters = inspect.signature(kernel.fn).parameters
        types = {
            name: _type(value, str(parameters[name].annotation))
            for name, value in zip(parameters, arguments, strict=False)
        }
        known = {
            name: value if isinstance(value, (int, float)) else f"tl.{value}"
            for name, given in constants.items()
            for value in [getattr(given, "value", given)]  # of a `tl.constexpr`
        }
        launches.add(json.dumps([kernel.fn.__module__, kernel.fn.__name__, types, known]))
        run(kernel, programs, *arguments, **constants)

    return launch


def _type(value: object, annotation: str) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if annotation == "tl.uint64":
        return "u64"
    return "fp32" if isinstance(value, float) else "i32"
