"""The map: is the winner of a cell the fastest method there, and does the picture hold together?

Expected winners are those of the engine at the cell's own settings.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gcsim.analysis.advice.map import (
    COLUMNS,
    FORMATS,
    ROWS,
    Map,
    axes_of,
    draw_map,
    map_figure,
    map_of,
)
from gcsim.analysis.plots.style import settings
from gcsim.errors import InputError
from gcsim.scenarios.advice.engine import Engine
from gcsim.scenarios.advice.question import Question, Words, ask

OVERRIDES = [
    "uncertainty.draws=8",
    "cluster.collectives.transport=gloo",  # NCCL's tuner may take what is slower near its borders
    "compressors=[{kind: none, label: dense}, fp16, powersgd, cser]",
    "training.failures={mtbf: 2 h, restart: 10 min, checkpoint: 1 min}",  # costs are twice as high
]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def question() -> Question:
    words = Words(model="cnn_digits", device="v100", nodes=4, network="1 Gbit/s", cost_per_hour=3.6)
    return ask(None, words, OVERRIDES)


@pytest.fixture(scope="module")
def found(question: Question, own_cache: None) -> Map:
    return map_of(question, "bandwidth,latency")


def test_it_has_as_many_cells_and_goes_around_the_scenario(found: Map) -> None:
    assert found.winner.shape == found.sure.shape == (ROWS, COLUMNS) == (16, 24)
    assert found.gains.shape == (len(found.labels), ROWS, COLUMNS)
    assert found.x.low < 1e9 < found.x.high
    assert found.labels[0] == "dense"
    assert (found.winner == found.gains.argmax(axis=0)).all()
    assert not found.gains[0].any()


def test_the_bandwidth_is_that_of_all_nics_of_a_node(question: Question) -> None:
    """The stated rate of the eight together, at which the map has its star, is what each has."""
    scenario = replace(question, overrides=("cluster.nics_per_node=8",)).scenario
    axis, _ = axes_of("bandwidth,latency", scenario)
    assert axis.own == 8e9
    assert axis.setting(axis.own) == "cluster.network.bandwidth=1e+09 bit/s"


def test_speedups_between_simulated_points_are_those_of_the_engine(
    found: Map, question: Question
) -> None:
    engine = Engine(question)
    x = np.geomspace(found.x.low, found.x.high, COLUMNS)
    y = np.geomspace(found.y.low, found.y.high, ROWS)
    for row, column in ((0, 0), (7, 11), (15, 23), (3, 18), (12, 5)):
        settings = (found.x.setting(x[column]), found.y.setting(y[row]))
        rows = engine.rows(settings, found.labels, draws=True)
        assert rows is not None
        there = [rows[label].speedup_vs_dense for label in found.labels]
        assert np.exp(found.gains[:, row, column]) == pytest.approx(there, rel=0.05)
        assert found.costs is not None
        winner = rows[found.labels[found.winner[row, column]]]
        if winner.speedup_low is not None and abs(winner.speedup_low - 1) > 0.05:
            assert found.sure[row, column] == (winner.speedup_low > 1)
        cost = rows[found.labels[found.winner[row, column]]].cost_per_1000_iterations
        assert found.costs[row, column] == pytest.approx(cost, rel=0.05)


@pytest.mark.parametrize(
    "suffix", [s if s == ".png" else pytest.param(s, marks=pytest.mark.long) for s in FORMATS]
)
def test_equal_maps_are_equal_files(
    suffix: str, question: Question, found: Map, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcsim.analysis.advice.map.map_of", lambda *_, **__: found)
    for name in ("one", "two"):
        draw_map(question, "bandwidth,latency", tmp_path / f"{name}{suffix}")
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 5_000


def test_ticks_are_round_and_each_cost_has_its_label(question: Question, found: Map) -> None:
    with settings():
        figure = map_figure(found, question.scenario)
    axes = figure.axes[0]
    # from 62.5 Mbit/s to 16 Gbit/s: powers of ten and three times these
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert shown == ["100 Mbit/s", "300 Mbit/s", "1 Gbit/s", "3 Gbit/s", "10 Gbit/s"]
    assert found.costs is not None
    labels = {float(text.get_text()) for text in axes.texts}
    inside = {cost for cost in labels if found.costs.min() < cost < found.costs.max()}
    assert len(labels) >= 3
    assert labels == inside


def test_no_label_of_a_cost_lies_on_another(question: Question, found: Map) -> None:
    far = np.add.outer(np.arange(ROWS) - ROWS, np.arange(COLUMNS)[::-1] - COLUMNS) + 2
    steep = replace(found, costs=5 + np.exp(far / 3))  # the levels crowd in a corner
    with settings():
        figure = map_figure(steep, question.scenario)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) >= 2
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_any_two_settings_may_be_the_axes(question: Question) -> None:
    x, y = axes_of("nodes,cluster.network.latency=10 us..1 ms", question.scenario)
    assert x.setting(8.0) == "cluster.nodes=8"
    assert list(x.values(12)) == sorted(set(x.values(12)))
    assert (y.low, y.high, y.unit) == (10e-6, 1e-3, "s")
    found = map_of(question, "nodes=1..8,batch_size=8..64")
    assert found.winner.shape == (ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bandwidth", "does not name two settings"),
        ("bandwidth,bandwidth", "does not name two settings"),
        ("bandwidth,seed", "'seed' needs its ends"),
        ("bandwith,latency", "did you mean 'bandwidth'?"),
        ("nodes=8..2,latency", "the lower one first"),
        ("nodes=0..2,latency", "above 0"),
        ("nodes=a..b,latency", "needs two numbers"),
        ("nodes=3,latency", "needs two ends"),
    ],
)
def test_mistakes(text: str, said: str, question: Question) -> None:
    with pytest.raises(InputError, match=said):
        axes_of(text, question.scenario)


def test_settings_that_are_no_scenario_are_told(question: Question) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        map_of(question, "nodes=1..4,no_such.key=1..2")
