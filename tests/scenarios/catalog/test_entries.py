"""The catalogue: every number has a source, and derived numbers agree with their derivation."""

import copy
import dataclasses
import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import pytest

from gcsim.compressors.kernels import KERNEL_CLASSES
from gcsim.scenarios import catalog
from gcsim.simulator.cluster import TransportName
from gcsim.simulator.network.links import Jitter, Loss, SizeFactor, Uplink
from gcsim.simulator.network.rate_trace import RateTrace
from tests.scenarios.files import told


def problems(read: str, tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    reading = catalog.read_links if read == "links" else catalog.read_devices
    return told(tmp_path, lambda: reading(path))


@pytest.mark.parametrize("name", sorted(catalog.devices()))
def test_a_device_prices_every_kernel_class_and_names_its_sources(name: str) -> None:
    device = catalog.device(name)
    assert set(device.kernels) == set(KERNEL_CLASSES)
    assert len(device.source) > 40
    assert device.effective_flop_rate > 1e9
    for kind, rate in device.kernels.items():
        assert rate.source
        assert 0 <= rate.launch < 1e-3
        assert kind == "host_sync" or rate.bandwidth is not None
        assert (rate.flop_rate is not None) == (kind == "matmul")
        if rate.estimate:  # a guess says how wrong it may be
            assert rate.launch_range or rate.bandwidth_range or rate.flop_rate_range, (name, kind)
        # A range stands in its own field, and nowhere in words.
        assert not re.search(r"[Rr]ange \d", rate.source), (name, kind)
    for training in device.training.values():
        assert training.source
        assert training.fixed >= 0
        assert training.per_sample > 0


@pytest.mark.parametrize("name", sorted(catalog.devices()))
def test_a_device_lies_within_its_own_ranges(name: str) -> None:
    device = catalog.device(name)
    assert device.effective_flop_rate_range is not None
    low, high = device.effective_flop_rate_range
    assert low < device.effective_flop_rate < high
    for rate in device.kernels.values():
        for field in ("launch", "bandwidth", "flop_rate"):
            bounds = getattr(rate, f"{field}_range")
            if bounds is not None:
                assert bounds[0] <= getattr(rate, field) <= bounds[1], (name, field)
                assert bounds[0] < bounds[1], (name, field)


@pytest.mark.parametrize("name", sorted(catalog.links()))
def test_a_link_names_its_source(name: str) -> None:
    link = catalog.link(name)
    assert link.name == name
    assert len(link.source) > 40
    assert link.bandwidth > 0
    assert 0 < link.efficiency <= 1
    radio = link.shared or link.up is not None
    assert 0 < link.latency < Fraction(1, 50 if radio else 1000)
    if link.up is not None:
        assert "ssumed" in link.source  # no uplink was measured
        assert link.latency < link.up.latency < Fraction(1, 10)


def test_whether_a_link_is_an_estimate_is_a_field_and_no_words_of_its_source() -> None:
    assert catalog.link("10gbe").estimate
    assert not catalog.link("pcie3_x16").estimate  # measured: 12.15 GB/s
    assert not any(link.source.startswith("estimate") for link in catalog.links().values())
    for link in catalog.links().values():
        if "assumed" in link.source and link.name != "pcie3_x16":  # there only the latency is
            assert link.estimate, link.name


FAMILIES = (
    ("1gbe", "10gbe", "25gbe", "40gbe", "50gbe", "100gbe", "200gbe", "400gbe"),
    ("25gbe_roce", "40gbe_roce", "100gbe_roce", "200gbe_roce", "400gbe_roce"),
    ("efa_50gb", "efa_100gb", "efa_400gb"),
    tuple(f"infiniband_{rate}" for rate in ("qdr", "fdr", "edr", "hdr", "ndr")),
    *(
        tuple(f"pcie{number}_{key_path}" for number in (3, 4, 5))
        for key_path in ("x16", "peer", "host")
    ),
    ("nvlink1", "nvlink2", "nvlink3", "nvlink4"),
)
TRANSPORTS: tuple[TransportName | None, ...] = (None, *get_args(TransportName))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family[0])
def test_a_faster_link_is_no_slower(family: tuple[str, ...], transport: TransportName) -> None:
    """Of one kind, as one transport finds it: goodput rises with the line rate, latency does not,
    and so do both ends of what they may be."""
    for slow, fast in itertools.pairwise(catalog.link(name, transport) for name in family):
        assert slow.bandwidth < fast.bandwidth
        assert slow.rate < fast.rate, (slow.name, fast.name)
        assert slow.latency >= fast.latency, (slow.name, fast.name)
        pairs = [one.efficiency_range or (one.efficiency,) * 2 for one in (slow, fast)]
        for one, other in zip(*pairs, strict=True):
            assert one * slow.bandwidth <= other * fast.bandwidth, (slow.name, fast.name)
        assert slow.latency_range is not None
        assert fast.latency_range is not None
        assert slow.latency_range >= fast.latency_range


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_not_measured_on_a_link_has_a_range(transport: TransportName) -> None:
    for name, link in catalog.links(transport).items():
        assert len(link.source) > 40
        bounds = (link.latency_range, link.efficiency_range)
        if name.endswith("_ideal") or link.up is not None or link.factors or name == "host_memory":
            continue  # a bound; figures of two ways; SimGrid's
        if link.estimate or "ssumed" in link.source:
            assert any(bounds), name
        # A range stands in its own field, and nowhere in words.
        assert not re.search(r"[Rr]ange \d", link.source), name


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_ethernet_may_give_more_than_its_line_rate(transport: TransportName) -> None:
    known = catalog.links(transport)
    ethernets = {name: known[name] for name in known if re.match(r"\d+gbe", name)}
    assert len(ethernets) > 10
    for name, link in ethernets.items():
        assert link.efficiency_range is None or link.efficiency_range[1] <= 1, name


