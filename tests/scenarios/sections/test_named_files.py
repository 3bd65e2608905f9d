"""Links and devices from files: what a scenario gets, where mistakes are, what it resolves to."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.running.keys import profile_key
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.sections.named_files import names_a_file
from gcsim.scenarios.sweeps.grid import points, read_grid
from tests.analysis.drawn import plain_row
from tests.scenarios.files import told

US = Fraction(1, 10**6)

SCENARIO = """\
model: lenet
batch_size: 8
cluster:
  nodes: [2, 4]
  devices_per_node: 2
  device: gpus/mine.yaml
  network: link.yaml
  intra_node: links.yml:bus
  nics: {1: {like: link.yaml, latency: 80 us}}
  racks: {nodes: 2, uplink: links.yml:slow}
  collectives: {transport: textbook, servers: 1 dedicated, server_network: link.yaml:mine}
compressors: [none]
"""
LINK = """\
links:
  mine: {bandwidth: 8 Gbit/s, latency: 33 us, overhead: 2 us, source: iperf3 and ping}
"""
LINKS = """\
links:
  slow: {like: 10gbe, latency: 20 us}
  slower: {like: slow, overhead: 3 us}
  bus: {bandwidth: 11 GB/s, latency: 9 us}
  cell: {trace: {file: cell.csv, after: repeat}, latency: 25 ms}
