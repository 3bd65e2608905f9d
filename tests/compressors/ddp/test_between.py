"""Compression between nodes under DDP: two nodes of two ranks on loopback give what lockstep gives
for two workers with the nodes' mean gradients, bit for bit (a sum of two is one in any order)."""

from __future__ import annotations

from pathlib import Path

import pytest

import gcsim
from gcsim.errors import InputError
from tests.compressors.ddp.plan import (
    STEPS,
    each_exchange,
    gradients,
    in_lockstep,
    layouts_of,
    same_bits,
    start_ranks,
)


@pytest.mark.long
def test_updates_equal_lockstep_of_the_nodes(tmp_path: Path) -> None:
    (found,) = start_ranks(tmp_path, 4, "between_nodes", timeout=300)
    given = [
        [
            [one / 2 + other / 2 for one, other in zip(*pair, strict=True)]
            for pair in [[gradients(step + 1, 2 * node + r) for r in range(2)] for node in range(2)]
        ]
        for step in range(STEPS)
    ]
    for case, (name, parameters) in enumerate(each_exchange()):
        layouts = layouts_of(found[0][case]["buckets"])
        for step, updates in enumerate(in_lockstep(name, parameters, layouts, given)):
            for rank in range(4):
                got = found[rank][case]["updates"][step + 1]
                pairs = zip(got, updates[rank // 2], strict=True)
                assert all(same_bits(*pair) for pair in pairs), f"{name}, step {step}, rank {rank}"


def test_ranks_per_node_are_named_or_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="devices_per_node: error: is unknown"):
        gcsim.ddp_hook("topk", between="nodes")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    gcsim.ddp_hook("topk", between="nodes")