def test_no_transport_reaches_more_over_tcp_than_another_with_more_connections() -> None:
    for name in FAMILIES[0]:
        gloo, nccl = (catalog.link(name, transport) for transport in ("gloo", "nccl"))
        assert gloo.rate <= nccl.rate <= catalog.link(name).rate
        assert gloo.latency >= nccl.latency


def test_the_two_ways_between_gpus_lie_in_what_is_said_where_the_way_is_unknown() -> None:
    """The default of `cluster.intra_node` with NCCL: between host memory and peer access."""
    for number in (3, 4, 5):
        unknown = catalog.link(f"pcie{number}_x16", "nccl")
        host, peer = (catalog.link(f"pcie{number}_{key_path}") for key_path in ("host", "peer"))
        assert host.rate < unknown.rate < peer.rate < catalog.link(f"pcie{number}_x16").rate
        assert unknown.efficiency_range is not None
        low, high = (end * unknown.bandwidth for end in unknown.efficiency_range)
        assert low <= host.rate * Fraction(101, 100)
        assert peer.rate <= high


IDEAL = sorted(name for name in catalog.links() if name.endswith("_ideal"))


@pytest.mark.parametrize("name", IDEAL)
def test_an_ideal_link_is_the_line_rate_of_a_calibrated_one(name: str) -> None:
    # An ideal link is a bound: all of the line rate, and nobody measured it.
    ideal = catalog.link(name)
    real = catalog.link(name.removesuffix("_ideal"))
    assert ideal.efficiency == 1
    assert ideal.estimate
    assert "an upper bound that no link reaches" in " ".join(ideal.source.split())
    assert real.rate < ideal.rate
    assert real.latency == ideal.latency
    assert not any((ideal.factors, ideal.jitter, ideal.loss, ideal.background))
    if real.efficiency != 1:  # else the bandwidth is what was measured, not the line rate
        assert real.bandwidth == ideal.bandwidth


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_ideal_link_is_the_line_rate_for_every_transport(transport: TransportName) -> None:
    for name in IDEAL:
        ideal = catalog.link(name, transport)
        assert ideal.rate == ideal.bandwidth, name


def test_every_wire_has_an_ideal_variant_and_no_radio_has() -> None:
    for name, link in catalog.links().items():
        radio = link.shared or link.up is not None
        special = name in {"10gbe_gloo_cloud", "10gbe_smpi_factors", "100gbe_tcp", "host_memory"}
        special |= name.endswith(("_socket", "_across"))  # the line is that of pcieN_peer
        wanted = not (radio or special or name.endswith("_ideal"))
        assert (f"{name}_ideal" in IDEAL) == wanted, name


