"""The shipped scenarios of large models, whole: what their dense rows must be, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import gcsim

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_pictures")]

RESNET50, GPT2, VIT, BERT = 25_557_032, 124_439_808, 86_567_656, 335_141_888
DENSE = (
    "--set=compressors=[none]",
    "--set=gradients.iterations=1",
    "--set=gradients.workers=1",
    "--set=uncertainty.draws=0",
)
"""None changes what dense workers send."""


@pytest.mark.parametrize(
    ("name", "parameters", "workers", "gbit_per_s"),
    [
        # rates: what NCCL reaches on the link, `gcsim list links`
        ("resnet50_t4", RESNET50, 16, 9.41),
        ("resnet50_l4", RESNET50, 16, 15.0),
        ("vit_b16_a100", VIT, 64, 91.7),
        ("gpt2_a100", GPT2, 64, 91.7),
        ("bert_large_v100", BERT, 128, 15.0),
    ],
)
def test_dense_communication_is_a_ring_over_the_slowest_link(
    tmp_path: Path, name: str, parameters: int, workers: int, gbit_per_s: float
) -> None:
    shown = gcsim("run", name, "--json", "-q", *DENSE, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    largest = json.loads(shown.stdout)["rows"][-1]
    assert largest["workers"] == workers
    by_hand = 2 * (workers - 1) / workers * 4 * parameters / (gbit_per_s * 1e9 / 8)
    # latencies come on top
    assert by_hand <= largest["communication_s"] * 1.002
    assert largest["communication_s"] == pytest.approx(by_hand, rel=0.1)
