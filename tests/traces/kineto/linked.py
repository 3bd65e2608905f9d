"""A trace of PyTorch's ExecutionTraceObserver, and what chakra_trace_link makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from gcsim.traces.models.building import build_model
from gcsim.traces.models.registry import shipped_model
from tests.traces.kineto.test_passes import Parameters, parameters_of


def observed(folder: Path, name: str) -> Parameters:
    """Write `et.json` and `kineto.json` of the same four steps of a shipped model."""
    entry = shipped_model(name)
    model = build_model(entry, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(4, *entry.input_shape), torch.randint(0, entry.classes, (4,))
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer
    ) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    profiler.export_chrome_trace(str(folder / "kineto.json"))
    return parameters_of(model)


def link(trace: dict[str, Any], kineto: dict[str, Any]) -> dict[str, Any]:
    """As mlcommons/chakra's trace_linker.py does it, of the host's operators.

    A node and an event belong together by the number of the record function.
    """
    events = {
        event["args"]["Record function id"]: event
        for event in kineto["traceEvents"]
        if "Record function id" in event.get("args", {})
    }
    for node in trace["nodes"]:
        number = next(one["value"] for one in node["attrs"] if one["name"] == "rf_id")
        event = events.get(number)
        if event is not None and number:
            node.update(
                inclusive_dur=event["dur"], exclusive_dur=event["dur"], ts=event["ts"],
                inter_thread_dep=None,
            )  # fmt: skip
    return trace


def linked(folder: Path, name: str) -> Parameters:
    """`observed`, and `linked.json`."""
    parameters = observed(folder, name)
    trace, kineto = (json.loads((folder / f).read_text()) for f in ("et.json", "kineto.json"))
    (folder / "linked.json").write_text(json.dumps(link(trace, kineto), indent=4))
    return parameters


def gpu_trace() -> tuple[dict[str, Any], Parameters]:
    """Of one parameter, with kernels as the linker leaves them: `ts` is the end of their launch.

    The host calls forward at 10 us, backward at 30, and its last gradient ends at 44; the kernels
    take 100, 200 and 50 us, so that the stream is busy from 12 to 362.
    """

    def node(number: int, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
        given = {"seq_id": -1, "scope": 0, "fw_parent": 0} | more.pop("given", {})
        return {
            "id": number, "name": name, "ctrl_deps": 1, "inclusive_dur": dur, "exclusive_dur": dur,
            "ts": ts, "inputs": {"values": [], "shapes": more.pop("shapes", []), "types": []},
            "outputs": {"values": [], "shapes": [], "types": []},
            "attrs": [{"name": key, "type": "int64", "value": v} for key, v in given.items()],
            **more,
        }  # fmt: skip

    def kernel(number: int, name: str, ts: float, dur: float) -> dict[str, Any]:
        return node(number, name, ts, dur, cat="kernel", ph="X", stream=7)

    nodes = [
        node(2, "ProfilerStep#0", 0, 400),
        node(3, "aten::linear", 10, 5, given={"seq_id": 0}, shapes=[[4, 3], [2, 3]]),
        node(4, "autograd::engine::evaluate_function: AddmmBackward0", 30, 6),
        node(5, "torch::autograd::AccumulateGrad", 40, 4, given={"scope": 1}, shapes=[[2, 3]]),
        node(6, "Optimizer.step#SGD.step", 60, 10),
        kernel(7, "gemm", 12, 100),
        kernel(8, "gemm_backward", 33, 200),
        kernel(9, "sgd", 62, 50),
    ]
    return {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}, [("weight", (2, 3))]