def test_links_that_scenarios_name_keep_their_numbers() -> None:
    # Goodput in Mbit/s, microseconds one way. TCP with time stamps leaves 1500 - 20 - 32 bytes of
    # data in 1500 + 14 + 4 + 8 + 12 on the wire.
    known: dict[str, tuple[Fraction | int, int]] = {
        "1gbe": (1_000 * Fraction(1448, 1538), 50),
        "1gbe_ideal": (1_000, 50),
        "10gbe": (10_000 * Fraction(1448, 1538), 50),
        "10gbe_ideal": (10_000, 50),
        "10gbe_gloo_cloud": (4_970, 120),  # one connection in EC2, measured from point to point
        "40gbe": (40_000 * Fraction(1448, 1538), 50),
        "100gbe_tcp": (18_000, 50),
        "100gb_infiniband": (45_000, 5),
        "pcie3_x16": (97_200, 10),
        "pcie4_x16": (194_400, 10),
        "host_memory": (67_200, 1),
    }
    for name, (rate, latency) in known.items():
        link = catalog.link(name)
        assert link.rate * 8 == rate * 10**6, name
        assert link.latency == Fraction(latency, 10**6), name


def test_links_reach_what_their_sources_measured() -> None:
    # NVIDIA/nccl issue 1264 and NVIDIA/nccl-tests issue 149: bytes a second, one direction.
    assert catalog.link("nvlink4").rate == 374 * 10**9
    assert catalog.link("nvlink3").rate == 230 * 10**9
    # TransferBench, 8 MI300X (ROCm blogs): least and most bytes a second of a GPU's seven links.
    assert 315.664e9 < catalog.link("xgmi").rate < 319.297e9
    # iperf, Jeff Geerling: 44.5 Mbit/s over the air, 94.4 Mbit/s over the cable.
    wifi = catalog.link("wifi_802.11n")
    assert wifi.shared
    assert wifi.rate * 8 == 44_500_000
    assert catalog.link("100mbit_ethernet").rate * 8 == 94_400_000
    # uccmisl/5Gdataset: median and mean of the downlink.
    down = {name: catalog.link(name).rate * 8 for name in ("5g_measured", "5g_measured_mean")}
    assert down == {"5g_measured": 29_750_000, "5g_measured_mean": 66_900_000}
    # mlbench, tc_cluster_setting; ddl-benchmarks; nccl issue 209.
    assert catalog.link("10gbe", "gloo").latency == Fraction(120, 10**6)
    assert catalog.link("100gbe", "nccl").rate == catalog.link("100gbe_tcp").rate
    low, high = catalog.link("25gbe", "nccl").efficiency_range or (0, 0)
    assert low <= Fraction(145, 10 * 32)
    assert high == Fraction(98, 100)


def test_copies_reach_what_their_sources_measured() -> None:
    # samuel-bohman/AI-benchmarking-guide, Azure_Results: copy and dot product, TB/s; an A100's copy
    # (Azure/AI-benchmarking-guide) is slower than the catalogue's and within its range.
    measured = {"h100_sxm": (2.90, 3.18), "h200": (4.01, 4.48), "mi300x": (4.11, 3.87)}
    for name, rates in measured.items():
        kernels = catalog.device(name).kernels
        found = [kernels[kind].bandwidth for kind in ("streaming", "reduction")]
        assert found == pytest.approx([rate * 1e12 for rate in rates]), name
        assert not kernels["streaming"].estimate
    low, high = catalog.device("a100_sxm_80gb").kernels["streaming"].bandwidth_range or (0, 0)
    assert low < 1.61e12 < high


def test_a_gpus_thin_products_read_memory_as_fast_as_its_copies() -> None:
    for name, device in catalog.devices().items():
        if device.processor == "gpu":
            kernels = device.kernels
            assert kernels["matmul"].bandwidth == kernels["streaming"].bandwidth, name


def test_the_papers_5g_has_the_same_rate_in_both_directions() -> None:
    link = catalog.link("5g_50mbit")
    assert link.up is not None
    assert link.bandwidth == link.up.bandwidth == 50_000_000 // 8
    measured = catalog.link("5g_measured").up
    assert measured is not None
    assert measured.grant == Fraction(25, 10_000)