"""
DEVICE = """\
devices:
  mine: {like: v100, title: Mine, effective_flop_rate: 6.5 TFLOP/s}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario with its files; the user is somewhere else."""
    here = tmp_path / "scenario"
    (here / "gpus").mkdir(parents=True)
    (here / "a.yaml").write_text(SCENARIO, encoding="utf-8")
    (here / "link.yaml").write_text(LINK, encoding="utf-8")
    (here / "links.yml").write_text(LINKS, encoding="utf-8")
    (here / "cell.csv").write_text("seconds,mbit_per_second\n0,50\n1,20\n", encoding="utf-8")
    (here / "gpus" / "mine.yaml").write_text(DEVICE, encoding="utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return here


def load(folder: Path, *sets: str) -> Scenario:
    return load_scenario(folder / "a.yaml", sets)


def problems(folder: Path, *sets: str) -> list[str]:
    return told(folder, lambda: load(folder, *sets))


# --- what a scenario gets ------------------------------------------------------------------------


def test_every_setting_of_a_link_takes_a_file(folder: Path) -> None:
    cluster = load(folder).cluster
    network = cluster.network
    assert (network.name, network.bandwidth) == ("mine", Fraction(10**9))
    assert (network.latency, network.overhead) == (33 * US, 2 * US)
    assert (network.source, network.estimate) == ("iperf3 and ping", False)
    assert cluster.collectives.server_network == network
    assert cluster.intra_node.bandwidth == 11 * 10**9
    assert cluster.intra_node.source == "given in links.yml"
    assert cluster.racks is not None
    shipped = catalog.link("10gbe")
    uplink = cluster.racks.uplink
    assert (uplink.bandwidth, uplink.latency) == (shipped.bandwidth, 20 * US)
    assert uplink.source == f"latency stated in links.yml, the rest as 10gbe: {shipped.source}"


def test_a_link_like_one_of_a_file_says_what_was_changed(folder: Path) -> None:
    nic = load(folder).cluster.nics[1]
    assert (nic.bandwidth, nic.latency, nic.overhead) == (Fraction(10**9), 80 * US, 2 * US)
    assert nic.name == "mine, changed"
    assert nic.source == "latency stated in the scenario, the rest as mine: iperf3 and ping"
    one = load(folder, "cluster.network.latency=80 us").cluster.network
    assert one == nic


def test_an_entry_like_one_above_it(folder: Path) -> None:
    link = load(folder, f"cluster.network={folder}/links.yml:slower").cluster.network
    assert (link.latency, link.overhead) == (20 * US, 3 * US)


def test_a_trace_counts_from_the_links_file(folder: Path) -> None:
    link = load(folder, f"cluster.network={folder}/links.yml:cell").cluster.network
    assert link.trace is not None
    assert link.trace.rates == (Fraction(50 * 10**6, 8), Fraction(20 * 10**6, 8))


def test_a_device_of_a_file_is_the_catalogues_but_for_what_it_states(folder: Path) -> None:
    device = load(folder).cluster.device
    shipped = catalog.device("v100")
    assert (device.name, device.title) == ("mine", "Mine")
    assert device.effective_flop_rate == 6.5e12
    assert device.kernels == shipped.kernels
    assert device.measured == shipped.measured


def test_an_options_path_counts_from_where_the_user_is(folder: Path) -> None:
    Path("other.yaml").write_text(LINK.replace("33 us", "44 us"), encoding="utf-8")
    assert load(folder, "cluster.network=other.yaml").cluster.network.latency == 44 * US
    (found,) = problems(folder, "cluster.network=link.yaml")
    assert found == (
        "--set cluster.network: error: there is no file link.yaml; paths are relative to the "
        "scenario file's folder, with --set to the current one"
    )


def test_names_of_the_catalogue_are_no_files() -> None:
    for name in (*catalog.links(), *catalog.devices()):
        assert not names_a_file(name)
    assert names_a_file("a/b.yml")
    assert names_a_file("b.yaml:c")
    assert not names_a_file({"like": "b.yaml"})


# --- mistakes ------------------------------------------------------------------------------------


def test_mistakes_in_files_have_their_place_there_and_all_are_told(folder: Path) -> None:
    (folder / "link.yaml").write_text(LINK.replace("8 Gbit/s", "8"), encoding="utf-8")
    (folder / "gpus" / "mine.yaml").write_text(DEVICE.replace("v100", "v1000"), encoding="utf-8")
    found = problems(folder, "cluster.racks.nodes=0", "batch_size=-1")
    message = "link.yaml:2:21: error: links.mine.bandwidth: 8 has no unit; write it like "
    assert any(message in text for text in found)
    assert len([text for text in found if "has no unit" in text]) == 3  # wherever it is named
    assert any(
        "gpus/mine.yaml:2:16: error: devices.mine.like = 'v1000': no entry above has" in text
        for text in found
    )
    assert any(text.startswith("--set batch_size: ") for text in found)
    assert any(text.startswith("--set cluster.racks.nodes: ") for text in found)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("link.yaml\n  intra", "nothing.yaml\n  intra",
         "a.yaml:7:12: error: there is no file"),
        ("links.yml:bus", "links.yml", "a.yaml:8:15: error: "),
        ("links.yml:bus", "links.yml:bsu", "has no link 'bsu'; did you mean 'bus'?"),
        ("links.yml:bus", "gpus/mine.yaml", "gpus/mine.yaml:1:1: error: "),
        ("gpus/mine.yaml", "link.yaml", "link.yaml:1:1: error: "),
        ("like: link.yaml", "like: nothing.yml", "a.yaml:9:20: error: there is no file"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_what_it_should_be(
    folder: Path, before: str, after: str, message: str
) -> None:
    assert before in SCENARIO
    (folder / "a.yaml").write_text(SCENARIO.replace(before, after, 1), encoding="utf-8")
    assert any(message in text for text in problems(folder))


def test_several_entries_and_none_named(folder: Path) -> None:
    (found,) = problems(folder, f"cluster.network={folder}/links.yml")
    assert found.endswith(
        "links.yml has 4 links: slow, slower, bus, cell; name one: links.yml:slow"
    )


# --- a run as background -------------------------------------------------------------------------

BESIDE = """\
model: lenet
batch_size: 8
cluster: {nodes: 4, device: v100, network: {like: 10gbe, background: runs/one}}
compressors: [none]
"""


def stored(folder: Path, network: dict[str, str], *rows: Row) -> None:
    scenario = {"name": "one", "cluster": {"nodes": [2, 4], "network": network}}
    found = Result(scenario=scenario, provenance={}, rows=rows, wall={})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(found.to_json(), encoding="utf-8")


def row(label: str, nodes: int, communication_s: float) -> Row:
    found = replace(plain_row(label, 0.3), nodes=nodes, workers=nodes)
    return replace(found, compressor=label, communication_s=communication_s)


TEN = {"name": "10gbe", "bandwidth": "1.25 GB/s"}


def test_a_run_takes_its_share_of_the_network_at_its_largest_size(folder: Path) -> None:
    """0.1 s of communication in 0.3 s, each with half of the rate: 0.1 of 0.4 s."""
    stored(folder / "runs/one", TEN, row("none", 2, 0.05), row("none", 4, 0.1))
    (folder / "a.yaml").write_text(BESIDE, encoding="utf-8")
    scenario = load(folder)
    assert scenario.cluster.network.background == Fraction(1, 4)
    assert scenario.cluster == load(folder, "cluster.network.background=0.25").cluster
    again = folder / "b.yaml"
    again.write_text(write({**scenario.resolved}), encoding="utf-8")
    (folder / "runs/one/results.json").unlink()
    assert load_scenario(again).cluster == scenario.cluster


def test_of_several_methods_one_is_named(folder: Path) -> None:
    stored(folder / "runs/one", TEN, row("none", 4, 0.3), row("topk", 4, 0.1))
    (folder / "a.yaml").write_text(BESIDE, encoding="utf-8")
    (found,) = problems(folder)
    assert found == (
        f"a.yaml:3:70: error: {folder}/runs/one has none, topk; name one method: runs/one:none"
    ).replace(f"{folder}/", "")
    one = load(folder, f"cluster.network.background={folder}/runs/one:none").cluster.network
    assert one.background == Fraction(1, 2)  # it sends all the time


@pytest.mark.parametrize(
    ("network", "sent", "before", "after", "message"),
    [
        (TEN, row("none", 4, 0.1), "runs/one", "runs/two", "there is no results.json in runs/two;"),
        (TEN, row("none", 4, 0.1), "runs/one", "runs/one:topk", "has none, no 'topk'; name one"),
        (TEN, row("none", 1, 0.1), "", "", "none of runs/one sends nothing between nodes; name a"),
        (TEN, row("none", 4, 0.0), "", "", "none of runs/one sends nothing between nodes; name a"),
        (TEN, row("none", 4, 0.1), "10gbe", "25gbe",
         "runs/one is of another network: 1.25 GB/s, here 3125 MB/s; name a run on this"),
        ({"name": "x"}, row("none", 4, 0.1), "", "",
         "runs/one is of another network: a trace, here 1.25 GB/s; name a run on this"),
    ],
)  # fmt: skip
def test_a_run_that_is_no_background_here(
    folder: Path, network: dict[str, str], sent: Row, before: str, after: str, message: str
) -> None:
    stored(folder / "runs/one", network, sent)
    (folder / "a.yaml").write_text(BESIDE.replace(before, after), encoding="utf-8")
    (found,) = problems(folder)
    assert found.startswith("a.yaml:3:70: error: ")
    assert message in found.replace("../scenario/", "")


# --- what resolves -------------------------------------------------------------------------------


def test_the_resolved_scenario_loads_to_the_same_values_without_the_links_files(
    folder: Path, tmp_path: Path
) -> None:
    scenario = load(folder)
    assert scenario.files == {
        "cluster.network": str(folder / "link.yaml"),
        "cluster.intra_node": str(folder / "links.yml"),
        "cluster.racks.uplink": str(folder / "links.yml"),
        "cluster.collectives.server_network": str(folder / "link.yaml"),
        "cluster.device": str(folder / "gpus" / "mine.yaml"),
        "cluster.nics.1": str(folder / "link.yaml"),
    }
    again = tmp_path / "resolved.yaml"
    again.write_text(write({**scenario.resolved}), encoding="utf-8")
    (folder / "link.yaml").unlink()
    (folder / "links.yml").unlink()
    loaded = load_scenario(again)
    assert loaded.cluster == scenario.cluster
    assert replace(loaded, files={}, name="") == replace(scenario, files={}, name="")
    assert loaded.resolved == scenario.resolved


def test_a_device_that_has_changed_since_is_refused(folder: Path, tmp_path: Path) -> None:
    scenario = load(folder)
    again = tmp_path / "resolved.yaml"
    again.write_text(write({**scenario.resolved}), encoding="utf-8")
    file = folder / "gpus" / "mine.yaml"
    file.write_text(DEVICE.replace("6.5", "6.6"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(again)
    (problem,) = caught.value.problems
    assert problem.message.endswith(f"{file}'s mine has changed since this scenario was resolved")
    assert problem.hint == f"write `device: {file}:mine` to use what it is now"
    file.unlink()
    with pytest.raises(InputError, match="there is no file"):
        load_scenario(again)


def test_profiles_do_not_depend_on_the_cluster(folder: Path) -> None:
    one = load(folder)
    other = load(folder, "cluster.network=10gbe", "cluster.device=p100_pcie")
    assert profile_key(one, one.compressors[0]) == profile_key(other, other.compressors[0])


def test_a_sweep_over_files(folder: Path) -> None:
    for name, latency in (("a", 10), ("b", 20)):
        Path(f"{name}.yaml").write_text(LINK.replace("33 us", f"{latency} us"), encoding="utf-8")
    found = points(folder / "a.yaml", read_grid(["cluster.network=a.yaml,b.yaml,10gbe"]))
    assert [point.scenario.cluster.network.latency / US for point in found] == [10, 20, 50]
    assert [point.values["cluster.network"] for point in found] == ["a.yaml", "b.yaml", "10gbe"]
    with pytest.raises(
        InputError, match=r"--grid cluster\.network=c\.yaml: error: there is no file"
    ):
        points(folder / "a.yaml", read_grid(["cluster.network=a.yaml,c.yaml"]))
