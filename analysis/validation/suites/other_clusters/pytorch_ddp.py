"""Does the simulator predict training over NVLink and InfiniBand? PyTorch's benchmark and DLPerf.

PyTorch's own benchmark of DistributedDataParallel (1.4, V100, eight a node with NVLink, four cards
of 100 Gbit/s InfiniBand): four models, buckets of 25 MB and of 1 MB, 1 to 16 GPUs. Given: each
model's step on one GPU, without DDP and under it. The second has what DDP adds on a single GPU
(copies into buckets, hooks); more GPUs start from it.

OneFlow's DLPerf (V100 SXM2, eight a node, one 100-Gbit/s EDR card): ResNet-50 and BERT-base in
float32 by several frameworks, 1 to 32 GPUs. Given: each row's step on one GPU; fitted: the
efficiency of the network, by BERT-base at its smallest batch on 16 and 32 GPUs, which waits most
for the network, under the framework that is fastest on one GPU, which waits least for anything
else. All are simulated as PyTorch: NCCL, buckets of 25 MiB, the first of 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gcsim.analysis.report.numbers import plural
from gcsim.analysis.validation.suite import Excluded, Factor, Findings, Point, given_step
from gcsim.analysis.validation.suites.other_clusters.prediction import (
    Job,
    catalogue_seconds,
    cluster_of,
    compared_step,
    nearest,
    with_efficiency,
)
from gcsim.analysis.validation.suites.other_clusters.runs import (
    Run,
    all_reduced,
    bucketed,
    gradient_bytes,
    runs,
)
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import Collectives
from gcsim.simulator.network.links import Link
from gcsim.traces.buckets import CAP_BYTES, FIRST_BYTES

GPU = "v100"
MEGABYTE = 1024 * 1024
CARDS = 4
"""InfiniBand cards of a node of PyTorch's benchmark, over which NCCL spreads its rings."""
DDP_25, DDP_1 = "PyTorch DDP, NVLink, 25 MB buckets", "PyTorch DDP, NVLink, 1 MB buckets"
RESNET, BERT = "DLPerf, ResNet-50, 1 to 32 V100", "DLPerf, BERT-base, 1 to 32 V100"
SHOWN = (("resnet50", 128), ("bert_base", 32))
"""What the figure has."""
FITTED_GPUS = (16, 32)
LEAST, MOST = 0.05, 1.0
"""Efficiencies among which the fit looks."""
_NCCL = Collectives(transport="nccl", host_staging=False)
_TITLES = {
    "resnet50": "ResNet-50",
    "resnet101": "ResNet-101",
    "resnext50_32x4d": "ResNeXt-50",
    "resnext101_32x8d": "ResNeXt-101",
    "bert_base": "BERT-base",
}


def job(run: Run, step: float, network: Link, first: int, cap: int) -> Job:
    """An iteration of all GPUs, where one takes `step` seconds."""
    cluster = cluster_of(run.nodes, run.gpus, network, catalog.link("nvlink2"), _NCCL)
    traffic = all_reduced(run.model, run.batch, bucketed(run.model, first, cap))
    return Job(profile=traffic, cluster=cluster, step=step)


def _unfitted(run: Run, network: Link, first: int, cap: int) -> Job | None:
    """The same by the catalogue alone."""
    known = catalogue_seconds(GPU, run.model, run.batch)
    if known is None:
        return None
    return job(run, known, network, first, cap).unfitted(GPU, "pytorch")


def infiniband(cards: int) -> Link:
    """So many of the catalogue's 100-Gbit/s cards as one."""
    one = catalog.link("100gb_infiniband")
    return replace(one, bandwidth=cards * one.bandwidth)


def findings() -> Findings:
    """Both benchmarks."""
    benchmark, dlperf = _pytorch(), _dlperf()
    return Findings(
        points=(*benchmark.points, *dlperf.points),
        factors=(*benchmark.factors, *dlperf.factors),
        excluded=dlperf.excluded,
    )


