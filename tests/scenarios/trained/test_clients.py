"""A scenario whose workers train for clients, some in each round."""

from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.scenario import Scenario
from gcsim.scenarios.trained.runs import Run, mid_round
from gcsim.traces.training.plan import Partition

TEXT = """\
model: cnn_digits
batch_size: 4
cluster: {nodes: 4, devices_per_node: 1, device: v100, network: 1gbe}
compressors:
  - none
  - topk
  - {kind: local_sgd, interval: 4}
  - {kind: diloco, interval: 8}
  - {kind: torch_post_local_sgd, start: 15, interval: 4}
train:
  workers: 4
  steps: 40
  partition:
    clients: 20
    round: 8
"""


def loaded(folder: Path, *changes: str, text: str = TEXT) -> Scenario:
    path = folder / "a.yaml"
    path.write_text(text)
    return load_scenario(path, changes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("clients: 20", "clients: 3", "a.yaml:14:14: error: train.partition.clients = 3: fewer "
         "than the 4 workers of a round; raise it, or lower train.workers"),
        ("    clients: 20\n", "", "a.yaml:13:3: error: train.partition: a round of 8 steps has no "
         "effect without clients; add clients, e.g. clients: 100, or leave round out"),
        ("round: 8", "round: 0", "a.yaml:15:12: error: train.partition.round = 0: must be at least "
         "1"),
    ],
)  # fmt: skip
def test_mistakes_name_their_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, text=TEXT.replace(old, new))
    (problem,) = caught.value.problems
    assert said in str(problem)


@pytest.mark.parametrize(
    ("rounds", "named"),
    [
        (1, ["local_sgd", "diloco", "torch_post_local_sgd"]),
        (4, ["diloco"]),
        (6, ["local_sgd", "diloco", "torch_post_local_sgd"]),
        (8, []),
        (40, []),
    ],
)
def test_a_round_that_ends_between_synchronisations_is_said(
    tmp_path: Path, rounds: int, named: list[str]
) -> None:
    """Steps count from 0: synchronisations follow steps 3, 7, ... (interval 4), 7, 15, ... (8), and
    15, 19, ... after dense ones."""
    found = mid_round(loaded(tmp_path, f"train.partition.round={rounds}"))
    assert [text.partition(":")[0] for text in found] == named


def test_without_clients_nothing_is_said_and_names_of_trajectories_are_those_of_before(
    tmp_path: Path,
) -> None:
    """Trajectories that come with gcsim lie under a hash of these facts."""
    for written, partition, fact in (
        ("iid", Partition(), None),
        ("{dirichlet: 0.3}", Partition(dirichlet=0.3), {"dirichlet": 0.3}),
        ("{clients: 9}", Partition(clients=9), {"clients": 9}),
    ):
        scenario = loaded(tmp_path, f"train.partition={written}")
        plan = scenario.train
        assert plan is not None
        assert plan.partition == partition
        run = Run(scenario=scenario, choice=scenario.compressors[0], rate=0.1, seed=0, until=1)
        stated = run.facts["plan"]
        assert isinstance(stated, dict)
        assert stated.get("partition") == fact
        again = loaded(tmp_path, text=write(scenario.resolved))
        assert again.train == plan
        if not partition.clients:
            assert mid_round(scenario) == []
