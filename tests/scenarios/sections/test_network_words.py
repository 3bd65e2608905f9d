"""Is a network of a scenario's file what people write: a rate, with or without other settings?

A rate is the nearest Ethernet of the catalogue at that rate; the expected scenarios spell it out.
"""

from pathlib import Path

import pytest

from tests.scenarios.files import load, problems, warnings

SCENARIO = """\
model: lenet
batch_size: 8
cluster: {{nodes: 2, device: v100, network: {network}, nics: {{1: {nic}}}}}
compressors: [none]
"""


@pytest.mark.parametrize(
    ("words", "link"),
    [
        ("25 Gbit/s", "25gbe"),
        ("13 Gbit/s", "{like: 10gbe, bandwidth: 13 Gbit/s}"),
        ("10 GbE", "10gbe"),
        ("{like: 13G, latency: 3 us}", "{like: 10gbe, bandwidth: 13 Gbit/s, latency: 3 us}"),
    ],
)
def test_a_rate_is_the_nearest_ethernet_at_that_rate(tmp_path: Path, words: str, link: str) -> None:
    said = load(tmp_path, SCENARIO.format(network=words, nic=words))
    assert said == load(tmp_path, SCENARIO.format(network=link, nic=link))


def test_an_option_changes_a_network_that_is_a_rate(tmp_path: Path) -> None:
    text = SCENARIO.format(network="13 Gbit/s", nic="10gbe")
    link = "{like: 10gbe, bandwidth: 13 Gbit/s, latency: 3 us}"
    expected = load(tmp_path, SCENARIO.format(network=link, nic="10gbe"))
    found = load(tmp_path, text, "cluster.network.latency=3 us")
    assert found.cluster == expected.cluster


def test_what_is_no_rate_is_refused_with_its_place(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SCENARIO.format(network="13 Gbit/x", nic="10gbe"))
    assert problem.startswith("a.yaml:3:44: error: unknown unit 'Gbit/x'")


@pytest.mark.parametrize(
    ("words", "slip"),
    [("400 Gbit/s", False), ("400 GB/s", True), ("1e3 Gbit/s", False), ("1e9 Gbit/s", True)],
)
def test_a_rate_that_no_nic_has_is_warned_of(
    tmp_path: Path, words: str, slip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ethernet is sold up to 800 Gbit/s."""
    load(tmp_path, SCENARIO.format(network=words, nic="100gbe"))
    assert ("a.yaml:3:44: warning: no NIC has " in caplog.text) is slip


def test_small_letters_that_may_be_bytes_are_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gb is a gigabit; gb is one in most mouths, and a gigabyte in some."""
    load(tmp_path, SCENARIO.format(network="17gb", nic="10gbe"))
    assert warnings(tmp_path, caplog) == ["note: link '17gb' is read as 17 Gbit/s"]


@pytest.mark.parametrize(("backward", "slip"), [("12 min", False), ("12 h", True)])
def test_passes_of_hours_are_warned_of(
    tmp_path: Path, backward: str, slip: bool, caplog: pytest.LogCaptureFixture
) -> None:
    passes = f"compute: {{forward: 3 min, backward: {backward}}}\n"
    load(tmp_path, SCENARIO.format(network="10gbe", nic="25gbe") + passes)
    assert ("warning: forward and backward take 12.05 h; state" in caplog.text) is slip
