"""What the page about scenarios shows loads as it stands."""

import logging
import re
from fractions import Fraction
from pathlib import Path

import pytest

from gcsim.scenarios import catalog
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.sections.cluster import COLLECTIVES, ClusterSection
from gcsim.scenarios.sections.file import TRAIN, TRAINING, ScenarioFile

PAGE = (Path(__file__).parents[2] / "docs/scenarios.md").read_text(encoding="utf-8")
TRAINING_PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
WHOLE, _, GROUPS, SUMS, FAULTS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_the_whole_file_loads_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "everything.yaml"
    path.write_text(WHOLE)
    with caplog.at_level(logging.WARNING):
        scenario = load_scenario(path)
    assert not caplog.records
    assert scenario.node_counts == (4, 8)
    assert scenario.cluster.nics[3] == catalog.link("1gbe", scenario.cluster.collectives.transport)
    assert scenario.training.slow_nodes == {1: Fraction(5, 4)}


def test_the_additions_load(tmp_path: Path) -> None:
    path = tmp_path / "sums.yaml"
    rest = "  nodes: 2\n  device: v100\n  network: 10gbe\n"
    path.write_text(f"model: lenet\nbatch_size: 8\ncompressors: [none]\n{SUMS}{rest}")
    sums = load_scenario(path).cluster.sums
    assert sums.float16 == 60 * 10**6
    assert sums.float16_range == (Fraction(55 * 10**6), Fraction(70 * 10**6))


def test_the_groups_load(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(f"model: resnet50\nbatch_size: 8\ncompressors: [none]\n{GROUPS}")
    scenario = load_scenario(path)
    cluster = scenario.cluster
    assert scenario.cost_per_hour == pytest.approx((4 * 24 + 8 * 9.80) / 12)
    assert [group.nodes for group in cluster.groups] == [4, 8]
    assert [cluster.nic(node).name for node in (0, 11)] == ["100gbe", "25gbe"]


def test_the_faults_load(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    without = re.sub(r"(?ms)^training:.*?(?=^ddp:)", "", WHOLE)
    path.write_text(without + FAULTS)
    faults = load_scenario(path).training.faults
    assert faults is not None
    assert [(death.node, death.down) for death in faults.deaths] == [(3, Fraction(300)), (5, None)]


@pytest.mark.parametrize(
    "section", [ScenarioFile, ClusterSection, COLLECTIVES.section, TRAINING.section]
)
def test_every_key_is_on_the_page(section: type[ScenarioFile]) -> None:
    missing = [key for key in section.model_fields if not re.search(rf"\b{key}\b", PAGE)]
    assert missing == []


def test_every_key_of_a_link_is_on_the_page() -> None:
    from gcsim.scenarios.sections.link import LinkSection

    missing = [key for key in LinkSection.model_fields if not re.search(rf"\b{key}\b", PAGE)]
    assert missing == []


def test_the_page_about_training_loads_and_has_every_key(tmp_path: Path) -> None:
    (section,) = re.findall(r"```yaml\n(.*?)```", TRAINING_PAGE, re.DOTALL)
    path = tmp_path / "trained.yaml"
    rest = "model: cnn_digits\nbatch_size: 16\ncompressors: [none]\n"
    path.write_text(f"{section}{rest}cluster: {{nodes: 2, device: v100, network: 10gbe}}\n")
    plan = load_scenario(path).train
    assert plan is not None
    assert plan.learning_rate.values == (0.01, 0.05, 0.2)
    missing = [key for key in TRAIN.section.model_fields if key not in TRAINING_PAGE]
    assert missing == []
