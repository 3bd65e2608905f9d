"""A model as a table of layers: every mistake with its line, and a run from end to end."""

import json
import math
from pathlib import Path

import pytest

from gcsim.errors import InputError, TraceError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.run import run
from gcsim.scenarios.running.gradients import check_trace
from gcsim.scenarios.scenario import Scenario, SyntheticGradients
from gcsim.traces.models.registry import TableLayer, shipped_model
from gcsim.traces.models.table import facts_and_parameters, layer_table, table_facts, table_text
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.synthetic.fit_file import default_fits, write_fits
from tests.process import printed

TABLE = """\
name,shape,forward_flops
# a comment
conv1.weight,8x3x3x3,442368

conv1.bias, 8 ,0
fc.weight,10x2048,4.096e4
fc.bias,10,0
"""
TEXT = """\
model: {layers: net.csv}
batch_size: 32
gradients: {source: synthetic, iterations: 2}
cluster: {nodes: [2], device: p100_pcie, network: 10gbe}
compressors: [none, {kind: topk, ratio: 0.01}, {kind: powersgd, rank: 1}]
"""


def load(folder: Path, table: str = TABLE, *changes: str, text: str = TEXT) -> Scenario:
    (folder / "net.csv").write_text(table, encoding="utf-8")
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    return load_scenario(folder / "a.yaml", changes)


def problems(folder: Path, table: str = TABLE, *changes: str, text: str = TEXT) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(folder, table, *changes, text=text)
    told = [str(problem) for problem in caught.value.problems]
    return [line.replace(f"{folder}/", "").split("/")[-1] for line in told]


def test_a_table_becomes_a_model(tmp_path: Path) -> None:
    scenario = load(tmp_path)
    assert scenario.model.name == "net"
    assert scenario.model.build is None
    assert scenario.model.parameters == 8 * 27 + 8 + 20480 + 10
    assert scenario.model.layers[2] == TableLayer(
        name="fc.weight", shape=(10, 2048), forward_flops=40960
    )
    assert scenario.gradients == SyntheticGradients(fit=None, workers=2, iterations=2)
    facts = table_facts(scenario.model, 32)
    assert [(layer.name, layer.parameters) for layer in facts.layers] == [
        ("conv1", (0, 1)), ("fc", (2, 3)),
    ]  # fmt: skip
    assert facts.forward_flops == 442368 + 40960
    assert facts.samples_per_worker == 32


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x.weight,8x0x3,1", "net.csv:8: error: shape 8x0x3 of x.weight has a size of 0"),
        ("x.weight,8x-1,1", "net.csv:8: error: shape '8x-1' is not written like 64x3x11x11"),
        ("x.weight,8 by 3,1", "net.csv:8: error: shape '8 by 3' is not written like 64x3x11x11"),
        ("x.weight,8x3,-5", "net.csv:8: error: forward_flops -5 of x.weight is negative"),
        ("x.weight,8x3,1.5", "net.csv:8: error: forward_flops '1.5' of x.weight is not a whole"),
        ("x.weight,8x3,nan", "net.csv:8: error: forward_flops 'nan' of x.weight is not a whole"),
        ("x.weight;8x3;1", "net.csv:8: error: 'x.weight;8x3;1' has 1 values, not 3"),
        (",8x3,1", "net.csv:8: error: '' cannot name a tensor"),
        ("fc.bias,10,0", "net.csv:8: error: two tensors are named 'fc.bias'; first at net.csv:7"),
        ("x,999999999999x999999999999,0", "net.csv: error: a model of 1e+24 elements is more"),
    ],
)
def test_each_mistake_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = problems(tmp_path, TABLE + line + "\n")
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "net.csv: error: is empty; begin with name,shape,forward_flops"),
        ("# nothing\n", "net.csv: error: is empty"),
        ("a,3,0\n", "net.csv:1: error: 'a,3,0' is not the header name,shape,forward_flops"),
        ("name,shape,forward_flop\na,3,0\n", "did you mean 'forward_flops'?"),
        ("name,shape,forward_flops\n", "net.csv: error: has a header and no layers"),
        ("\xff\xfe", "not the header"),
    ],
)
def test_a_file_that_is_no_table_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in problems(tmp_path, table)[0]


def test_many_wrong_rows_are_not_told_one_by_one(tmp_path: Path) -> None:
    told = problems(tmp_path, "name,shape,forward_flops\n" + "a;b;c\n" * 40)
    assert len(told) == 6
    assert "and 35 more of the rows" in told[-1]


def test_a_missing_table_is_told_at_its_key(tmp_path: Path) -> None:
    (told,) = problems(tmp_path, TABLE, "model.layers=none.csv")
    assert "model.layers: there is no" in told
    assert "gcsim list models NAME --layers" in told


def test_what_contradicts_a_table_is_told_with_its_place(tmp_path: Path) -> None:
    (live,) = problems(tmp_path, TABLE, text=TEXT.replace("synthetic, iterations: 2", "live"))
    assert live.startswith("a.yaml:3:21: error: model 'net' is a table of layers")
    assert "source: synthetic" in live
    (moments,) = problems(tmp_path, TABLE, "compressors=[none, variance]")
    assert "'variance' needs second moments" in moments


