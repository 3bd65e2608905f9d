"""Layouts of files that people hand to `calibrate link`, and how files arrive.

Each layout has the form in which a program writes it, with figures of its own, and says which
format reads it or, where none can, which reason is given. The forms are those of nccl-tests (2019
to 2.18), Gloo's benchmark, iperf3 (3.1 to 3.18), ping (iputils, BusyBox), DeepSpeed, Horovod,
PyTorch (profiler, flight recorder, execution trace) and of programs that gcsim does not read.
"""

import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "analysis" / "calibration" / "data"


@dataclass(frozen=True, slots=True)
class Layout:
    """A file, and what is said of it."""

    content: str | bytes
    of: str = ""
    """The format that reads it; empty: it is refused."""
    said: str = ""
    """In the refusal."""


def _each(before: str, after: str = "") -> Callable[[str], str]:
    return lambda text: "".join(f"{before}{line}{after}\n" for line in text.splitlines())


def _other_ranks(text: str) -> str:
    lines = [f" 0: {line}" for line in text.splitlines()]
    lines[2:2] = [" 7: ready", "11: NCCL INFO Using network Socket", "10:"]
    return "\n".join(lines)


def _stamped(text: str) -> str:
    return "".join(
        f"2026-03-04T10:{number // 60:02}:{number % 60:02}.{number * 7 + 1:09}Z {line}\n"
        for number, line in enumerate(text.splitlines())
    )


MOVED = ("srun -l, others between", "a block")
"""Arrivals with lines of their own."""
ARRIVALS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "srun -l": _each("0: "),
    MOVED[0]: _other_ranks,
    "Open MPI 4": _each("[1,0]<stdout>:"),
    "Open MPI 5": _each("[prterun-node-0-31337@1,0]<stdout>: "),
    "kubectl --timestamps": _stamped,
    "kubectl --prefix": _each("[pod/bench-launcher-x7k2p/main] "),
    "docker compose": _each("worker-0  | "),
    "torchrun": _each("[default0]:"),
    "mpirun -l": _each("[0] "),
    "a quote": _each("> "),
    "a quote of a quote": _each("> > "),
    "an indent": _each("    "),
    "a tab": _each("\t"),
    MOVED[1]: lambda text: f"I measured this today.\n\n```\n{text}```\n",
    "colours": _each("\x1b[0;32m", "\x1b[0m\x1b[K"),
    "colours behind a prefix": _each("\x1b[36m0:\x1b[0m "),
    "Windows": lambda text: text.replace("\n", "\r\n"),
}


# --- nccl-tests ----------------------------------------------------------------------------------


def _nccl(
    program: str = "all_reduce_perf",
    *,
    ranks: int = 4,
    each: int = 2,
    old: bool = False,
    wrong: str = "0",
    verdict: str = "0 OK",
    in_place: bool = True,
    between: str = "",
) -> str:
    reduces = "reduce" in program
    kind = "float" if old else "float     sum" if reduces else "float    none"
    measured = "time algbw busbw error" if old else "time algbw busbw #wrong"
    titles = f"size count type {'' if old else 'redop root'} {measured} {'' if old else measured}"
    lines = [
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 65536 maxBytes 67108864 step: 8(factor) warmup iters: 5",
        "#", "# Using devices",
        *(
            f"#  Rank {rank:2} {'' if old else 'Group  0 '}Pid {900 + rank} on node-{rank // each} "
            f"device {rank % each} [0x{rank:02x}] Tesla V100-SXM2-16GB"
            for rank in range(ranks)
        ),
        "#       " + "  ".join(titles.split()),
        "#        (B)    (elements)                (us)  (GB/s)  (GB/s)            (us)  (GB/s)",
    ]  # fmt: skip
    for number, size in enumerate((65536, 524288, 4194304, 33554432)):
        time = 30 + size / 9e3
        rate = size / time / 1e3
        row = f"{size:12} {size // 4:12} {kind}{'' if old else '      -1'} {time:9.2f} {rate:6.2f}"
        last = "1e-06" if old else wrong if number == 2 else "0"
        again = f" {time:9.2f} {rate:6.2f} {rate:6.2f} {last:>6}" if in_place else "      N/A" * 4
        lines += [f"{row} {rate:6.2f} {last:>6}{again}", *([between] if between else [])]
    return "\n".join([*lines, f"# Out of bounds values : {verdict}", "# Avg bus bandwidth : 9", ""])


