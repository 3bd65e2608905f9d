"""A dask cluster of processes that a test can hand work to."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

_CLUSTER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, host="127.0.0.1",
                      dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def running_cluster(folder: Path, environment: Mapping[str, str], workers: int) -> Iterator[str]:
    """The address of a scheduler with so many processes, which have a cache of their own."""
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("distributed is not installed: pip install 'gcsim[cluster]'")
    (folder / "cluster.py").write_text(_CLUSTER)
    with subprocess.Popen(
        [sys.executable, "cluster.py", str(workers)], cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**environment, "GCSIM_CACHE_DIR": str(folder / "cache of the cluster")},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            try:
                process.communicate(timeout=30)  # the end of its stdin lets it leave in order
            except subprocess.TimeoutExpired:
                process.kill()