INLINE = TEXT.replace(
    "{layers: net.csv}",
    "{name: mine, layers: [{name: a.weight, shape: [4, 5], forward_flops: 40}, {name: a.bias, "
    "shape: [4]}]}",
)


def test_rows_may_stand_in_the_file(tmp_path: Path) -> None:
    model = load(tmp_path, text=INLINE).model
    assert (model.name, model.parameters) == ("mine", 24)
    assert [row.forward_flops for row in model.layers] == [40, 0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shape: [4, 5]", "shape: [4, 0]", "model.layers.0.shape.1 = 0: must be at least 1"),
        ("shape: [4, 5]", "shape: 4x5", "model.layers.0.shape = '4x5': must be a list"),
        ("forward_flops: 40", "forward_flops: -1", "model.layers.0.forward_flops = -1: must be"),
        ("forward_flops: 40", "flops: 40", "unknown key 'flops' in model.layers.0; known: "),
        ("name: a.bias", "name: a.weight", "two tensors are named 'a.weight'; first at"),
        ("name: a.bias", "name: a b", "'a b' cannot name a tensor"),
        ("name: mine, ", "", "a table in the file has no name"),
    ],
)  # fmt: skip
def test_mistakes_in_inline_rows_are_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert INLINE.count(old) == 1
    (told,) = problems(tmp_path, text=INLINE.replace(old, new))
    assert said in told
    assert told.startswith("a.yaml:1:")


