"""A scenario that replays what a user recorded: its model, its gradients, its times."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

import gcsim
from gcsim.cli.check import lines
from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.errors import InputError
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.result import Row
from gcsim.scenarios.running.gradients import check_trace
from gcsim.scenarios.sections import recorded
from gcsim.scenarios.sections.passes import measured_passes
from gcsim.simulator.clock import picoseconds
from gcsim.traces.profile import ModelFacts, PassTimes
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.storage.manifest import MANIFEST, manifest_text, read_manifest
from gcsim.traces.storage.store import Trace, recorded_passes
from tests.command import gcsim as in_this_process
from tests.process import printed
from tests.simulator.traffic import traffic

SCENARIO = """\
name: mine
model: recorded
batch_size: 8
gradients: {source: recorded, trace: trace}
compute: {recorded: true}
cluster:
  nodes: [2, 4]
  devices_per_node: 1
  device: v100
  network: 1gbe
  collectives: {transport: textbook}
compressors: [none, {kind: topk, ratio: 0.1}]
uncertainty: {draws: 0}
"""


class Mine(nn.Module):
    """A model that no scenario could import."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(30, 200), nn.Linear(200, 4)

    def forward(self, given: torch.Tensor) -> Any:
        return self.second(self.first(given).relu())


def train(folder: Path, **options: Any) -> None:
    torch.manual_seed(0)
    model = Mine()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gcsim.record(model, folder, iterations=3, quiet=True, **options) as recording:
        for _ in range(20):
            optimizer.zero_grad()
            for _ in range(options.get("workers", 1)):
                loss = model(torch.randn(8, 30)).square().mean()
                loss.backward()
            optimizer.step()
            if recording.step(loss):
                break


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file beside a trace of two workers, with times."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recorded.warn_once.cache_clear()
    train(tmp_path / "trace", workers=2, timed=2)
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO)
    return path


def rewrite(trace: Path, **changes: Any) -> None:
    """The manifest with other values, as an honest recorder would have written it."""
    text = manifest_text(replace(read_manifest(trace), **changes))
    (trace / MANIFEST).write_text(text)


def times_of(path: Path) -> PassTimes:
    return recorded_passes(path.parent / "trace")


# --- replay --------------------------------------------------------------------------------------


def test_a_recorded_model_is_replayed_without_its_code(scenario: Path) -> None:
    loaded = load_scenario(scenario)
    assert loaded.model.name == "Mine"
    assert loaded.model.parameters == 30 * 200 + 200 + 200 * 4 + 4
    result = gcsim.run(loaded)
    assert [row.workers for row in result.rows] == [2, 4, 2, 4]
    times = times_of(scenario)
    for row in result.rows:
        assert picoseconds(row.forward_s) == picoseconds(times.forward)
        assert row.backward_s + row.optimizer_s == pytest.approx(times.backward, abs=1e-11)
    assert "recorded on CPU" in result.provenance["compute"]["source"]
    assert result.provenance["gradients"]["model"] == "Mine"


def test_what_is_resolved_loads_to_the_same(scenario: Path, tmp_path: Path) -> None:
    loaded = load_scenario(scenario)
    assert loaded.resolved["model"] == "recorded"
    again = tmp_path / "resolved.yaml"
    again.write_text(write(loaded.resolved))
    assert load_scenario(again) == loaded


def test_recorded_times_decide_when_a_bucket_leaves(scenario: Path) -> None:
    """What is exchanged long before the backward pass ends is hidden, at its end it is not. The
    optimizer, recorded after the last gradient, waits for all exchanges and runs once a step."""
    trace = scenario.parent / "trace"

    def dense(first: float, *more: str) -> Row:
        """Predict with the second layer's gradients after `first` seconds, the others after 2."""
        ready = (2.0, 2.0, first, first)
        rewrite(trace, passes=PassTimes(forward=1.0, backward=5.0, ready=ready, source="by hand"))
        # 804 elements of the second layer fill the first bucket
        found = load_scenario(scenario, ["ddp={first_bucket: 3 kB, bucket: 3 kB}", *more])
        rows = gcsim.run(found).rows
        return next(row for row in rows if row.compressor == "none" and row.nodes == 4)

    early, late = dense(0.5), dense(2.0)
    assert 0 < early.exposed_communication_s < late.exposed_communication_s
    for row in (early, late):
        assert row.backward_s == 2
        assert row.optimizer_s == 3
        whole = 1 + 2 + row.encode_s + row.exposed_communication_s + row.decode_s + 3
        assert row.iteration_s == pytest.approx(whole, abs=1e-10)
    assert dense(0.5, "training.strategy=zero1").optimizer_s == 3 / 4  # of four workers
    four = dense(0.5, "training.accumulation=4")
    more = four.iteration_s - early.iteration_s
    assert more == pytest.approx(3 * (1 + 2), abs=1e-10)


