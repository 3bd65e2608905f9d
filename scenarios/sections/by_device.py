"""Defaults of a cluster that follow from its device: the transport and the bus of a node.

PyTorch's documentation names the transport: NCCL between GPUs, Gloo between CPUs
(https://docs.pytorch.org/docs/stable/distributed.html, "Which backend to use?").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcsim.simulator.cluster import TransportName
from gcsim.simulator.devices.device import Device


def usual_transport(device: Device) -> TransportName:
    """Return the transport of a scenario that states none."""
    return "gloo" if device.processor == "cpu" else "nccl"


def usual_bus(device: Device) -> str:
    """Return the link between ranks on a CPU, or the bus of most GPUs."""
    return "host_memory" if device.processor == "cpu" else "pcie3_x16"


def fill_in(cluster: dict[str, Any], device: Device) -> None:
    """State the transport, and which bus the figures of an incomplete `intra_node` change."""
    if cluster.get("collectives") is None:
        cluster["collectives"] = {}
    collectives, bus = cluster["collectives"], cluster.get("intra_node")
    if isinstance(collectives, dict) and collectives.get("transport") is None:
        collectives["transport"] = usual_transport(device)
    if isinstance(bus, Mapping) and "like" not in bus:
        whole = "latency" in bus and {"bandwidth", "trace"} & {*bus}
        if not whole:
            cluster["intra_node"] = {"like": usual_bus(device), **bus}