@pytest.mark.parametrize("text", [TEXT, INLINE])
def test_a_resolved_table_is_self_contained(tmp_path: Path, text: str) -> None:
    scenario = load(tmp_path, text=text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.yaml").write_text(write(scenario.resolved), encoding="utf-8")
    again = load_scenario(elsewhere / "b.yaml")
    assert again.model == scenario.model
    assert again.resolved == scenario.resolved


@pytest.mark.parametrize(
    "model", ["", "model={build: 'a.b:c', input_shape: [3, 8, 8], classes: 5}"]
)
def test_an_optimizer_beside_a_model_that_no_device_knows_is_no_fault(
    tmp_path: Path, model: str
) -> None:
    changes = [model, "gradients={source: live}"] if model else []
    assert load(tmp_path, TABLE, "training={optimizer: 2 ms}", *changes, text=INLINE)


def test_loading_a_table_imports_no_torch(tmp_path: Path) -> None:
    load(tmp_path)
    code = (
        "import sys\n"
        "from gcsim.scenarios.load import load_scenario\n"
        "from gcsim.scenarios.running.gradients import check_trace\n"
        f"scenario = load_scenario({str(tmp_path / 'a.yaml')!r}, ['compressors=[none]'])\n"
        "check_trace(scenario)\n"
        "assert not {'torch', 'scipy', 'numba', 'matplotlib'} & set(sys.modules)\n"
    )
    assert not printed("-c", code)


# --- shipped models as tables --------------------------------------------------------------------


def test_a_shipped_model_as_a_table_is_the_same_model(tmp_path: Path) -> None:
    """Same tensors and FLOPs by layer as the model that is built."""
    entry = shipped_model("resnet20_cifar10")
    model = load(tmp_path, table_text(entry), "model.name=mine").model
    facts, shapes = facts_and_parameters(entry, 4)
    assert tuple((row.name, row.shape) for row in model.layers) == shapes
    assert model.layers == layer_table(entry)
    tabled = table_facts(model, 4)
    assert tabled.parameters == facts.parameters == entry.parameters
    assert {(layer.name, layer.forward_flops) for layer in tabled.layers} == {
        (layer.name, layer.forward_flops) for layer in facts.layers
    }


# --- recorded gradients --------------------------------------------------------------------------


def test_a_trace_of_the_same_tensors_serves_a_table(tmp_path: Path) -> None:
    entry = shipped_model("lenet")
    record_live(
        model=entry, batch_size=8, workers=2, warmup_steps=0, iterations=1, learning_rate=0.01,
        momentum=0.9, device="cpu", seed=0, folder=tmp_path / "trace",
    )  # fmt: skip
    changes = ("gradients={source: recorded, trace: %s}" % (tmp_path / "trace"), "batch_size=8")
    table = table_text(entry)
    check_trace(load(tmp_path, table, *changes))
    others = {
        table.replace("120x400", "120x401"): "'classifier.fc1.weight' is [120, 400], the table's",
        table.replace("conv2", "conv3"): "it has a tensor 'features.conv2.weight', which the table",
        table + "extra,3,0\n": "it has no tensor 'extra', which the table has",
    }
    for changed, said in others.items():
        with pytest.raises(TraceError, match="not of the scenario's table") as caught:
            check_trace(load(tmp_path, changed, *changes))
        assert said in str(caught.value)


# --- from end to end -----------------------------------------------------------------------------


def test_a_table_runs_with_synthetic_gradients_and_every_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsim.analysis.plots.breakdown import breakdown_figure
    from gcsim.analysis.plots.speedup import speedup_figure
    from gcsim.analysis.report.answer import answer, parts, plain
    from gcsim.analysis.report.sources import provenance_notes

    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    result = run(load(tmp_path))
    again = run(load(tmp_path), cache=False)
    assert [row.nmse for row in again.rows] == [row.nmse for row in result.rows]
    nmse = {row.label: row.nmse for row in result.rows}
    assert nmse["dense"] == 0
    assert 0 < (nmse["topk"] or 0) < 3
    sent = {row.label: row.wire_bytes_per_worker for row in result.rows}
    assert sent["dense"] == 4 * (8 * 27 + 8 + 20480 + 10)
    gradients = json.loads(result.to_json())["provenance"]["gradients"]
    assert gradients["source"] == "synthetic"
    assert "the default fit of gcsim" in gradients["fit"]
    assert gradients["fitted_by_name"] == 0
    for width in (80, 120):
        assert "synthetic gradients" in plain(parts(result, width), width).split("\n")[0]
    assert any("The gradients are synthetic" in sentence for sentence in answer(result))
    assert any(note.startswith("gradients: SYNTHETIC") for note in provenance_notes(result))
    for figure in (breakdown_figure(result), speedup_figure(result)):
        assert any("synthetic gradients" in text.get_text() for text in figure.texts)


def test_other_gradients_carry_no_such_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gcsim.analysis.plots.speedup import speedup_figure
    from gcsim.analysis.report.answer import parts, plain

    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    live = "{source: live, warmup_steps: 0, iterations: 1, device: cpu}"
    result = run(
        load(tmp_path, TABLE, "model=lenet", f"gradients={live}", "compressors=[none, topk]")
    )
    said = plain(parts(result, 120), 120)
    said += " ".join(text.get_text() for text in speedup_figure(result).texts)
    assert "synthetic" not in said.lower()


def test_a_model_with_code_may_have_synthetic_gradients_and_a_fit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    own = tuple(fit for fit in default_fits() if fit.model == "lenet")
    write_fits(tmp_path / "lenet.json", own)
    changes = ["model=lenet", f"gradients.fit={tmp_path / 'lenet.json'}", "gradients.workers=3"]
    result = run(load(tmp_path, TABLE, *changes, "compressors=[none, qsgd]"))
    gradients = result.provenance["gradients"]
    assert gradients["workers"] == 3
    assert gradients["fitted_by_kind"] == 0
    assert "each tensor by its name, from a recording of lenet" in str(gradients["fit"])


def test_another_fit_makes_another_profile(tmp_path: Path) -> None:
    from gcsim.scenarios.running.keys import profile_key

    fit = default_fits()[0]
    changed = fit.model_copy(update={"scatter": fit.scatter + 0.1})
    keys = set()
    for number, fits in enumerate(((fit,), (changed,))):
        write_fits(tmp_path / f"{number}.json", fits)
        scenario = load(tmp_path, TABLE, f"gradients.fit={tmp_path / f'{number}.json'}")
        keys.add(profile_key(scenario, scenario.compressors[0]))
    scenario = load(tmp_path)
    keys.add(profile_key(scenario, scenario.compressors[0]))
    assert len(keys) == 3


def test_a_fit_of_this_very_model_with_other_tensors_is_told_by_check(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check_trace(load(tmp_path, TABLE.replace("fc", "classifier.fc1"), "model.name=lenet"))
    assert "classifier.fc1.weight has shape [10, 2048]" in str(caught.value)


def test_a_damaged_fit_is_told_by_check(tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text('{"schema": 1')
    with pytest.raises(InputError, match="truncated or not JSON"):
        check_trace(load(tmp_path, TABLE, f"gradients.fit={tmp_path / 'fit.json'}"))
    (told,) = problems(tmp_path, TABLE, "gradients.fit=none.json")
    assert "gcsim fit TRACE" in told


def test_a_large_table_needs_the_memory_of_a_bucket_only(tmp_path: Path) -> None:
    """Elements that are drawn for one bucket, of a model that would not fit a disk."""
    from gcsim.compressors.bucket import BucketLayout, TensorSlice
    from gcsim.scenarios.running.gradients import open_synthetic

    rows = "".join(f"layer{n}.weight,50000x50000,5000000000\n" for n in range(40))
    table = "name,shape,forward_flops\nsmall.weight,30x40,2400\n" + rows
    scenario = load(tmp_path, table, "training.device_memory=100 TiB")
    assert (scenario.model.parameters or 0) > 10**11
    assert isinstance(scenario.gradients, SyntheticGradients)
    trace = open_synthetic(scenario, scenario.gradients)
    piece = TensorSlice(name="small.weight", shape=(30, 40), offset=0, index=0)
    drawn = trace.bucket(BucketLayout(index=0, slices=(piece,)), 0, 0).gradient
    assert drawn.shape == (1200,)
    assert math.isfinite(float(drawn.norm()))