def test_the_size_factors_are_simgrids() -> None:
    # The defaults of smpi/bw-factor and smpi/lat-factor as SimGrid's source has them.
    bandwidth = (
        "65472:0.940694;15424:0.697866;9376:0.58729;5776:1.08739;3484:0.77493;"
        "1426:0.608902;732:0.341987;257:0.338112;0:0.812084"
    )
    latency = (
        "65472:11.6436;15424:3.48845;9376:2.59299;5776:2.18796;3484:1.88101;"
        "1426:1.61075;732:1.9503;257:1.95341;0:2.01467"
    )
    tables = [
        {int(size): Fraction(text) for size, text in (p.split(":") for p in table.split(";"))}
        for table in (bandwidth, latency)
    ]
    link = catalog.link("10gbe_smpi_factors")
    reached = {size: min(part, 1) for size, part in tables[0].items()}  # no flow beats its link
    assert {f.from_bytes: f.bandwidth for f in link.factors} == reached
    assert {f.from_bytes: f.latency for f in link.factors} == tables[1]
    assert link.latency_for(65472) == round(50_000_000 * tables[1][65472])  # picoseconds
    assert link.latency_for(65471) == round(50_000_000 * tables[1][15424])


def test_the_p100_alexnet_rate_is_the_measured_one_split_as_stated() -> None:
    # 512 images in 512/2987 s; fixed = 8.9 samples' time (fits: V100 8.95, K80 8.85).
    sxm2 = catalog.device("p100_sxm2").training["alexnet"]
    assert sxm2.fixed + 512 * sxm2.per_sample == pytest.approx(512 / 2987, rel=1e-4)
    assert sxm2.fixed / sxm2.per_sample == pytest.approx(8.9, rel=1e-3)
    pcie = catalog.device("p100_pcie").training["alexnet"]
    for field in ("fixed", "per_sample"):
        assert getattr(pcie, field) == pytest.approx(getattr(sxm2, field) * 10.6 / 9.3, rel=1e-4)
    assert pcie.fixed + 32 * pcie.per_sample == pytest.approx(15.34e-3, rel=1e-4)
    assert catalog.device("p100_pcie").effective_flop_rate == pytest.approx(
        catalog.device("p100_sxm2").effective_flop_rate * 9.3 / 10.6, rel=1e-3
    )


def test_the_measured_selection_and_sort_on_a_p100_are_reproduced() -> None:
    # pytorch issue 22812: 2,000,000 float32, k = 1000: topk 25.576 ms, sort 3.197 ms (PyTorch 1.1).
    old = catalog.device("p100_pcie_pytorch1").kernels
    moved = 4 * 2_000_000 + 12 * 1000
    selection, sort = old["selection"], old["sort"]
    assert selection.bandwidth is not None
    assert sort.bandwidth is not None
    assert selection.launch + moved / selection.bandwidth == pytest.approx(25.576e-3, rel=1e-2)
    moved = (4 + 4 + 8) * 2_000_000
    assert sort.launch + moved / sort.bandwidth == pytest.approx(3.197e-3, rel=2e-2)


def test_an_entry_takes_over_what_it_does_not_give() -> None:
    new, old = catalog.device("p100_pcie"), catalog.device("p100_pcie_pytorch1")
    changed = {kind for kind in KERNEL_CLASSES if new.kernels[kind] != old.kernels[kind]}
    assert changed == {"selection"}
    assert old.training == new.training
    assert old.measured == new.measured
    assert old.layer_times == new.layer_times
    assert old.title != new.title
    assert not catalog.device("v100").training  # `training: null` takes over nothing


def test_a_fingerprint_changes_with_any_number() -> None:
    for entries in (catalog.devices(), catalog.links()):
        found = {catalog.fingerprint(entry) for entry in entries.values()}
        assert len(found) == len(entries)
    assert catalog.fingerprint(catalog.device("v100")) == catalog.fingerprint(
        catalog.device("v100")
    )


def changed(value: Any) -> Iterator[Any]:
    """Copies of a dataclass with another field each, of its own and of its parts."""
    for field in dataclasses.fields(value):
        below = getattr(value, field.name)
        first = below[0] if isinstance(below, tuple) and below else below
        parts = changed(first) if dataclasses.is_dataclass(first) else iter(())
        for other in ("other", *((part,) if first is not below else part for part in parts)):
            copied = copy.copy(value)
            object.__setattr__(copied, field.name, other)
            yield copied


