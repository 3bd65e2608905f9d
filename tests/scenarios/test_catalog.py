"""The catalogue: every number has a source, and derived numbers agree with their derivation."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.compressors.kernels import KERNEL_CLASSES
from gcsim.errors import InputError
from gcsim.scenarios import catalog


def problems(read: str, tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        catalog.read_links(path) if read == "links" else catalog.read_devices(path)
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]


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
        if rate.estimate:
            # A guess says how wrong it may be, or whose figure it takes.
            assert re.search(r"Range|range|As |Not above|scaled", rate.source), (name, kind)
    for training in device.training.values():
        assert training.source
        assert training.fixed >= 0
        assert training.per_sample > 0


@pytest.mark.parametrize("name", sorted(catalog.links()))
def test_a_link_names_its_source(name: str) -> None:
    link = catalog.link(name)
    assert len(link.source) > 20
    assert link.bandwidth > 0
    assert 0 < link.efficiency <= 1
    assert 0 < link.latency < Fraction(1, 1000)


def test_whether_a_link_is_an_estimate_is_a_field_and_no_words_of_its_source() -> None:
    assert catalog.link("10gbe").estimate
    assert not catalog.link("pcie3_x16").estimate  # measured: 12.15 GB/s
    assert not any(link.source.startswith("estimate") for link in catalog.links().values())


def test_only_estimates_are_above_what_was_reached() -> None:
    # An ideal link is a bound: all of the line rate, and nobody measured it.
    ideal = [link for name, link in catalog.links().items() if name.endswith("_ideal")]
    assert ideal
    assert all(link.efficiency == 1 and link.estimate for link in ideal)


def test_ethernet_goodput_is_what_tcp_frames_leave() -> None:
    # 1500 - 20 (IP) - 32 (TCP with time stamps) data bytes in 1500 + 14 + 4 + 8 + 12 on the wire.
    share = Fraction(1500 - 20 - 32, 1500 + 14 + 4 + 8 + 12)
    assert catalog.link("10gbe").efficiency == share
    assert catalog.link("1gbe").efficiency == share
    assert catalog.link("10gbe_ideal").efficiency == 1
    assert float(share) == pytest.approx(0.9415, abs=5e-5)


def test_the_p100_alexnet_rate_is_the_measured_one_split_as_stated() -> None:
    # 512 images in 512/2987 s; fixed = 8.9 samples' time (fits: V100 8.95, K80 8.85).
    sxm2 = catalog.device("p100_sxm2").training["alexnet"]
    assert sxm2.fixed + 512 * sxm2.per_sample == pytest.approx(512 / 2987, rel=1e-4)
    assert sxm2.fixed / sxm2.per_sample == pytest.approx(8.9, rel=1e-3)
    pcie = catalog.device("p100_pcie").training["alexnet"]
    for field in ("fixed", "per_sample"):
        assert getattr(pcie, field) == pytest.approx(getattr(sxm2, field) * 10.6 / 9.3, rel=1e-4)
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


def test_the_fits_are_near_the_rates_that_they_were_made_from() -> None:
    # Apache MXNet docs/faq/perf.md, AlexNet at batch 32: V100 2359.73, K80 406.08 images/s.
    for name, rate, error in (("v100", 2359.73, 0.30), ("k80", 406.08, 0.15)):
        training = catalog.device(name).training["alexnet"]
        assert training.fixed + 32 * training.per_sample == pytest.approx(32 / rate, rel=error)


def test_an_entry_takes_over_what_it_does_not_give() -> None:
    new, old = catalog.device("p100_pcie"), catalog.device("p100_pcie_pytorch1")
    changed = {kind for kind in KERNEL_CLASSES if new.kernels[kind] != old.kernels[kind]}
    assert changed == {"selection"}
    assert old.training == new.training
    assert old.title != new.title


def test_a_fingerprint_changes_with_any_number() -> None:
    found = {catalog.fingerprint(device) for device in catalog.devices().values()}
    assert len(found) == len(catalog.devices())
    assert catalog.fingerprint(catalog.device("v100")) == catalog.fingerprint(
        catalog.device("v100")
    )


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="unknown device 'V100'; did you mean 'v100'"):
        catalog.device("V100")
    with pytest.raises(InputError, match="unknown link '10bge'; did you mean '10gbe'"):
        catalog.link("10bge")
    with pytest.raises(InputError, match="'p100'; there are p100_pcie, p100_pcie_pytorch1, p100_s"):
        catalog.device("p100")


def test_a_wrong_link_entry_is_named_with_its_place(tmp_path: Path) -> None:
    text = (
        "links:\n  a: {bandwidth: 1 Gb/s, latency: 1 us, estimate: true, source: x}\n"
        "  b: {like: c}\n"
    )
    found = problems("links", tmp_path, text)
    assert found[0].startswith("c.yaml:2:18: error: links.a.bandwidth: unknown unit 'Gb/s'")
    assert "c.yaml:3:13: error: links.b.like = 'c': no entry of that name stands above" in found


def test_a_number_without_a_source_is_refused(tmp_path: Path) -> None:
    text = "links:\n  a: {bandwidth: 1 Gbit/s, latency: 1 us, estimate: true}\n"
    assert problems("links", tmp_path, text) == [
        "c.yaml:2:3: error: key 'source' is missing in links.a"
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
