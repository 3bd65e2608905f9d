"""Shipped clusters, whole: what their dense rows must be, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import gcsim

pytestmark = pytest.mark.long

ALEXNET, RESNET50, RESNET18 = 4 * 61_100_840, 4 * 25_557_032, 4 * 11_173_962
GPT2, VIT, BERT = 4 * 124_439_808, 4 * 86_567_656, 4 * 335_141_888
TCP = 1448 / 1538
SMALL = ("--set=gradients.iterations=1", "--set=gradients.workers=1")
"""None of these settings changes what dense workers send."""
EVERY = (*SMALL, "--set=batch_size=2", "--set=gradients.warmup_steps=0")
"""With all methods. ResNet-50 with 64 samples takes 11 GB and minutes."""
LARGE = (*SMALL, "--set=compressors=[none]", "--set=uncertainty.draws=0")
PAPERS = (*EVERY, *LARGE)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two clusters run of one model is run once."""
    return tmp_path_factory.mktemp("cache")


def ring(workers: int, nbytes: int, bits_per_s: float) -> float:
    return 2 * (workers - 1) / workers * nbytes / (bits_per_s / 8)


@pytest.mark.parametrize(
    ("settings", "name", "workers", "communication_s"),
    [
        (EVERY, "resnet50_16node_1gbe", 16, ring(16, RESNET50, TCP * 1e9)),
        (PAPERS, "k80_16vm_tcp", 16, ring(16, ALEXNET, 0.6 * 7.5e9)),
        # everybody's gradient through the server's NIC, both ways
        (PAPERS, "resnet50_4node_p40", 4, 2 * 4 * RESNET50 / (TCP * 1.25e9)),
        # through the air once to the access point, and back once for each
        (PAPERS, "raspberry_pi_wifi", 4, 2 * 4 * RESNET18 / (44.5e6 / 8)),
        # 39 s up and 39 s down at 50 Mbit/s for each worker, whatever the others do
        (PAPERS, "alexnet_5g", 4, 2 * ALEXNET / (50e6 / 8)),
        # what NCCL reaches on the link: `gcsim list links`
        (LARGE, "resnet50_t4", 16, ring(16, RESNET50, 9.41e9)),
        (LARGE, "resnet50_l4", 16, ring(16, RESNET50, 15.0e9)),
        (LARGE, "vit_b16_a100", 64, ring(64, VIT, 91.7e9)),
        (LARGE, "gpt2_a100", 64, ring(64, GPT2, 91.7e9)),
        (LARGE, "bert_large_v100", 128, ring(128, BERT, 15.0e9)),
    ],
)
def test_dense_communication_is_what_arithmetic_says(
    tmp_path: Path, cache: Path, settings: tuple[str, ...], name: str, workers: int,
    communication_s: float,
) -> None:  # fmt: skip
    shown = gcsim(
        "run", name, "--json", "-q", *settings, folder=tmp_path, GCSIM_CACHE_DIR=str(cache)
    )
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["rows"]
    assert (len({row["label"] for row in rows}) >= 5) == (settings == EVERY)
    assert all(row["iteration_s"] > 0 for row in rows)
    dense = [row for row in rows if row["label"] == "dense"][-1]
    assert dense["workers"] == workers
    # latencies and the servers' additions come on top
    assert communication_s <= dense["communication_s"] * 1.002
    assert dense["communication_s"] == pytest.approx(communication_s, rel=0.1)
