"""A suite in a folder: rows become scenarios, references become numbers, mistakes have a place."""

from pathlib import Path

import pytest

from gcsim.analysis.validation.drawn import DRAWS
from gcsim.analysis.validation.folder import nearest
from gcsim.analysis.validation.judge import Report, run_suite
from gcsim.analysis.validation.registry import chosen
from gcsim.analysis.validation.rows import schema_json
from gcsim.errors import InputError

YAML = """\
title: My cluster
source: my notebook
layers: [layers.csv]
scenario:
  model: two
  batch_size: 10
  cluster:
    nodes: 2
    device: v100
    network: {bandwidth: 1 GB/s, latency: 0 s}
    collectives: {transport: custom, all_reduce: ring, all_gather: ring, host_staging: false}
  training:
    overlap: none
    shared_node: {slowdown: 0}
    framework: none
    interference: {computation: 0, bus: 0}
    noise: {skew: 0}
groups:
  alone: {traffic.grouping: none}
  ring: {}
  half: {traffic.exchange: [{all_reduce: 2*n, element: 2}]}
  either:
    longest: [{}, {cluster.network.bandwidth: $traffic.let.slow B/s}]
fit:
  rate: {title: rate of a NIC, low: 1e8, high: 1e10, unit: B/s}
left_out: {odd: {what: odd rows, rule: they are odd, count: 1}}
bounds: [{name: all, limit: 0.01}]
"""
LAYERS = "model,elements,forward_flops\ntwo,500000,0\ntwo,500000,0\n"
ROWS = """\
# seconds by hand: 4 MB in a ring of two cross a NIC once, at 0.5 GB/s
name,group,series,measured,unit,cluster.nodes,compute.step,cluster.network.bandwidth,traffic.let.slow,fits,left_out
one,alone,dense,0.010,s,1,@one,,,,
two,ring,dense,0.018,s,2,@one,?rate,,rate,
four,ring,dense,0.022,s,4,@one,?rate,,rate,
half,half,dense,0.014,s,2,@one,?rate,,,
rate,ring,dense,1111.11,samples/s,2,@one,?rate,,,
slow,either,dense,0.05,s,2,@one,?rate,1e8,,
eight,ring,dense,0.024,s,8,@one,?rate,,,
sixteen,ring,dense,0.025,s,16,@one,?rate,,,
again,half,dense,0.016,s,4,@one,?rate,,,
odd,ring,dense,1,s,2,@one,,,,odd
"""


def suite(folder: Path, rows: str = ROWS, yaml: str = YAML) -> Report:
    for name, text in (("suite.yaml", yaml), ("rows.csv", rows), ("layers.csv", LAYERS)):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "page.md").write_text("# Mine\n\n## Measured\n\nBy\nhand.\n", encoding="utf-8")
    return run_suite(*chosen([str(folder)]))


def test_rows_are_predicted_from_their_scenarios_and_the_fit(tmp_path: Path) -> None:
    report = suite(tmp_path)
    assert report.suite.about == "By hand."
    assert report.suite.name == tmp_path.name
    found = {point.name: point for point in report.findings.points}
    # 2 (p - 1) / p of 4 MB (2 MB in half precision) after the step, by hand
    for name, seconds in (("half", 0.014), ("eight", 0.024), ("sixteen", 0.025), ("again", 0.016)):
        assert found[name].predicted == pytest.approx(seconds, rel=2e-3), name
    assert found["rate"].predicted == pytest.approx(20 / 0.018, rel=2e-3)
    assert found["slow"].predicted == pytest.approx(0.05, rel=1e-6)  # 40 ms at 0.1 GB/s decide
    assert {name for name, point in found.items() if point.fitted} == {"one", "two", "four"}
    rate, step = sorted(report.findings.factors, key=lambda factor: factor.given)
    assert rate.value == pytest.approx(5e8, rel=2e-3)
    assert rate.catalogue == 1e9
    assert (step.value, step.points) == (0.010, 1)
    assert [one.count for one in report.findings.excluded] == [2]
    assert report.kept


def test_judged_measurements_change_nothing_and_fitted_ones_no_prediction_without_fit(
    tmp_path: Path,
) -> None:
    yaml = YAML.replace("custom, all_reduce", "custom, library: pytorch1, all_reduce")
    known = yaml.replace("  batch_size: 10\n", "  batch_size: 10\n  compute: {step: 9 ms}\n")
    before = {one.name: one for one in suite(tmp_path, yaml=known).findings.points}
    judged = ROWS.replace("half,half,dense,0.014", "half,half,dense,0.02")
    after = {one.name: one for one in suite(tmp_path, rows=judged, yaml=known).findings.points}
    assert after["half"].measured == 0.02
    for name, point in after.items():
        assert (point.predicted, point.unfitted) == (before[name].predicted, before[name].unfitted)
    served = ROWS.replace("two,ring,dense,0.018", "two,ring,dense,0.019")
    other = {one.name: one for one in suite(tmp_path, rows=served, yaml=known).findings.points}
    assert all(other[name].unfitted == before[name].unfitted is not None for name in before)
    assert all(other[name].predicted > before[name].predicted for name in ("half", "eight"))