def test_a_links_fingerprint_changes_with_every_field() -> None:
    half = Fraction(1, 2)
    trace = RateTrace(times=(Fraction(0),), rates=(half,), duration=Fraction(1), after="hold")
    link = dataclasses.replace(
        catalog.link("10gbe"),
        factors=(SizeFactor(from_bytes=1),), trace=trace, up=Uplink(bandwidth=half, latency=half),
        jitter=(Jitter(distribution="pareto", mean=half, shape=Fraction(2)),),
        loss=Loss(rate=half, model="sampled"), efficiency_range=None,
    )  # fmt: skip
    variants = [link, *changed(link)]
    assert len({catalog.fingerprint(each) for each in variants}) == len(variants)


def test_a_wrong_link_entry_is_named_with_its_place(tmp_path: Path) -> None:
    text = (
        "links:\n  a: {bandwidth: 1 gb, latency: 1 us, estimate: true, source: x}\n  b: {like: c}\n"
    )
    found = problems("links", tmp_path, text)
    assert found[0].startswith("c.yaml:2:18: error: links.a.bandwidth: unknown unit 'gb'")
    assert "c.yaml:3:13: error: links.b.like = 'c': no entry above has that name" in found


def test_a_link_takes_over_what_it_does_not_give(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "links:\n"
        "  a: {bandwidth: 8 Mbit/s, latency: 1 ms, efficiency: 0.5, estimate: true, source: x,\n"
        "      up: {bandwidth: 1 MB/s, latency: 2 ms, grant: 1 ms}}\n"
        "  b: {like: a, up: {grant: 0 s}, source: y}\n"
        "  c: {like: a, trace: {file: c.csv, after: hold}, up: null, estimate: false}\n"
    )
    (tmp_path / "c.csv").write_text("seconds,byte_per_second\n0,7\n")
    a, b, c = catalog.read_links(path).values()
    assert a.up == Uplink(
        bandwidth=Fraction(10**6), latency=Fraction(2, 1000), grant=Fraction(1, 1000)
    )
    assert (b.up, b.source, b.estimate) == (
        Uplink(bandwidth=Fraction(10**6), latency=Fraction(2, 1000)), "y", True
    )  # fmt: skip
    assert (b.bandwidth, b.efficiency) == (a.bandwidth, a.efficiency)
    assert c.trace is not None
    assert c.rate == 7
    assert c.efficiency == 1
    assert (c.up, c.source, c.estimate) == (None, "x", False)


def test_a_links_new_keys_are_checked_in_the_catalogue_too(tmp_path: Path) -> None:
    entry = "{bandwidth: 1 Gbit/s, latency: 1 us, estimate: true, source: x, KEY}"
    for key, expected in (
        ("background: 2", "c.yaml:2:82: error: links.a.background: 2 must be at least 0 and"),
        ("lik: b", "error: unknown key 'lik' in links.a"),
        ("name: b", "error: unknown key 'name' in links.a"),
        ("factors: [{from: 1}]", "links.a.factors.0.from: 1 has no unit"),
    ):
        (found,) = problems("links", tmp_path, f"links:\n  a: {entry.replace('KEY', key)}\n")
        assert expected in found
    traced = "links:\n  a: {trace: {file: no.csv, after: hold}, latency: 1 us, estimate: true, "
    (found,) = problems("links", tmp_path, traced + "source: x}\n")
    assert "c.yaml:2:21: error: links.a.trace.file: there is no file" in found


def test_a_transports_own_figures_replace_the_others_and_bring_their_range(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "links:\n"
        "  a: {bandwidth: 8 Mbit/s, latency: 1 ms, latency_range: [0 s, 2 ms], efficiency: 0.9,\n"
        "      efficiency_range: [0.8, 1], estimate: true, source: x,\n"
        "      transports: {gloo: {latency: 3 ms, source: y},\n"
        "                   nccl: {efficiency: 0.5, efficiency_range: [0.4, 0.6], source: z}}}\n"
        "  b: {like: a, transports: {nccl: {overhead: 1 us, source: v}}}\n"
        "  c: {like: a, transports: null}\n"
    )
    found = {of: catalog.read_links(path, of) for of in (None, "gloo", "nccl", "mpich")}
    a = found[None]["a"]
    assert found["mpich"]["a"] == a
    assert found["gloo"]["a"] == a.exactly(latency=Fraction(3, 1000), source="gloo: y Others: x")
    half = Fraction(1, 2)
    bounds = (Fraction(4, 10), Fraction(6, 10))
    source = "nccl: z Others: x"
    assert found["nccl"]["a"] == a.exactly(efficiency=half, efficiency_range=bounds, source=source)
    assert found["gloo"]["b"].latency == Fraction(3, 1000)
    assert found["nccl"]["b"].efficiency == a.efficiency, "a transport's figures come together"
    assert all(found[of]["c"] == found[None]["c"] for of in ("gloo", "nccl"))


