"""What was measured on the clusters of tc-cluster, nccl-clusters, raysgd, bagua and global-qsgd?

The measurements and their sources are package data (`data/cluster_runs.csv` says how they were
read).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gcsim.analysis.validation.data_files import data_values, sources

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A measurement, as published."""

    id: str
    key: str
    """Of its source."""
    gpus: int
    nodes: int
    library: str
    """What carried the gradients."""
    task: str
    """The collective, or the model that was trained."""
    batch: int
    """Samples a GPU; 0 where nothing was trained."""
    method: str
    """The compressor; "none": the uncompressed exchange."""
    nbytes: int
    """Of the reduced vector; 0 where the model says it."""
    rate_gbit: float
    """Of a node's card, Gbit/s; 0 inside one machine."""
    delay_ms: float
    """Added to each message, one way."""
    value: float
    unit: str
    source: str
    """Citation, and where in it."""

    @property
    def seconds(self) -> float:
        """Of the collective, the iteration or the epoch."""
        if self.unit == "GB/s":  # the vector over the time
            return self.nbytes / (self.value * 1e9)
        if self.unit == "images/s":
            return self.batch * self.gpus / self.value
        return self.value * _SECONDS[self.unit]


@cache
def runs(source: str) -> tuple[Run, ...]:
    """The measurements of a source, by its key, in the order of the file."""
    cited = sources("cluster_runs_sources")
    everything = data_values("cluster_runs", Run, key="source", nbytes="bytes", source=cited)
    return tuple(run for run in everything if run.key == source)
