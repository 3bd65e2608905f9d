"""The clusters of the papers, whole: what their dense rows must be, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import gcsim

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_pictures")]

ALEXNET, RESNET50, RESNET18 = 4 * 61_100_840, 4 * 25_557_032, 4 * 11_173_962
TCP = 1448 / 1538
SMALL = (
    "--set=batch_size=2",
    "--set=gradients.warmup_steps=0",
    "--set=gradients.iterations=1",
    "--set=gradients.workers=1",
)
"""None changes what dense workers send; ResNet-50 with 64 samples takes 11 GB and minutes."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two clusters run of one model is run once."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("name", "largest", "communication_s"),
    [
        # a ring: 2 (p - 1) / p of the gradient
        ("resnet50_16node_1gbe", 16, 2 * 15 / 16 * RESNET50 / (TCP * 125e6)),
        ("k80_16vm_tcp", 16, 2 * 15 / 16 * ALEXNET / (0.6 * 7.5e9 / 8)),
        # everybody's gradient through the server's NIC, both ways
        ("resnet50_4node_p40", 4, 2 * 4 * RESNET50 / (TCP * 1.25e9)),
        # through the air once to the access point, and back once for each
        ("raspberry_pi_wifi", 4, 2 * 4 * RESNET18 / (44.5e6 / 8)),
        # 39 s up and 39 s down at 50 Mbit/s for each worker, whatever the others do
        ("alexnet_5g", 4, 2 * ALEXNET / (50e6 / 8)),
    ],
)
def test_dense_communication_is_what_arithmetic_says(
    tmp_path: Path, cache: Path, name: str, largest: int, communication_s: float
) -> None:
    shown = gcsim("run", name, "--json", "-q", *SMALL, folder=tmp_path, GCSIM_CACHE_DIR=str(cache))
    assert shown.returncode == 0, shown.stderr
    rows: list[dict[str, Any]] = json.loads(shown.stdout)["rows"]
    assert len({row["label"] for row in rows}) >= 5
    dense = next(row for row in rows if row["label"] == "dense" and row["nodes"] == largest)
    # latencies and the servers' additions come on top
    assert communication_s <= dense["communication_s"] * 1.002
    assert dense["communication_s"] == pytest.approx(communication_s, rel=0.08)
    assert all(row["iteration_s"] > 0 for row in rows)