def _pytorch() -> Findings:
    bare = {run.model: run.seconds for run in runs("ddp") if "no-ddp" in run.id}
    factors, points = [], []
    for key, series, first, cap in (
        ("ddp", DDP_25, FIRST_BYTES, CAP_BYTES),
        ("ddp1mb", DDP_1, MEGABYTE, MEGABYTE),
    ):
        own = {
            run.model: run.seconds for run in runs(key) if run.gpus == 1 and "no-ddp" not in run.id
        }
        for model, step in own.items():
            factors.append(
                given_step(
                    series,
                    f"step of {_TITLES[model]} on one GPU under DDP",
                    step,
                    catalogue_seconds(GPU, model, 32),
                )
            )
        for run in runs(key):
            step = bare[run.model] if "no-ddp" in run.id else own[run.model]
            network = infiniband(CARDS)
            count = "one GPU without DDP" if "no-ddp" in run.id else plural(run.gpus, "GPU")
            points.append(
                compared_step(
                    run,
                    job(run, step, network, first, cap).seconds,
                    _unfitted(run, network, first, cap),
                    name=f"{_TITLES[run.model]}, {cap // MEGABYTE} MB buckets, {count}",
                    series=series,
                    fitted=run.gpus == 1,
                    nbytes=gradient_bytes(run.model) / len(bucketed(run.model, first, cap)),
                )
            )
    return Findings(points=tuple(points), factors=tuple(factors))


def _dlperf() -> Findings:
    chosen = [run for run in runs("dlperf") if run.precision == "fp32"]
    mixed = len(runs("dlperf")) - len(chosen)
    steps = {_key(run): run.seconds for run in chosen if run.gpus == 1}
    fitted = most_held_up(chosen)
    network = catalog.link("100gb_infiniband")

    def at(efficiency: float) -> list[float]:
        link = with_efficiency(network, efficiency)
        return [job(run, steps[_key(run)], link, FIRST_BYTES, CAP_BYTES).seconds for run in fitted]

    efficiency = nearest(at, [run.seconds for run in fitted], LEAST, MOST)
    factors = [
        Factor(
            series=f"{RESNET}; {BERT}",
            name="network efficiency",
            value=efficiency,
            unit="goodput over line rate",
            points=len(fitted),
            catalogue=float(network.efficiency),
        ),
        *(
            given_step(
                _series(run),
                f"step of {_name(run)}",
                run.seconds,
                catalogue_seconds(GPU, run.model, run.batch),
            )
            for run in chosen
            if run.gpus == 1
        ),
    ]
    return Findings(
        points=tuple(_dlperf_points(chosen, steps, fitted, efficiency)),
        factors=tuple(factors),
        excluded=(
            Excluded(
                "DLPerf rows in mixed precision",
                mixed,
                "the report does not say which frameworks exchange float16 gradients and "
                "which float32",
            ),
        ),
    )


def most_held_up(chosen: list[Run]) -> list[Run]:
    """The rows whose network is fitted: see above."""
    bert = [run for run in chosen if run.model == "bert_base"]
    batch = min(run.batch for run in bert)
    alone = [run for run in bert if run.gpus == 1 and run.batch == batch]
    fastest = max(alone, key=lambda run: run.value).method
    own = [run for run in bert if (run.batch, run.method) == (batch, fastest)]
    return [run for run in own if run.gpus in FITTED_GPUS]


def _dlperf_points(
    chosen: list[Run],
    steps: Mapping[tuple[str, str, int], float],
    fitted: list[Run],
    efficiency: float,
) -> Iterator[Point]:
    network = catalog.link("100gb_infiniband")
    for run in chosen:
        own = with_efficiency(network, efficiency)
        shown = (run.model, run.batch) in SHOWN
        predicted = job(run, steps[_key(run)], own, FIRST_BYTES, CAP_BYTES).seconds
        yield compared_step(
            run,
            predicted,
            _unfitted(run, network, FIRST_BYTES, CAP_BYTES),
            name=f"{_name(run)}, {plural(run.gpus, 'GPU')}",
            series=_series(run),
            fitted=run.gpus == 1 or run in fitted,
            nbytes=gradient_bytes(run.model) / len(bucketed(run.model, FIRST_BYTES, CAP_BYTES)),
            panel=f"{_TITLES[run.model]} b{run.batch}, V100" if shown else "",
            curve=run.method if shown else "",
            x=run.gpus if shown else None,
        )


def _key(run: Run) -> tuple[str, str, int]:
    return run.model, run.method, run.batch


def _series(run: Run) -> str:
    return RESNET if run.model == "resnet50" else BERT


def _name(run: Run) -> str:
    return f"{_TITLES[run.model]} b{run.batch}, {run.method}"
