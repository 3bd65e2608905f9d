"""A result as a run gives it: twelve compressors, six sizes, AlexNet-like numbers.

The numbers follow a simple model (a ring's 2(p-1)/p n/B, a gather's (p-1) n/B, half of the
backward pass hides communication), so that they have the spread of real ones: the dense row
dwarfs the others, gathers lose at scale, and compression does not pay on one node.
"""

import pytest

from gcsim.scenarios.result import Collective, Result, Row, Span, Timeline

GRADIENT = 4 * 61_100_840.0
FORWARD, BACKWARD, BATCH = 0.0112, 0.0231, 32
# kind, label, bytes a worker, all-gathered, encode, decode, nmse, cosine, period
METHODS = [
    ("none", "dense", GRADIENT, False, 0.0, 0.0, 0.0, 1.0, 1),
    ("fp16", "FP16", GRADIENT / 2, False, 0.0011, 0.0009, 8.3e-8, 0.99999996, 1),
    ("randomk", "random-k 1%", GRADIENT / 100, False, 0.0021, 0.0008, 0.99, 0.1, 1),
    ("gradient_sampling_bayes", "gradient sampling, Bayes prior", GRADIENT * 0.0595, False, 0.0042,
     0.0011, 0.43, 0.76, 100),
    ("topk", "Top-k 1%", GRADIENT / 50, True, 0.0312, 0.0087, 0.61, 0.62, 1),
    ("dgc", "DGC 0.1%", GRADIENT / 500, True, 0.0151, 0.0031, 0.87, 0.36, 1),
    ("qsgd", "QSGD 4 bit", GRADIENT / 7.9, True, 0.0061, 0.0921, 0.083, 0.96, 1),
    ("terngrad", "TernGrad", GRADIENT / 15.9, True, 0.0058, 0.0555, 3.21, 0.49, 1),
    ("ef_block_sgdm", "dist-EF-blockSGDM 1 bit", GRADIENT / 31.8, True, 0.0044,
     0.0321, 0.37, 0.79, 1),
    ("variance", "variance-based", GRADIENT / 1111, True, 0.0871, 0.0011, 0.93, 0.27, 1),
    ("powersgd", "PowerSGD rank 4", GRADIENT / 71.3, False, 0.0089, 0.0041, 0.31, 0.83, 1),
    ("qsparse_local_sgd", "QSparse-local-SGD 8 %, 8 bit", GRADIENT / 400, True, 0.0078,
     0.0022, 0.71, 0.54, 4),
]  # fmt: skip


def one_row(method: tuple, nodes: int, dense_s: float | None = None) -> Row:  # type: ignore[type-arg]
    kind, label, nbytes, gathered, encode, decode, nmse, cosine, period = method
    workers = 2 * nodes
    moved = nbytes * (workers - 1) if gathered else nbytes * 2 * (workers - 1) / workers
    communication = moved / (11e9 if nodes == 1 else 1.177e9) + 1e-4 * workers
    decode *= workers / 64 if gathered else 1.0
    exposed = max(communication - BACKWARD / 2, communication / 10)
    iteration = FORWARD + BACKWARD + encode + exposed + decode
    return Row(
        compressor=kind, label=label, nodes=nodes, workers=workers, iteration_s=iteration,
        forward_s=FORWARD, backward_s=BACKWARD, encode_s=encode, communication_s=communication,
        exposed_communication_s=exposed, decode_s=decode,
        throughput_samples_per_s=workers * BATCH / iteration,
        speedup_vs_dense=(iteration if dense_s is None else dense_s) / iteration,
        scaling_efficiency=(FORWARD + BACKWARD) / iteration, wire_bytes_per_worker=nbytes,
        compression_ratio=GRADIENT / nbytes, nmse=nmse, cosine_similarity=cosine, steps_run=4,
        memory="none", period=period,
    )  # fmt: skip


def timeline(row: Row) -> Timeline:
    """Three buckets a rank: the compute stream and the communicator overlap as under DDP. Rank r
    is r us late, so that every collective waits for the last one."""
    spans, last = [], row.workers - 1
    size = round(row.wire_bytes_per_worker / 3)
    of_all = Collective(
        algorithm="ring all-reduce", sent=(size,) * row.workers, received=(size,) * row.workers,
        moved=(2 * size,) * row.workers, messages=size * row.workers, last=(last,),
    )  # fmt: skip
    for rank in range(row.workers):
        skew = rank * 1e-6
        begin = skew + row.forward_s
        spans.append(Span(rank=rank, resource="compute", kind="forward", name="forward",
                          start_s=skew, end_s=begin))  # fmt: skip
        free = encoded = begin
        for bucket in range(3):
            ready = begin + row.backward_s * (bucket + 1) / 3
            start = ready - row.backward_s / 3
            encode = max(ready, encoded)
            encoded = encode + row.encode_s / 3
            free = max(free, encoded)
            sent = free + row.communication_s / 3
            spans += [
                Span(rank=rank, resource="compute", kind="backward", bucket=bucket,
                     name=f"backward, bucket {bucket}", start_s=start, end_s=ready),
                Span(rank=rank, resource="side", kind="encode", bucket=bucket,
                     name=f"encode, bucket {bucket}", start_s=encode, end_s=encoded),
                Span(rank=rank, resource="communicator", kind="all_reduce", bucket=bucket,
                     name=f"all-reduce, bucket {bucket}", start_s=free, end_s=sent,
                     collective=bucket, waited_s=(last - rank) * 1e-6),
            ]  # fmt: skip
            free = sent
    return Timeline(
        compressor=row.compressor, label=row.label, nodes=row.nodes, phase="step",
        spans=tuple(spans), collectives=(of_all,) * 3,
    )  # fmt: skip


@pytest.fixture(scope="session")
def result() -> Result:
    """Twelve compressors on 1 to 32 nodes of two devices."""
    nodes = (1, 2, 4, 8, 16, 32)
    dense = {count: one_row(METHODS[0], count).iteration_s for count in nodes}
    rows = tuple(one_row(method, count, dense[count]) for method in METHODS for count in nodes)
    return Result(
        scenario={
            "name": "synthetic",
            "model": "alexnet",
            "batch_size": 32,
            "cluster": {"nodes": list(nodes), "network": {"bandwidth": "10 Gbit/s"}},
            "seed": 0,
        },
        provenance={"gradients": {"source": "a formula of the tests"}, "seed": 0},
        rows=rows,
        wall={"total_s": 1.0},
        timelines=tuple(timeline(row) for row in rows if row.nodes == 32),
    )
