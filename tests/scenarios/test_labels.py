"""Methods without a label are named by what differs, and uncompressed training is dense."""

import inspect
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

import gcsim
from gcsim.analysis.report.answer import answer
from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.errors import InputError
from gcsim.scenarios.scenario import Scenario
from tests.scenarios.files import load, problems, reread

TEXT = """\
name: small
model: lenet
batch_size: 8
gradients: {source: synthetic, workers: 2, iterations: 1}
cluster: {nodes: 2, device: v100, network: 10gbe}
compressors: [none, fp16]
uncertainty: {draws: 0}
"""

LIVE = TEXT.replace("synthetic", "live")


def another(kind: str, name: str, value: Any) -> Any:
    """A value of a parameter that its method takes in the place of the default; else None."""
    tries: list[Any] = [not value] if isinstance(value, bool) else []
    if isinstance(value, int | float) and not isinstance(value, bool):
        tries = [value * 2, value + 1, value / 2, value - 1, 0.25]
        tries += [int(each) for each in tries if isinstance(value, int)]
    for each in tries:
        try:
            check_parameters(kind, {name: each})
        except InputError:
            continue
        if each != value:
            return each
    return None


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_two_of_a_kind_are_named_by_what_differs(tmp_path: Path, kind: str) -> None:
    defaults = check_parameters(kind, {}).model_dump()
    others = {name: another(kind, name, value) for name, value in defaults.items()}
    for name, value in others.items():
        if value is None:
            continue
        entry = f"{{kind: {kind}, {name}: {str(value).lower()}}}"
        try:
            scenario = load(tmp_path, LIVE, f"compressors=[{kind}, {entry}]")
        except InputError:  # the two parameters do not go together
            continue
        one, two = [choice.label for choice in scenario.compressors]
        assert one != two
        assert f"{kind} {name.replace('_', ' ')} " in two
        assert reread(tmp_path, scenario).compressors == scenario.compressors
    (alone,) = load(tmp_path, LIVE, f"compressors=[{kind}]").compressors
    assert alone.label == ("dense" if kind == "none" else kind)


def test_several_parameters_and_labels_beside(tmp_path: Path) -> None:
    def labels(text: str) -> list[str]:
        return [one.label for one in load(tmp_path, TEXT, f"compressors={text}").compressors]

    assert labels("[none, {kind: powersgd, rank: 1}, {kind: powersgd, rank: 4}]") == [
        "dense", "powersgd rank 1", "powersgd rank 4",
    ]  # fmt: skip
    ratios = "{kind: topk, ratio: 1 %}, {kind: topk, ratio: 5 %}"
    assert labels(f"[{ratios}, {{kind: topk, label: x}}]") == [
        "topk ratio 0.01", "topk ratio 0.05", "x",
    ]  # fmt: skip
    for twice in ("[topk, topk]", "[none, {kind: topk, label: dense}]"):
        (said,) = problems(tmp_path, TEXT, f"compressors={twice}")
        assert "two compressors are labelled" in said


def test_a_class_is_named_without_its_module_unless_two_modules_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first_own", "second_own"):
        (tmp_path / f"{name}.py").write_text("from tests.traces.training.world import Wild\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def labels(*kinds: str) -> list[str]:
        text = ", ".join(f'"{kind}"' for kind in kinds)
        return [one.label for one in load(tmp_path, LIVE, f"compressors=[{text}]").compressors]

    assert labels("none", "first_own:Wild") == ["dense", "Wild"]
    kinds = ["first_own:Wild", "second_own:Wild"]
    assert labels(*kinds) == kinds


def takes_a_scenario() -> list[str]:
    """Public names with a parameter that is a scenario."""
    found = []
    for name in gcsim.__all__:
        value = getattr(gcsim, name)
        if inspect.isfunction(value) and "scenario" in inspect.signature(value).parameters:
            found.append(name)
    return found


def test_every_entry_is_known() -> None:
    assert {*takes_a_scenario()} == {"run", "advise", "train", "sweep", "record_scenario"}


@pytest.mark.parametrize("form", ["path", "text", "name", "scenario"])
@pytest.mark.parametrize("entry", takes_a_scenario())
def test_every_entry_takes_a_name_a_path_and_a_scenario(
    entry: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    given: str | os.PathLike[str] | Scenario = path
    if form != "path":
        given = {"text": str(path), "name": "small"}.get(form) or gcsim.load_scenario(path)
    monkeypatch.setattr("gcsim.scenarios.load.shipped_scenarios", lambda: {"small": path})
    more = {"sweep": ({"batch_size": ["x"]},), "record_scenario": (tmp_path / "trace",)}
    if entry in ("train", "record_scenario", "sweep"):  # which say what is wrong with this one
        with pytest.raises(InputError, match=r"small|batch_size = 'x'"):
            getattr(gcsim, entry)(given, *more.get(entry, ()))
    else:
        assert getattr(gcsim, entry)(given, *more.get(entry, ())).summary()


def test_none_without_a_label_is_dense_in_every_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path / "cache"))
    result = gcsim.run(load(tmp_path, TEXT))
    assert [row.label for row in result.rows] == ["dense", "fp16"]
    shown = [result.summary(full=full) for full in (False, True)]
    shown += [*answer(result), result._repr_html_(), gcsim.advise(load(tmp_path, TEXT)).summary()]
    words = itertools.chain.from_iterable(text.replace("|", " ").split() for text in shown)
    assert "none" not in words