def test_a_wrong_figure_of_a_transport_is_named_with_its_place(tmp_path: Path) -> None:
    start = "links:\n  a: {bandwidth: 1 Gbit/s, latency: 1 us, estimate: true, source: x,\n"
    for entry, said in (
        ("{glo: {source: y}}", "unknown key 'glo' in links.a.transports; did you mean 'gloo'?"),
        ("{gloo: {latency: 1 us}}", "key 'source' is missing in links.a.transports.gloo"),
        ("{gloo: {latency: 1 us, latency_range: [2 us, 3 us], source: y}}", "latency lies outside"),
        (
            "{gloo: {latency_range: [2 us, 3 us], source: y}}",
            "latency_range is given without latency",
        ),
    ):
        (found,) = problems("links", tmp_path, f"{start}      transports: {entry}}}\n")
        assert found.startswith("c.yaml:3:")
        assert said in found


def test_a_number_without_a_source_is_refused(tmp_path: Path) -> None:
    text = "links:\n  a: {bandwidth: 1 Gbit/s, latency: 1 us, estimate: true}\n"
    assert problems("links", tmp_path, text) == [
        "c.yaml:2:3: error: key 'source' is missing in links.a; "
        "write source: where the figure is from"
    ]


def test_a_device_without_a_kernel_class_is_refused(tmp_path: Path) -> None:
    text = (
        "devices:\n  d:\n    title: t\n    source: s\n    effective_flop_rate: 1 TFLOP/s\n"
        "    kernels:\n      sort: {launch: 1 us, bandwidth: 1 GB/s, estimate: true, source: s}\n"
    )
    (found,) = problems("devices", tmp_path, text)
    assert found.startswith("c.yaml:6:5: error: devices.d.kernels has no rate for: streaming, ")
    (found,) = problems("devices", tmp_path, text.replace("sort:", "sorting:"))
    assert found == (
        "c.yaml:7:7: error: unknown key 'sorting' in devices.d.kernels; did you mean 'sort'?"
    )


def test_host_prices_of_metered_kernels_are_read_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rate = "{launch: 9 us, source: s}"
    path = tmp_path / "old.yaml"
    path.write_text(
        f"devices:\n  d:\n    like: v100\n    host: {{kernel: {rate}, operator: {rate}}}\n"
    )
    found = catalog.read_devices(path, like_shipped=True)["d"]
    assert found.host == catalog.device("v100").host
    assert f"{path}:4:5: warning: an earlier gcsim's prices of metered kernels" in caplog.text
    path.write_text(path.read_text().replace("operator:", f"wait: {rate}, operator:"))
    assert catalog.read_devices(path, like_shipped=True)["d"].host["wait"].launch == 9e-6


def test_the_bus_of_a_device_is_a_link() -> None:
    """Of boards with NVLink (SXM), its generation; PCIe boards like them state their own."""
    for name, device in catalog.devices().items():
        assert device.bus is None or device.bus in catalog.links(), name
    assert catalog.device("v100").bus == "nvlink2"
    assert catalog.device("v100_pcie").bus is None
    assert catalog.device("h200").bus == catalog.device("h100_sxm").bus == "nvlink4"
    assert catalog.device("mi300x").bus == "xgmi"
    for name in ("rtx_2080_ti", "rtx_4090"):  # no peer access: nccl-tests issue 117
        assert str(catalog.device(name).bus).endswith("_host"), name


def test_a_device_has_the_memory_that_its_title_names() -> None:
    known = catalog.devices()
    named = {name: re.search(r"(\d+) GB\b", device.title) for name, device in known.items()}
    sizes = {name: int(found[1]) << 30 for name, found in named.items() if found}
    assert {name: known[name].memory for name in sizes} == sizes
    assert {"v100", "v100_sxm_32gb", "a100_sxm_40gb", "h20"} <= sizes.keys()
