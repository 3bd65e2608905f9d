"""`gcsim check my_compressor:Mine`: the report, its parameters, and its exit code."""

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcsim.cli.app import app
from gcsim.cli.check import names_a_compressor
from gcsim.names import say
from tests.command import gcsim

SOURCE = '''
from pydantic import Field
from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.requests import AllReduce


class Mean(Compressor):
    """The mean, times a factor that ought to be 1."""

    class Parameters(CompressorParameters):
        factor: float = Field(1.0, gt=0, description="what the mean is multiplied by")
        whole: bool = Field(True, description="send every element")

    about = About(title="Mean", family="dense", collective="all-reduce", bits="32", unbiased=True,
                  state="none", paper="this file")

    def __init__(self, worker, parameters):
        super().__init__(worker, parameters)
        self.chosen = parameters

    def exchange(self, bucket, step):
        start = 0 if self.chosen.whole else self.worker.rank
        total = yield AllReduce(tensor=bucket.gradient.clone()[start:])  # line 23
        return total * (self.chosen.factor / self.worker.count)
'''


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    (tmp_path / "my_mean.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["check", "my_mean:Mean", *words])


def test_what_passes_has_exit_code_0_and_is_quiet_when_asked(check) -> None:  # type: ignore[no-untyped-def]
    done = check()
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("my_mean:Mean passes all ")
    assert check("-q").stdout == ""


def test_a_word_is_noted_unless_quiet_and_a_warning_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes of a device that the catalogue names otherwise, and a setting without effect."""
    (tmp_path / "a.yaml").write_text(
        "{model: lenet, batch_size: 8, compressors: [none], training: {iterations: 9},"
        " cluster: {nodes: 2, device: a100, network: 10gbe}}"
    )
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's, which no command has
    for more, noted in (((), True), (("-q",), False), ((), True)):
        say.cache_clear()
        said = gcsim("check", "a.yaml", *more, folder=tmp_path).stderr
        assert ("note: device 'a100' is read as " in said) is noted
        assert "warning: training.iterations has no effect" in said


def test_a_finding_has_exit_code_2_and_comes_from_the_parameters(check) -> None:  # type: ignore[no-untyped-def]
    done = check("--set", "factor=0.9", "-q")
    assert done.exit_code == 2
    assert done.stdout.startswith("my_mean:Mean fails 1 of ")
    assert "correct it, or declare unbiased=False" in " ".join(done.stdout.split())


def test_a_mistake_names_the_line(check) -> None:  # type: ignore[no-untyped-def]
    done = check("--set", "whole=false")
    text = " ".join(done.stdout.split())
    assert done.exit_code == 2
    assert "one cause" in text
    assert "my_mean.py:23: error: all-reduce of tensors that differ" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("facto=2", "--set facto: error: my_mean:Mean has no parameter 'facto'; did you mean"),
        ("factor=-1", "--set factor: error: my_mean:Mean.factor = -1: input should be greater"),
        ("factor", "no value; write --set key=value"),
        ("factor=[", "--set factor"),
    ],
)
def test_parameters_are_checked_first(check, given: str, said: str) -> None:  # type: ignore[no-untyped-def]
    done = check("--set", given)
    assert done.exit_code == 2
    assert said in done.stderr


def test_what_is_a_compressor_and_what_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert names_a_compressor("package.module:Class")
    for scenario in ("alexnet_32node", "my.yaml", "C:/my.yaml", "a:b:c", ":Mine", "mine:"):
        assert not names_a_compressor(scenario)
    (tmp_path / "odd:name").write_text("")
    assert not names_a_compressor("odd:name")