_NCCL = {
    "all-reduce": Layout(_nccl(), "nccl-tests"),
    "all-gather": Layout(_nccl("all_gather_perf"), "nccl-tests"),
    "reduce-scatter": Layout(_nccl("reduce_scatter_perf"), "nccl-tests"),
    "all-to-all": Layout(_nccl("alltoall_perf"), "nccl-tests"),
    "of 2019": Layout(_nccl(old=True), "nccl-tests"),
    "unchecked": Layout(_nccl(wrong="N/A"), "nccl-tests"),
    "out of place alone": Layout(_nccl(in_place=False), "nccl-tests"),
    "two runs": Layout(_nccl() + _nccl("all_gather_perf"), "nccl-tests"),
    "NCCL's log between": Layout(
        _nccl(between="node-0:900:911 [0] NCCL INFO Channel 00/02 : 0 1 2 3"), "nccl-tests"
    ),
    "wrong values": Layout(_nccl(wrong="16", verdict="16 FAILED"), said="#wrong is 16"),
    "failed, of 2019": Layout(_nccl(old=True, verdict="16 FAILED"), said="values are out of"),
    "a broadcast": Layout(_nccl("broadcast_perf"), said="is not a collective that gcsim simulates"),
    "one rank": Layout(_nccl(ranks=1, each=1), said="one rank alone sends nothing"),
    "without MPI": Layout(_nccl().replace("Rank  3", "Rank  0"), said="have the same rank"),
    "no ranks": Layout(_nccl().replace("Rank", "Node"), said="the number of ranks is missing"),
    "cut off": Layout(_nccl()[:-180], said="the line is cut off"),
    "no table": Layout(_nccl().partition("#       size")[0], said="has no line with a size"),
}


# --- text of others ------------------------------------------------------------------------------

_GLOO = """\
Device:      tcp, pci=0000:3b:00.0, iface=eth0, speed=25000, addr=[10.1.0.4]
Algorithm:   new_allreduce_ring
Options:     processes=2, inputs=1, threads=1

   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples
       1000         51         60         90        140        0.062        900
     100000        210        240        330        510        1.552        900
   10000000      16100      17400      21000      25000        2.140        200
"""
_IPERF3 = """\
Connecting to host 10.1.0.5, port 5201
[  5] local 10.1.0.4 port 40112 connected to 10.1.0.5 port 5201
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-1.00   sec  2.72 GBytes  23.4 Gbits/sec    4   1.30 MBytes
[  5]   1.00-2.00   sec  2.73 GBytes  23.5 Gbits/sec    0   1.30 MBytes
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-2.00   sec  5.45 GBytes  23.4 Gbits/sec    4             sender
[  5]   0.00-2.04   sec  5.45 GBytes  22.9 Gbits/sec                  receiver

iperf Done.
"""
_PING = """\
PING 10.1.0.5 (10.1.0.5) 56(84) bytes of data.
64 bytes from 10.1.0.5: icmp_seq=1 ttl=64 time=0.302 ms
64 bytes from 10.1.0.5: icmp_seq=2 ttl=64 time=0.091 ms
64 bytes from 10.1.0.5: icmp_seq=3 ttl=64 time=0.094 ms

--- 10.1.0.5 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 2031ms
rtt min/avg/max/mdev = 0.091/0.162/0.302/0.099 ms
"""
_VERBOSE = "".join(
    f"[2026-02-0{n} 09:00:00,001] [INFO] [logging.py:129:log_dist] [Rank 0] comm op: all_reduce | "
    f"time (ms): {n * n}.00 | msg size: {n * n}.0 MB | algbw (Gbps): 100.00 | busbw (Gbps): 75.00\n"
    for n in range(1, 6)
)
_TEXT = {
    "Gloo": Layout(_GLOO, "gloo"),
    "Gloo, nanoseconds": Layout(_GLOO.replace("(us)", "(ns)"), "gloo"),
    "Gloo, mismatch": Layout(_GLOO + "Mismatch at index: 5\n", said="mismatch at index 5"),
    "Gloo, threads": Layout(_GLOO.replace("threads=1", "threads=4"), said="4 threads measured"),
    "Gloo, bcube": Layout(_GLOO.replace("new_allreduce_ring", "allreduce_bcube"), said="not one"),
    "iperf3": Layout(_IPERF3, "iperf3"),
    "iperf3 3.1": Layout(_IPERF3.replace("Bitrate  ", "Bandwidth"), "iperf3"),
    "iperf3, server": Layout(
        _IPERF3.replace("Connecting to host 10.1.0.5,", "Accepted connection from 10.1.0.4,"),
        "iperf3",
    ),
    "iperf3, UDP": Layout(
        _IPERF3.replace("Bitrate         Retr", "Bitrate         Jitter    Lost/Total Datagrams"),
        said="was measured over UDP",
    ),
    "iperf3, refused": Layout(
        "iperf3: error - unable to connect to server: Connection refused\n" + _IPERF3,
        said="the test failed: 'unable to connect",
    ),
    "iperf 2": Layout(
        _IPERF3.replace("Bitrate  ", "Bandwidth").replace("sender", "").replace("receiver", ""),
        said="Output of iperf 2 is not read",
    ),
    "ping": Layout(_PING, "ping"),
    "ping, BusyBox": Layout(_PING.replace("icmp_seq", "seq").replace("rtt", "round-trip"), "ping"),
    "ping -q": Layout("\n".join(_PING.splitlines()[:1] + _PING.splitlines()[4:]), "ping"),
    "ping, damaged": Layout(
        _PING.replace("time=0.094 ms", "time=0.094 ms (BAD CHECKSUM)"), said="(BAD CHECKSUM)"
    ),
    "ping, no answer": Layout(
        "PING a (10.1.0.9) 56(84) bytes of data.\n\n--- a ping statistics ---\n"
        "3 packets transmitted, 0 received, 100% packet loss, time 2040ms\n",
        said="has no round trip",
    ),
    "ping, German": Layout(
        "64 Bytes von 10.1.0.5: icmp_seq=1 ttl=64 Zeit=0.091 ms\n", said="LC_ALL=C ping"
    ),
    "DeepSpeed, lines": Layout(_VERBOSE, "deepspeed"),
    "DeepSpeed, barriers": Layout(
        _VERBOSE.replace("all_reduce", "barrier"), said="has no collective that gcsim simulates"
    ),
    "CSV of others": Layout("size,latency\n1,2\n4,3\n", said="has an unknown format"),
    "OSU": Layout(
        "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n4      12.81\n",
        said="has an unknown format",
    ),
    "NCCL's log": Layout(
        "node-0:900:911 [0] NCCL INFO NET/Socket : Using [0]eth0:10.1.0.4<0>\n" * 3,
        said="has an unknown format",
    ),
    "nvidia-smi topo": Layout(
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\n", said="has an unknown format"
    ),
    "a page": Layout("<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>\n",
                     said="has an unknown format"),
    "a scenario": Layout("model: lenet\ncluster: {nodes: 2}\n", said="has an unknown format"),
    "nothing": Layout("", said="has an unknown format"),
    "blanks": Layout(" \n" * 100, said="has an unknown format"),
}  # fmt: skip