def test_a_recording_of_sums_asks_for_as_many_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two backward passes between two steps of the optimizer are one exchange."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recorded.warn_once.cache_clear()
    with gcsim.record(model := Mine(), tmp_path / "trace", iterations=1, quiet=True) as recording:
        for _ in range(2):
            model(torch.randn(8, 30)).square().mean().backward()
        recording.step()
    words = Words(device="v100", nodes=2, network="1gbe")
    assert ask(str(tmp_path / "trace"), words).scenario.training.accumulation == 2
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO.replace("compute: {recorded: true}\n", ""))
    check_trace(load_scenario(path, ["training.accumulation=2"]))
    assert "micro-batches" not in caplog.text
    check_trace(load_scenario(path))
    assert "set training.accumulation=2" in caplog.text


def test_what_a_stranger_wrote_into_a_manifest_ends_a_command_with_exit_2(scenario: Path) -> None:
    trace = scenario.parent / "trace"
    whole = read_manifest(trace)
    assert whole.passes is not None
    for changes in (
        {"facts": replace(whole.facts, parameters=-5)},
        {"facts": replace(whole.facts, parameters=10**40)},
        {"facts": replace(whole.facts, layers=())},
        {"passes": replace(whole.passes, forward=float("nan"))},
        {"passes": replace(whole.passes, backward=-1.0)},
        {"passes": replace(whole.passes, ready=(0.0,))},
    ):
        (trace / MANIFEST).write_text(manifest_text(replace(whole, **changes)))
        for command in ("check", "run"):
            ended = in_this_process(command, scenario.name, folder=scenario.parent)
            assert ended.returncode == 2, ended.stderr
            assert "trace/trace.json: error: " in ended.stderr


def test_check_and_the_manifest_need_no_torch(scenario: Path, tmp_path: Path) -> None:
    profiled(tmp_path / "p.json")
    scenario.write_text(SCENARIO.replace("recorded: true", "profile: p.json"))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gcsim.scenarios.load import load_scenario\n"
        "from gcsim.scenarios.running.gradients import check_trace\n"
        f"check_trace(load_scenario({str(scenario)!r}))\n"
        "print('fine')"
    )
    assert printed("-c", code) == "fine\n"


# --- a profile -----------------------------------------------------------------------------------


def profiled(path: Path) -> None:
    model = Mine()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(record_shapes=True) as profiler:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 30)).square().mean().backward()
            optimizer.step()
    profiler.export_chrome_trace(str(path))


def test_times_come_from_a_profile_and_the_report_says_so(scenario: Path) -> None:
    profiled(scenario.parent / "p.json")
    scenario.write_text(SCENARIO.replace("recorded: true", "profile: p.json"))
    loaded = load_scenario(scenario)
    understood = dict(lines(loaded))["compute"]
    assert understood.endswith(
        "p.json (PyTorch profiler, the host's clock: 3 iterations, 12 gradients)"
    )
    result = gcsim.run(loaded)
    said = result.provenance["compute"]
    assert said["source"].startswith("measured: PyTorch profiler, p.json: median of 2 of 3")
    assert not said["estimate"]
    assert {row.forward_s for row in result.rows} == {said["forward_s"]}
    assert loaded.resolved["compute"] == {"profile": str(scenario.parent / "p.json")}


def test_a_profile_of_another_model_is_refused_before_anything_runs(scenario: Path) -> None:
    body = {
        "traceEvents": [{"ph": "X", "name": "torch::autograd::AccumulateGrad", "ts": 1, "dur": 1}]
    }
    (scenario.parent / "p.json").write_text(json.dumps(body))
    scenario.write_text(SCENARIO.replace("recorded: true", "profile: p.json"))
    with pytest.raises(InputError, match="shows 1 gradients in an iteration; the model has 4"):
        check_trace(load_scenario(scenario))


