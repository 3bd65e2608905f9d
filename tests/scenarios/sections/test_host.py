"""What stands under `cluster.host` arrives, reads back, costs time, and is refused if wrong."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.sections.transports import few_cores
from gcsim.simulator.collectives.dispatch import execute
from gcsim.simulator.host import Host
from tests.scenarios.files import load, reread

TEXT = """\
model: lenet
batch_size: 32
cluster:
  nodes: 4
  device: p100_pcie
  network: 1gbe
  collectives: {transport: gloo, host_staging: false}
  host: {cores: 2, per_message: 250 us, per_byte: 0.4 ns}
compressors: [none]
"""
FEW_CORES = few_cores("gloo") or Host()


def test_it_becomes_the_engines_own_value_and_reads_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = load(tmp_path, TEXT)
    assert scenario.cluster.host == replace(
        FEW_CORES,
        cores=2,
        per_message=Fraction(1, 4000),
        per_message_range=None,
        per_byte=Fraction(4, 10**10),
        per_byte_range=None,
    )
    full = load(
        tmp_path,
        TEXT,
        "cluster.host={cores: 3, per_message: 1 us, per_byte: 2 ps, per_call: 3 ms, "
        "per_copied_byte: 1.5 ns, in_flight: 5, ranks: all}",
    )
    for one in (scenario, full):
        assert one.cluster.host is not None
        assert reread(tmp_path, one).cluster == one.cluster
    assert not caplog.records


def test_without_it_nothing_is_said_of_it_and_recorded_traffic_is_shared(tmp_path: Path) -> None:
    with_host = load(tmp_path, TEXT)
    without = load(tmp_path, TEXT, "cluster.host=none")
    assert without.cluster.host is None
    assert "per_message" not in write(without.resolved)
    choice = without.compressors[0]
    assert profile_key(with_host, choice) == profile_key(without, choice)


def test_messages_cost_processor_time(tmp_path: Path) -> None:
    """48 messages of four ranks on cores of their own: 12 ends a rank each way, 3 ms of work."""
    free_rest = ("per_byte", "per_call", "per_copied_byte", "per_received_byte", "dispatch")
    settings = [f"cluster.host.{price}=0 s" for price in free_rest]
    cluster = load(tmp_path, TEXT, *settings).cluster
    free = load(tmp_path, TEXT, "cluster.host=none").cluster
    record = CollectiveRecord(kind="all_reduce", sent=(64,) * 4, element=4)
    entry = np.zeros(4, dtype=np.int64)
    network = int(execute(record, entry, free).max())
    host = cluster.host
    assert host is not None
    assert int(execute(record, entry, cluster).max()) == host.combined_time(network, 3 * 10**9)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("{cores: 0, per_message: 1 us}", "cluster.host.cores = 0: must be at least 1"),
        ("{dispatch_range: [1 us, 2 us]}", "dispatch_range is given without dispatch"),
        ("{dispatch: 1 us, dispatch_range: [1 us]}", "cluster.host.dispatch_range"),
        ("{cores: 2, per_message: 5}", "cluster.host.per_message"),
        ("{cores: 2, per_message: -1 us}", "cluster.host.per_message"),
        ("{cores: 2, per_message: 1 us, in_flight: 65}", "must be at most 64"),
        ("{cores: 2, per_message: 1 us, ranks: some}", "is not a choice"),
        ("{cores: 2, per_message: 1 us, threads: 2}", "unknown key 'threads'"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, TEXT, f"cluster.host={setting}")
    assert any(message in str(problem) for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (["cluster.nodes=1"], "cluster.host has no effect: one worker alone sends nothing"),
        (
            ["cluster.collectives={transport: nccl}", "cluster.host={cores: 2, per_message: 0 s}"],
            "cluster.host has no effect: nothing costs any time",
        ),
        (
            ["cluster.host.per_copied_byte=1 ns", "cluster.collectives.transport=nccl"],
            "cluster.host.per_copied_byte has no effect: only Gloo's all-gather copies",
        ),
        (
            ["cluster.host=bare_metal", "cluster.collectives.transport=nccl"],
            "cluster.host = 'bare_metal' has no effect: this transport's messages cost",
        ),
        (
            ["training.concurrent_collectives=2"],
            "training.concurrent_collectives = 2 has no effect: with cluster.host, collectives run",
        ),
        (
            ["cluster.host.ranks=all", "cluster.nodes=1", "cluster.devices_per_node=2"],
            "cluster.host.ranks = 'all' has no effect: there is only one machine",
        ),
    ],
)
def test_what_changes_nothing_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: list[str], warning: str
) -> None:
    load(tmp_path, TEXT, *settings)
    assert any(warning in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ((), {"forward", "backward", "encode", "decode"}),
        (("training.optimizer=1 ms",), {"forward", "backward", "encode", "decode", "optimizer"}),
        (("compute={forward: 1 ms, backward: 2 ms}",), {"encode", "decode"}),
        (("training.on_host=[]",), set()),
        (("training.on_host=[encode]",), {"encode"}),
        (("cluster.host.cores=4",), set()),
        (("cluster.device=p100_pcie",), set()),
    ],
)
def test_ranks_of_a_cpu_with_fewer_cores_share_them_unless_it_is_stated(
    tmp_path: Path, settings: tuple[str, ...], kinds: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = TEXT.replace("p100_pcie", "cpu_2core").replace("cores: 2,", "cores: 2, ranks: all,")
    scenario = load(tmp_path, text, *settings)
    assert scenario.training.on_host == kinds
    assert reread(tmp_path, scenario).training == scenario.training
    assert not [text for text in caplog.messages if "on_host" in text]
