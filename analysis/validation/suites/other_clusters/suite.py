"""The suite of other clusters: Horovod, PyTorch, DLPerf, TensorFlow, gTop-k, all-reduces alone."""

from __future__ import annotations

from gcsim.analysis.validation.suite import Bound, Findings, Suite
from gcsim.analysis.validation.suites.other_clusters import (
    allreduce,
    cloud,
    gtopk,
    horovod,
    pytorch_ddp,
    tensorflow,
    tensorflow_hosts,
)
from gcsim.analysis.validation.suites.other_clusters.allreduce import DEEPBENCH, OMNIPATH
from gcsim.analysis.validation.suites.other_clusters.cloud import CLOUD_SERIES, GLOO_HALF, MGWFBP
from gcsim.analysis.validation.suites.other_clusters.gtopk import SERIES as GTOPK
from gcsim.analysis.validation.suites.other_clusters.horovod import LARGE, SMALL
from gcsim.analysis.validation.suites.other_clusters.pytorch_ddp import BERT, DDP_1, DDP_25, RESNET
from gcsim.analysis.validation.suites.other_clusters.tensorflow import HOSTS
from gcsim.analysis.validation.suites.other_clusters.tensorflow_hosts import SERIES as SEVERAL_HOSTS

PARTS = (horovod, pytorch_ddp, tensorflow, tensorflow_hosts, gtopk, allreduce, cloud)
_ONE_HOST = tuple(name for host in HOSTS for name in host.all_series)

ABOUT = """\
Published runs of dense training and of all-reduces, 2016 to 2020, and of top-k and gTop-k on one
cluster. Horovod's README of 2017 (three models, 16 and 64 Pascal GPUs, 25 and 40 Gbit/s; NCCL,
MPI, TensorFlow's parameter servers; with tensor fusion, rows without it are not in the data).
PyTorch's benchmark of DistributedDataParallel (V100, NVLink, InfiniBand; medians with buckets of
25 MB, 75th percentiles with 1 MB). OneFlow's DLPerf (V100, InfiniBand; eight frameworks, float32).
TensorFlow's benchmarks page (P100 and K80, one host and up to eight, synthetic and real data). Shi
et al.'s gTop-k on 1-Gbit/s Ethernet. All-reduces alone: DeepBench on PCIe, FDR InfiniBand and
Omni-Path, mlbench in the cloud, MG-WFBP's fit. The catalogue's rates of one K80, P100 and V100 are
in part from the same pages, so that the catalogue alone knows these devices well."""

FITTED_ON = """\
Training: given are the rows of one GPU (DLPerf: of each framework; several of Amazon's hosts: of
one host), which are the user's own measurement of a device. Fitted beside them: what MPI gets from
a NIC, by VGG-16 over TCP on both of Horovod's clusters; DLPerf's network, by BERT-base's smallest
batch on 16 and 32 GPUs under the framework that is fastest on one; for K80, by two rows of two GPUs
a host, what two processors of one board lose; for gTop-k the host's work, by the rows of four
workers of four models. Given there, and not in the rows compared: the authors' fit of the network
and their time of a selection (from a breakdown of runs on 32 workers). Nothing is fitted of NCCL
and of parameter servers, nor of real data. A factor has two rows at least. All-reduces: three
vectors (smallest, middle, largest) on the middle number of ranks; Gloo's float16 in the cloud: one
constant, what an addition costs, on three of its vectors, over the link fitted to float32."""

MISSING = """\
Horovod: nothing here slows computation down as ranks are added; 64 GPUs over NCCL reach 83 and 89 %
of 64 times one where no communication is exposed, 12 and 19 % more are predicted. TensorFlow's
servers: three quarters of VGG-16's bytes are one variable on one server, which gRPC serves at 6
Gbit/s; with the catalogue's 15 and 16 it is predicted 1.7 to 2.5 times too fast. MPI gets 6 Gbit/s
of the NIC of 25 and 3.5 of the one of 40, for which it has one figure here. PyTorch's DDP:
collectives take multiprocessors and memory bandwidth from the backward pass (3 % from the second
GPU on), and small buckets launches (3 % more). DLPerf: clipping of gradients, copies and loaders of
the frameworks; eight GPUs of one machine, where the network has no part, are already predicted 5 %
too fast (median; PaddlePaddle's BERT-base 71 %). TensorFlow on NCCL: eight GPUs lose as much as a
ring after the backward pass would take, or more, where an overlapped one costs nothing; real data,
which are predicted as synthetic ones, slow down AlexNet and VGG-16 on a DGX-1, which is predicted 8
to 68 % too fast (loading, copies to the devices and preprocessing share bus and processors with the
exchange). gTop-k: the all-gather of top-k collapses on 32 workers of this network as the dense ring
does; without the fit, with kernels as on a GTX 1080 Ti and no work of the host, the sparse methods
are predicted 5 to 99 times too fast (median 24): what they measured is host code, not the method.
DeepBench: GTX 1080 Ti and Titan X Pascal lose 20 % on eight GPUs (a ring through two sockets; hops
are alike here); 67 MB between machines take 1.3 to 2.6 times as long as predicted, on 16 GPUs of
both longer than 153 MB (unexplained). Omni-Path: 153 MB take 5.5 times as long as 67 MB on two
nodes. Cloud: goodput falls with the number of workers and again at 10 to 40 MB, as if by the
provider's shaping; half-precision sums on the host, as Gloo makes them, are in the fitted goodput.
MG-WFBP: 1.6 to 4 ms for a small all-reduce, which the catalogue's 50 us a step does not have."""


def find() -> Findings:
    """All parts."""
    found = [part.findings() for part in PARTS]
    return Findings(
        points=tuple(point for one in found for point in one.points),
        factors=tuple(factor for one in found for factor in one.factors),
        excluded=tuple(excluded for one in found for excluded in one.excluded),
    )


SUITE = Suite(
    name="other-clusters",
    title="other published clusters: training and all-reduces",
    about=ABOUT.replace("\n", " "),
    fitted_on=FITTED_ON.replace("\n", " "),
    missing=MISSING.replace("\n", " "),
    bounds=(
        Bound("TensorFlow on one host, P100 and K80 (regression)", _ONE_HOST, limit=0.03),
        Bound("TensorFlow on several hosts, gRPC (regression)", (SEVERAL_HOSTS,), limit=0.06),
        Bound("PyTorch DDP over NVLink (regression)", (DDP_25, DDP_1), limit=0.05),
        Bound("DLPerf's frameworks (regression)", (RESNET, BERT), limit=0.10),
        Bound("Horovod's transports (regression)", (SMALL, LARGE), limit=0.12),
        Bound("dense, top-k, gTop-k on 1 GbE (regression)", GTOPK, limit=0.06),
        Bound(
            "top-k and gTop-k against dense on 1 GbE (regression)",
            GTOPK,
            statistic="decisions",
            limit=0.85,
        ),
        Bound(
            "all-reduce alone, PCIe and FDR InfiniBand (regression)",
            tuple(f"all-reduce, {title}" for title in DEEPBENCH.values()),
            limit=0.08,
        ),
        Bound("Gloo's float16 over float32's link, one constant", (GLOO_HALF,), limit=0.12),
        Bound(
            "all-reduce alone, Omni-Path, cloud, 1 GbE (regression)",
            (OMNIPATH, *CLOUD_SERIES, MGWFBP),
            limit=0.25,
        ),
    ),
    find=find,
    figure_x="GPUs or ranks",
)