def test_a_live_scenario_checks_the_schema_of_its_profile(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"traceEvents": [')
    loaded = load_scenario("lenet_2node", [f"compute={{profile: {tmp_path}/p.json}}"])
    with pytest.raises(InputError, match="is cut short at event 0"):
        check_trace(loaded)


# --- what does not fit ---------------------------------------------------------------------------


def problems(scenario: Path, text: str) -> list[str]:
    scenario.write_text(text)
    with pytest.raises(InputError) as refusal:
        check_trace(load_scenario(scenario))
    return [str(problem) for problem in refusal.value.problems]


def test_what_needs_a_trace_and_has_none_is_told_with_its_place(scenario: Path) -> None:
    live = "gradients: {source: live}"
    said = problems(scenario, SCENARIO.replace("gradients: {source: recorded, trace: trace}", live))
    assert len(said) == 2
    assert f"{scenario}:2:8: error: model: recorded is the model of a trace" in said[0]
    assert f"{scenario}:5:21: error: compute.recorded" in said[1]
    assert all("gradients: {source: recorded, trace: FOLDER}" in one for one in said)


def test_a_trace_without_times_is_told(scenario: Path) -> None:
    rewrite(scenario.parent / "trace", passes=None)
    (said,) = problems(scenario, SCENARIO)
    assert "trace.json: error: holds no times of the forward and backward pass" in said
    assert "gcsim record --times" in said


def test_another_model_is_told_the_word_for_it(scenario: Path) -> None:
    text = SCENARIO.replace("model: recorded", "model: lenet").replace("{recorded: true}", "null")
    (said,) = problems(scenario, text)
    assert "holds gradients of 'Mine', but the scenario trains 'lenet'; set model: recorded" in said


# --- buckets -------------------------------------------------------------------------------------


def test_other_buckets_are_warned_of_once_with_both(
    scenario: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name, _ in read_manifest(scenario.parent / "trace").parameters]
    backwards = names[::-1]
    rewrite(scenario.parent / "trace", buckets=(tuple(backwards[:2]), tuple(backwards[2:])))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            check_trace(load_scenario(scenario))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "has its gradients in 2 buckets (0.00322, 0.0248 MB)" in warning
    assert "`ddp` makes 1 bucket (0.028 MB)" in warning


def test_equal_buckets_are_not(scenario: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [name for name, _ in read_manifest(scenario.parent / "trace").parameters]
    rewrite(scenario.parent / "trace", buckets=(tuple(names),))
    check_trace(load_scenario(scenario))
    assert caplog.records == []


def test_one_worker_is_warned_of_once(
    scenario: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "single", timed=1)
    scenario.write_text(SCENARIO.replace("trace: trace", "trace: single"))
    for _ in range(2):
        check_trace(load_scenario(scenario))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "single: warning: holds the gradients of one worker" in warning
    assert len(gcsim.run(load_scenario(scenario)).rows) == 4


# --- shipped models ------------------------------------------------------------------------------


def test_live_recordings_have_times_on_request_alone(tmp_path: Path) -> None:
    settings = load_scenario("lenet_2node", ["gradients.iterations=1", "gradients.workers=1"])
    told: dict[str, Any] = {
        "model": settings.model, "batch_size": 8, "workers": 1, "warmup_steps": 0,
        "iterations": 1, "learning_rate": 0.01, "momentum": 0.9, "device": "cpu", "seed": 1,
    }  # fmt: skip
    plain = Trace.open(record_live(**told, folder=tmp_path / "plain"))
    timed = Trace.open(record_live(**told, times=True, folder=tmp_path / "timed"))
    assert plain.passes is None
    assert timed.passes is not None
    assert timed.passes.ready is not None
    assert len(timed.passes.ready) == 10
    assert max(timed.passes.ready) <= timed.passes.backward
    files = [read_manifest(tmp_path / name).files for name in ("plain", "timed")]
    assert files[0] == files[1]  # times change no gradient


def test_a_manifest_from_before_there_were_times_is_read(scenario: Path) -> None:
    import hashlib

    path = scenario.parent / "trace" / MANIFEST
    body = json.loads(path.read_text())
    for key in ("sha256", "passes", "buckets"):
        del body[key]
    body["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body))
    manifest = read_manifest(path.parent)
    assert manifest.passes is None
    assert manifest.buckets is None


@pytest.mark.parametrize(("device", "warned"), [("v100", True), ("cpu_2core", False)])
def test_times_of_a_cpu_are_not_taken_for_a_gpus_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, device: str, warned: bool
) -> None:
    path = tmp_path / f"{device}.yaml"
    path.write_text(
        "model: resnet20_cifar10\nbatch_size: 32\n"
        f"cluster: {{nodes: 2, device: {device}, network: 10gbe}}\ncompressors: [none]\n"
    )
    passes = PassTimes(forward=0.01, backward=0.02, processor="cpu", source="the host's clock")
    scenario = replace(load_scenario(path), compute=passes)
    piece = TensorSlice(index=0, name="w", shape=(10,), offset=0)
    facts = ModelFacts(name="resnet20_cifar10", parameters=10, layers=(), samples_per_worker=32)
    found = traffic(model=facts, buckets=(BucketLayout(index=0, slices=(piece,)),))
    assert measured_passes(scenario, found) == passes
    assert ("measured on a CPU (the host's clock)" in caplog.text) is warned
