"""Shipped clusters: what their dense rows must be, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gcsim.scenarios.advice.question import shipped_profile
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.progress import SilentProgress
from gcsim.scenarios.run import simulated_run
from gcsim.scenarios.sections.passes import measured_passes
from tests.command import gcsim

ALEXNET, RESNET50, RESNET18 = 4 * 61_100_840, 4 * 25_557_032, 4 * 11_173_962
GPT2, VIT, BERT = 4 * 124_439_808, 4 * 86_567_656, 4 * 335_141_888
TCP = 1448 / 1538


def ring(workers: int, nbytes: int, bits_per_s: float) -> float:
    return 2 * (workers - 1) / workers * nbytes / (bits_per_s / 8)


RESNET50_1GBE = ring(16, RESNET50, TCP * 1e9)


@pytest.mark.parametrize(
    ("name", "workers", "communication_s"),
    [
        ("resnet50_16node_1gbe", 16, RESNET50_1GBE),
        ("k80_16vm_tcp", 16, ring(16, ALEXNET, 0.6 * 7.5e9)),
        # everybody's gradient through the server's NIC, both ways
        ("resnet50_4node_p40", 4, 2 * 4 * RESNET50 / (TCP * 1.25e9)),
        # through the air once to the access point, and back once for each
        ("raspberry_pi_wifi", 4, 2 * 4 * RESNET18 / (44.5e6 / 8)),
        # 39 s up and 39 s down at 50 Mbit/s for each worker, whatever the others do
        ("alexnet_5g", 4, 2 * ALEXNET / (50e6 / 8)),
        # what NCCL reaches on the link: `gcsim list links`
        ("resnet50_t4", 16, ring(16, RESNET50, 9.41e9)),
        ("resnet50_l4", 16, ring(16, RESNET50, 15.0e9)),
        ("vit_b16_a100", 64, ring(64, VIT, 91.7e9)),
        ("gpt2_a100", 64, ring(64, GPT2, 91.7e9)),
        ("bert_large_v100", 128, ring(128, BERT, 15.0e9)),
    ],
)
def test_dense_communication_is_what_arithmetic_says(
    name: str, workers: int, communication_s: float
) -> None:
    """With the traffic that comes with gcsim."""
    scenario = load_scenario(name, ["compressors=[none]", "uncertainty.draws=0"])
    scenario = replace(scenario, node_counts=scenario.node_counts[-1:])
    profile = shipped_profile(scenario, *scenario.compressors)
    assert profile is not None
    (dense,) = simulated_run(
        scenario, [""], [profile], measured_passes(scenario, profile),
        progress=SilentProgress(), timelines=False,
    ).rows  # fmt: skip
    assert dense.workers == workers
    # latencies and the servers' additions come on top
    assert communication_s <= dense.communication_s * 1.002
    assert dense.communication_s == pytest.approx(communication_s, rel=0.1)


@pytest.mark.long
def test_a_shipped_cluster_runs_whole(tmp_path: Path) -> None:
    """With all methods, and less work for them: ResNet-50 with 64 samples takes 11 GB and
    minutes."""
    less = ("gradients.iterations=1", "gradients.workers=1", "gradients.warmup_steps=0")
    settings = [f"--set={one}" for one in (*less, "batch_size=2")]
    shown = gcsim("run", "resnet50_16node_1gbe", "--json", "-q", *settings, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(shown.stdout)["rows"]
    assert len({row["label"] for row in rows}) >= 5
    assert all(row["iteration_s"] > 0 for row in rows)
    (*_, dense) = (row for row in rows if row["label"] == "dense")
    assert dense["communication_s"] == pytest.approx(RESNET50_1GBE, rel=0.1)