# --- JSON ----------------------------------------------------------------------------------------

_GROUP = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}


def _entry(number: int, **other: Any) -> dict[str, Any]:
    size = [[250_000 << number]]
    return {
        "record_id": number, "collective_seq_id": number, "op_id": number, "is_p2p": False,
        "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce",
        "input_sizes": size, "output_sizes": size, "input_dtypes": ["Float"],
        "output_dtypes": ["Float"], "state": "completed", "duration_ms": 0.2 + 0.4 * 2**number,
        **other,
    }  # fmt: skip


def _recorder(**other: Any) -> str:
    entries = [_entry(number, **other) for number in range(4)]
    return json.dumps({"version": "2.9", "pg_config": {"0": _GROUP}, "entries": entries})


def _kineto(**kernel: Any) -> str:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}]
    for number in range(4):
        elements = 100_000 << 2 * number
        arguments = {
            "stream": 20, "correlation": number, "Collective name": "allreduce", "dtype": "Float",
            "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "Process Group Name": "0",
        }  # fmt: skip
        events.append(
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0,
             "tid": 20, "ts": 1e9 + 1e5 * number, "dur": 30 + elements / 2500, "args": arguments,
             **kernel}
        )  # fmt: skip
    told = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "nccl_version": "2.26.2",
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]}  # fmt: skip
    return json.dumps({"schemaVersion": 1, "distributedInfo": told, "traceEvents": events})


def _horovod(*, sizes: bool = True) -> str:
    events: list[dict[str, Any]] = []
    at = 10.0
    for tensor in range(4):
        lasts = 100.0 * 4**tensor
        events.append({"name": "process_name", "ph": "M", "pid": tensor,
                       "args": {"name": f"grad.{tensor}"}})  # fmt: skip
        for phase, name, time in (
            ("B", "NEGOTIATE_ALLREDUCE", at), ("X", "0", at), ("X", "1", at + 1),
            ("E", None, at + 2), ("B", "ALLREDUCE", at + 3), ("B", "NCCL_ALLREDUCE", at + 4),
            ("E", None, at + 4 + lasts),
            ("E", None, at + 5 + lasts),
        ):  # fmt: skip
            named = {"name": name} if name else {}
            events.append({"ph": phase, "ts": time, "pid": tensor, **named})
        if sizes:
            events[-1]["args"] = {"dtype": "float32", "shape": f"[{1000 * 4**tensor}, 25]"}
        at += 1e5
    return json.dumps(events)


