"""Which files look like a profile and cannot be one, and what does one take in their place?"""

from __future__ import annotations

FLIGHT_RECORDER_JSON = (
    "a pickle runs code when it is loaded, so gcsim never loads one; have the training write JSON: "
    "open('fr.json', 'wb').write(torch._C._distributed_c10d._dump_nccl_trace_json()), with Gloo "
    "_dump_fr_trace_json(), or ask its worker server for dump_nccl_trace_json (torchfrtrace -j "
    "prints a table and no JSON)"
)
"""How a dump of PyTorch's flight recorder is had as JSON. Source: pytorch/pytorch, torch/csrc/
distributed/c10d/FlightRecorder.cpp, init.cpp; torch/distributed/flight_recorder (2.5 to 2.13)."""

NO_PASSES = (
    "is a dump of PyTorch's flight recorder, which says when collectives were queued, of how many "
    "bytes, and with TORCH_NCCL_ENABLE_TIMING=1 how long they took; not when forward and backward "
    "passes begin"
)
TAKE_IT_TO_LINK = (
    "gcsim calibrate link FILE reads its collectives; for passes profile the same training with "
    "torch.profiler"
)
NO_TIMES = (
    "is an execution trace of ExecutionTraceObserver, which says which operators ran, and not when"
)
LINK_IT = (
    "link it to the Kineto trace of the same steps (chakra_trace_link) and name what comes out, or "
    "name the Kineto trace itself"
)
OPERATORS = "is an execution trace, which says which operators ran and times no collective"
NAME_THE_KINETO = (
    "for a link name the Kineto trace of the same steps, with NCCL's kernels; for passes "
    "`compute: {profile: FILE}` in a scenario reads the JSON of chakra_trace_link"
)
PROTOBUF = (
    "is a Chakra trace as protobuf (.et), whose nodes have durations and no times at which they "
    "start"
)
NAME_THE_JSON = (
    "name the JSON that chakra_trace_link wrote (the input of chakra_converter), or the Kineto "
    "trace of the same steps"
)


def is_pickle(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a pickle: protocol 2 to 5, or a zip of one."""
    return head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}


def is_chakra_protobuf(head: bytes) -> bool:
    """Whether it begins with Chakra's `GlobalMetadata`, whose first attribute is the schema.

    A length stands before each message (varint), then field 1 (0x0a), its length, and field 1 of
    that, the name: mlcommons/chakra, schema/protobuf/et_def.proto.
    """
    if head[:1] in {b"{", b"["}:
        return False
    at = 0
    while at < len(head) and head[at] & 0x80 and at < 4:
        at += 1
    body = head[at + 1 :]
    return len(body) > 3 and body[0] == 0x0A and b"\x0a" in body[2:5] and b"schema" in body[:64]