def test_without_a_step_the_catalogue_alone_says_nothing(tmp_path: Path) -> None:
    assert {point.unfitted for point in suite(tmp_path).findings.points} == {None}


def test_stated_steps_meet_the_catalogues_network_in_drawn_worlds(tmp_path: Path) -> None:
    found = {one.name: one for one in suite(tmp_path).findings.points}
    assert all(one.worlds == () for one in found.values())
    assert found["one"].stated_worlds == ()  # no cluster
    # 10 ms, and 4 MB in a ring of two at 1 GB/s, not at the fitted 0.5; nothing has a range
    assert found["two"].stated_worlds == pytest.approx([0.014] * DRAWS, rel=1e-3)
    assert found["rate"].stated_worlds == pytest.approx([20 / 0.014] * DRAWS, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("cluster.nodes,", "cluster.nods,", "rows.csv:4:6", "unknown key 'nods'"),
        ("0.014,s,2,", "0.014,s,two,", "rows.csv:6:6", "two"),
        ("2,@one,?rate,,rate,", "2,@none,?rate,,rate,", "rows.csv", "no row is called 'none'"),
        ("2,@one,?rate,,rate,", "2,@one,?rote,,rate,", "rows.csv", "nothing is fitted as 'rote'"),
        ("half,half,dense,0.014", "half,half,dense,fast", "rows.csv:6", "'fast' is not a number"),
        ("name,group", "called,group", "rows.csv", "no column 'name'"),
    ],
)
def test_a_mistake_in_a_row_has_its_line_and_column(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    assert old in ROWS
    with pytest.raises(InputError) as caught:
        suite(tmp_path, rows=ROWS.replace(old, new))
    (problem, *_) = caught.value.problems
    assert place in problem.place
    assert said in str(problem)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("2*n, element", "2*m, element", "'m' means nothing in a formula"),
        ("2*n, element", "2*, element", "not a formula"),
        ("device: v100", "device: v1000", "v1000"),
        ("high: 1e10", "hight: 1e10", "hight"),
        ("bounds:", "bonds:", "bounds"),
    ],
)
def test_a_mistake_in_the_yaml_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        suite(tmp_path, yaml=YAML.replace(old, new))


def test_a_fit_that_takes_more_than_a_third_is_refused(tmp_path: Path) -> None:
    rows = "\n".join(line for line in ROWS.splitlines() if not line.startswith(("eight", "sixt")))
    with pytest.raises(InputError, match="more than a third"):
        suite(tmp_path, rows=rows)


def test_one_value_is_the_geometric_mean_or_the_nearer_end() -> None:
    """Of rate / value nearest to 1 and 4 in logarithms: rate / 2; beyond an end, the end."""
    assert nearest(lambda x: [8 / x[0]] * 2, [1, 4], [(0.1, 100)])[0] == pytest.approx(4, rel=1e-2)
    assert nearest(lambda x: [8 / x[0]] * 2, [1, 4], [(0.1, 2)])[0] == pytest.approx(2, rel=1e-2)


def test_two_values_are_found_together() -> None:
    """A latency and a rate of three times of a line."""
    sizes = [1e3, 1e6, 1e9]
    found = nearest(
        lambda x: [x[0] + size / x[1] for size in sizes],
        [3e-5 + size / 2e9 for size in sizes],
        [(1e-6, 1e-3), (1e8, 1e11)],
    )
    assert found == pytest.approx([3e-5, 2e9], rel=1e-3)


def test_formulas_of_tensors_add_up_and_an_own_exchange_comes_last(tmp_path: Path) -> None:
    """Of two tensors of 500,000 elements 249,999 bytes each are sent, and 7 behind them."""
    traffic = "  traffic: {grouping: whole, by_tensor: true, let: {k: floor(n/2)-1}, "
    traffic += "last: [{all_reduce: 7}], exchange: [{all_reduce: k}]}\ngroups:"
    yaml = YAML.replace("groups:", traffic, 1)
    yaml = "\n".join(line for line in yaml.splitlines() if not line.startswith(("fit", "  rate")))
    rows = ROWS.splitlines()[1] + "\nsent,ring,dense,500005,bytes,2,1 s,,,,\n"
    (point,) = suite(tmp_path, rows, yaml).findings.points
    assert point.predicted == 2 * 249_999 + 7


def test_a_schema_knows_the_settings_of_stated_traffic() -> None:
    """Rows add to the defaults, so that no key of a scenario is required."""
    schema = schema_json()
    assert "required" not in schema["properties"]["scenario"]
    assert {"cluster", "traffic", "model"} <= set(schema["properties"]["scenario"]["properties"])
    assert {"grouping", "exchange", "by_tensor"} <= set(
        schema["$defs"]["TrafficSection"]["properties"]
    )