_JSON = {
    "flight recorder": Layout(_recorder(), "flight-recorder"),
    "flight recorder, untimed": Layout(_recorder(duration_ms=None), said="but not their times"),
    "flight recorder, Gloo": Layout(
        _recorder(duration_ms=None, profiling_name="gloo:all_reduce"), said="it does not time Gloo"
    ),
    "flight recorder, not completed": Layout(
        _recorder(state="started"), said="but not their times"
    ),
    "flight recorder, no collectives": Layout(
        json.dumps({"version": "2.9", "pg_config": {"0": _GROUP}}), said="includecollectives=true"
    ),
    "Kineto": Layout(_kineto(), "torch-profile"),
    "Kineto, Gloo": Layout(_kineto(cat="cpu_op"), said="Gloo has no kernels"),
    "Kineto, no duration": Layout(_kineto(dur=0), said="a duration of 0 us"),
    "Kineto, cut off": Layout(_kineto()[:-400], said="is cut off or not JSON"),
    "Horovod": Layout(_horovod(), "horovod"),
    "Horovod, killed": Layout(_horovod()[:-1] + ",\n", "horovod"),
    "Horovod, no sizes": Layout(_horovod(sizes=False), said="has no sizes"),
    "the legacy profiler": Layout(
        '[{"name": "aten::add", "ph": "X", "ts": 1.5, "dur": 2, "tid": 1, "pid": "CPU functions"}]',
        said="is a list without Horovod's phases",
    ),
    "iperf3, failed": Layout(
        '{"start": {"connected": []}, "intervals": [], "end": {}, "error": "unable to connect"}',
        said="the test failed: 'unable to connect'",
    ),
    "iperf3 --json-stream": Layout(
        '{"event":"start","data":{}}\n{"event":"end","data":{}}\n', said="continues after its end"
    ),
    "an execution trace": Layout(
        '{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 2, "name": "[pytorch|profiler]"}]}',
        said="is an execution trace",
    ),
    "a configuration": Layout('{"train_batch_size": 8}', said="has an unknown format"),
    "an empty object": Layout("{}", said="has an unknown format"),
    "an empty list": Layout("[]", said="is a list without Horovod's phases"),
}


@cache
def _binary() -> dict[str, Layout]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("log.txt", _nccl())
    attribute = b"\x0a\x06schema\xea\x01\x121.1.0-chakra.0.0.4"
    message = b"\x0a" + bytes([len(attribute)]) + attribute
    unknown = "has an unknown format"
    return {
        "gzip": Layout(gzip.compress(_nccl().encode(), mtime=0), "nccl-tests"),
        "gzip, JSON": Layout(gzip.compress(_kineto().encode(), mtime=0), "torch-profile"),
        "gzip, cut off": Layout(gzip.compress(_nccl().encode(), mtime=0)[:-30], said="gzip data"),
        "PowerShell": Layout(_nccl().encode("utf-16"), "nccl-tests"),
        "a byte order mark": Layout(_GLOO.encode("utf-8-sig"), "gloo"),
        "Latin-1": Layout(("Müller: \n" + _PING).encode("latin-1"), "ping"),
        "a pickle": Layout(pickle.dumps({"entries": []}, protocol=4), said="is a pickle"),
        ".et": Layout(bytes([len(message)]) + message, said="is a Chakra trace as protobuf (.et)"),
        "a zip": Layout(archive.getvalue(), said=unknown),
        "an array": Layout(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'shape': (3,)}", said=unknown),
        "a picture": Layout(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(64), said=unknown),
        "Nsight's": Layout(b"SQLite format 3\x00" + bytes(200), said=unknown),
    }


@cache
def layouts() -> dict[str, Layout]:
    """All layouts, and the fixtures of the readers' tests."""
    nccl = {f"nccl-tests: {name}": layout for name, layout in _NCCL.items()}
    data = {
        path.name: Layout(path.read_text(encoding="utf-8"), "any")
        for path in sorted(_DATA.iterdir())
    }
    return {**nccl, **_TEXT, **_JSON, **_binary(), **data}
