"""Does a scenario say how messages share links, and is it told where that changes nothing?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.scenario import Scenario
from gcsim.simulator.cluster import IN_ROUNDS
from gcsim.simulator.collectives.algorithms import ALGORITHMS
from gcsim.simulator.collectives.dispatch import carry_out

TEXT = """\
model: lenet
batch_size: 32
cluster:
  nodes: 4
  devices_per_node: 2
  device: p100_pcie
  network: 1gbe
  collectives: {all_reduce: halving_doubling, sharing: fluid}
compressors: [none]
"""


def load(tmp_path: Path, *overrides: str) -> Scenario:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return load_scenario(path, overrides)


def test_it_becomes_the_engines_own_value_and_reads_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fluid = load(tmp_path)
    assert fluid.cluster.collectives.sharing == "fluid"
    (tmp_path / "b.yaml").write_text(write(fluid.resolved), encoding="utf-8")
    assert load_scenario(tmp_path / "b.yaml").cluster == fluid.cluster
    assert not caplog.records
    counted = load(tmp_path, "cluster.collectives.sharing=counted")
    assert counted.cluster.collectives.sharing == "counted"
    assert (
        counted.cluster
        == load(tmp_path, "cluster.collectives={all_reduce: halving_doubling}").cluster
    )


def test_it_changes_what_a_late_rank_costs(tmp_path: Path) -> None:
    record = CollectiveRecord(kind="all_reduce", sent=(10**6,) * 8)
    late = np.array([0, 0, 0, 5 * 10**9, 0, 0, 0, 0], dtype=np.int64)
    fluid = load(tmp_path).cluster
    counted = load(tmp_path, "cluster.collectives.sharing=counted").cluster
    together = np.zeros(8, dtype=np.int64)
    assert (carry_out(record, together, fluid) == carry_out(record, together, counted)).all()
    assert (carry_out(record, late, fluid) != carry_out(record, late, counted)).any()


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"collectives.sharing = 'fair': is not a choice"):
        load(tmp_path, "cluster.collectives.sharing=fair")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (["cluster.nodes=1", "cluster.devices_per_node=1"], "so few workers never meet on a link"),
        (["cluster.nodes=2", "cluster.devices_per_node=1"], "so few workers never meet on a link"),
        (["cluster.nodes=1"], "so few workers never meet on a link"),
        (["cluster.nodes=1", "cluster.shared_bus=true"], ""),
        (["cluster.nodes=2", "cluster.devices_per_node=1", "cluster.network=wifi_802.11ac"], ""),
        (
            ["cluster.collectives.all_reduce=ring"],
            "but on all-to-alls and merges: all_reduce 'ring' and all_gather 'auto' (textbook) "
            "are not made of rounds",
        ),
        (["cluster.collectives={all_gather: bruck, sharing: fluid}"], ""),
        (["cluster.collectives={transport: mpich, sharing: fluid}"], ""),
        (["cluster.collectives={transport: gloo, sharing: fluid}"], "'auto' (gloo) are not made"),
    ],
)
def test_what_changes_nothing_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: list[str], warning: str
) -> None:
    load(tmp_path, *settings)
    said = [record.getMessage() for record in caplog.records]
    said = [message for message in said if "cluster.collectives.sharing" in message]
    assert len(said) == bool(warning)
    assert all("sharing = 'fluid' has no effect" in one and warning in one for one in said)


def test_the_algorithms_that_it_is_about_are_those_made_of_rounds() -> None:
    rooms = {
        (kind, name): (
            algorithm.carry_out.func
            if isinstance(algorithm.carry_out, partial)
            else algorithm.carry_out
        ).__module__.split(".")[-2]
        for (kind, name), algorithm in ALGORITHMS.items()
    }
    chosen = {way: room for way, room in rooms.items() if way[0] in {"all_reduce", "all_gather"}}
    assert {name for (_, name), room in chosen.items() if room == "rounds"} == IN_ROUNDS
    assert not {name for (_, name), room in chosen.items() if room != "rounds"} & IN_ROUNDS
    others = {kind for (kind, _), room in rooms.items() if room == "rounds"}
    assert others == {"all_reduce", "all_gather", "all_to_all", "tree_merge"}
