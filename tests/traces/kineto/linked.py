"""A trace of PyTorch's ExecutionTraceObserver, and what chakra_trace_link makes of it."""

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


def of_gpu(kineto: dict[str, Any]) -> dict[str, Any]:
    """An execution trace of a GPU's Kineto trace, as trace_linker.py leaves it.

    The host's events are nodes, and so is each kernel, with the end of its launch as `ts`
    (`get_start_timestamp_for_gpu_op`).
    """
    launches: dict[int, float] = {}
    nodes: list[dict[str, Any]] = []

    def add(event: dict[str, Any], ts: float, **more: Any) -> None:
        dims, sequence = event.get("args", {}).get("Input Dims", []), more.pop("seq_id", -1)
        given = {"seq_id": sequence, "scope": 0, "fw_parent": 0}
        dur = event.get("dur", 0)
        nodes.append({
            "id": len(nodes), "name": event["name"], "ctrl_deps": 1, "inclusive_dur": dur,
            "exclusive_dur": dur, "ts": ts, "inputs": {"values": [], "shapes": dims, "types": []},
            "outputs": {"values": [], "shapes": [], "types": []},
            "attrs": [{"name": key, "type": "int64", "value": v} for key, v in given.items()],
            **more,
        })  # fmt: skip

    for number, event in enumerate(kineto["traceEvents"]):
        kind, number_of_launch = event.get("cat"), event.get("args", {}).get("correlation")
        if kind == "cuda_runtime":
            launches[number_of_launch] = event["ts"] + event["dur"]
        elif kind == "kernel":
            stream = event["args"]["stream"]
            add(event, launches[number_of_launch], cat=kind, ph="X", stream=stream)
        elif kind == "fwdbwd":
            add(event | {"name": "aten::linear"}, event["ts"], seq_id=number)
        elif kind not in {"ac2g", "gpu_user_annotation"}:
            add(event, event["ts"])
    return {"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": nodes}
