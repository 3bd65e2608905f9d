"""A stored trace gives back what was recorded, and every kind of damage is named."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.kernels import KernelCost
from gcsim.errors import InputError, TraceError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.live import WorkerGradients
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.models.table import facts_and_parameters
from gcsim.traces.profile import Layer, ModelFacts
from gcsim.traces.storage.manifest import manifest_text, read_manifest
from gcsim.traces.storage.store import FOLDER, Trace, shipped_traces
from gcsim.traces.storage.tensor_file import file_length, measure_file, write_tensors
from gcsim.traces.storage.writing import TraceWriter
from tests.benchmarks.shipped_traces import BATCH_SIZE, RECIPES, WORKERS

SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("body.weight", (4, 3, 2)),
    ("body.bias", (4,)),
    ("head.weight", (7, 4)),
)
FACTS = ModelFacts(
    name="toy",
    parameters=56,
    layers=(Layer(name="body", parameters=(0, 1, 2), forward_flops=96),),
    samples_per_worker=8,
)
COSTS = {0: (KernelCost(kind="matmul", launches=1, elements=24, nbytes=200, flops=384),), 2: ()}
A_FILE = "gradients-0001-0000.safetensors"


def tensors(iteration: int, worker: int, purpose: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * purpose + 10 * iteration + worker)
    return tuple(torch.randn(shape, generator=generator) for _, shape in SHAPES)


def found(iteration: int, worker: int, moments: bool = True) -> WorkerGradients:
    return WorkerGradients(
        iteration=iteration,
        worker=worker,
        loss=1.5,
        gradients=tensors(iteration, worker),
        second_moments=tuple(t**2 for t in tensors(iteration, worker, 1)) if moments else None,
    )


def record(folder: Path, dtype: str = "float32", moments: bool = True) -> Path:
    with TraceWriter(folder, dtype=dtype) as writer:
        writer.begin(FACTS, SHAPES)
        assert writer.iterations_that_fit(2, 2, moments, None) == 2
        for iteration in range(2):
            for worker in range(2):
                writer.add(found(iteration, worker, moments))
        return writer.finish(
            workers=2,
            iterations=2,
            second_moments=moments,
            moment_costs=COSTS,
            source={"seed": 3, "losses": [1.5] * 4},
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record(tmp_path / "trace")


def rewrite_manifest(folder: Path, change: Callable[[dict[str, object]], None]) -> None:
    """As somebody would who edits the manifest and takes care of its checksum."""
    path = folder / "trace.json"
    body = json.loads(path.read_text())
    del body["sha256"]
    change(body)
    body["sha256"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body))


def test_a_bucket_holds_the_recorded_tensors_bit_for_bit(folder: Path) -> None:
    trace = Trace.open(folder)
    for layout in bucket_layouts(trace.parameters, first=100, cap=100):
        for iteration in range(2):
            for worker in range(2):
                bucket = trace.bucket(layout, iteration, worker, second_moments=True)
                assert bucket.second_moment is not None
                for piece, part in layout.views(bucket.gradient):
                    expected = tensors(iteration, worker)[piece.index]
                    assert torch.equal(part, expected.flatten())
                for piece, part in layout.views(bucket.second_moment):
                    expected = tensors(iteration, worker, 1)[piece.index] ** 2
                    assert torch.equal(part, expected.flatten())


def test_what_is_known_of_the_trace_comes_back(folder: Path) -> None:
    trace = Trace.open(folder)
    assert trace.facts == FACTS
    assert trace.parameters == SHAPES
    assert (trace.workers, trace.iterations, trace.has_second_moments) == (2, 2, True)
    assert trace.moment_costs == COSTS
    assert trace.source == {"seed": 3, "losses": [1.5] * 4}
    assert trace.nbytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_a_bucket_carries_its_workers_loss_where_all_were_noted(folder: Path) -> None:
    def noted(losses: object) -> list[float | None]:
        rewrite_manifest(folder, lambda body: body.update(source={"losses": losses}))
        trace = Trace.open(folder)
        (layout,) = bucket_layouts(trace.parameters)
        return [trace.bucket(layout, step, rank).loss for step in range(2) for rank in range(2)]

    assert noted([4.0, 3, 2.0, 1.0]) == [4.0, 3.0, 2.0, 1.0]
    for incomplete in ([], [4.0, 3.0], "4321"):
        assert noted(incomplete) == [None] * 4


def test_a_bucket_is_memory_of_its_own(folder: Path) -> None:
    trace = Trace.open(folder)
    (layout,) = bucket_layouts(trace.parameters)
    trace.bucket(layout, 0, 0).gradient.zero_()
    assert float(trace.bucket(layout, 0, 0).gradient.abs().sum()) > 0
    Trace.open(folder)  # the file is as it was


def test_a_bucket_without_second_moments_has_none(folder: Path) -> None:
    trace = Trace.open(folder)
    (layout,) = bucket_layouts(trace.parameters)
    assert trace.bucket(layout, 0, 0).second_moment is None


def test_equal_recordings_are_equal_files(folder: Path, tmp_path: Path) -> None:
    other = record(tmp_path / "again")
    assert sorted(os.listdir(folder)) == sorted(os.listdir(other))
    for path in folder.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_float16_halves_the_gradients_and_keeps_second_moments(tmp_path: Path) -> None:
    trace = Trace.open(record(tmp_path / "half", dtype="float16"))
    (layout,) = bucket_layouts(trace.parameters)
    bucket = trace.bucket(layout, 1, 1, second_moments=True)
    expected = torch.cat([t.half().float().flatten() for t in reversed(tensors(1, 1))])
    assert torch.equal(bucket.gradient, expected)
    assert bucket.second_moment is not None
    moments = [(t**2).flatten() for t in reversed(tensors(1, 1, 1))]
    assert torch.equal(bucket.second_moment, torch.cat(moments))
    assert trace.source["flushed_to_zero"] == 0.0


def test_files_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    values = tensors(0, 0)
    stored = write_tensors(path, SHAPES, "float32", values)
    loaded = load_file(path)
    assert set(loaded) == {name for name, _ in SHAPES}
    assert all(torch.equal(loaded[n], v) for (n, _), v in zip(SHAPES, values, strict=True))
    assert stored == measure_file(path)
    assert stored.nbytes == file_length(SHAPES, "float32")


# --- damage -----------------------------------------------------------------------------------


def missing(folder: Path) -> None:
    (folder / A_FILE).unlink()


def truncated(folder: Path) -> None:
    path = folder / A_FILE
    path.write_bytes(path.read_bytes()[:-1])


def longer(folder: Path) -> None:
    path = folder / A_FILE
    path.write_bytes(path.read_bytes() + b"\0")


def one_bit(folder: Path) -> None:
    path = folder / A_FILE
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (missing, "is missing or cannot be read"),
        (truncated, "is truncated"),
        (longer, "is changed"),
        (one_bit, "was changed since it was recorded"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    with pytest.raises(TraceError, match=said) as refusal:
        Trace.open(folder)
    (problem,) = refusal.value.problems
    assert problem.place.endswith(A_FILE)
    assert "gcsim record" in problem.hint


def test_without_verification_only_contents_go_unchecked(folder: Path) -> None:
    one_bit(folder)
    Trace.open(folder, verify=False)
    truncated(folder)
    with pytest.raises(TraceError, match="is truncated"):
        Trace.open(folder, verify=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "truncated or not JSON"),
        ('{"schema": 1, "workers": 2', "truncated or not JSON"),
        ("[1]", "is not a manifest"),
        ('{"schema": 2}', "has schema 2; this gcsim reads 1"),
        ('{"schema": 1}', "was changed since it was recorded"),
    ],
)
def test_a_damaged_manifest_is_named(folder: Path, text: str, said: str) -> None:
    (folder / "trace.json").write_text(text)
    with pytest.raises(TraceError, match=said) as refusal:
        Trace.open(folder)
    assert refusal.value.problems[0].place.endswith("trace.json")


def test_an_edited_manifest_is_found_out(folder: Path) -> None:
    path = folder / "trace.json"
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(TraceError, match="SHA-256 differs"):
        Trace.open(folder)


Way = tuple[str | int, ...]


def put(folder: Path, way: Way, value: object) -> None:
    """Rewrite the manifest with another value at the end of `way`."""

    def change(body: Any) -> None:
        for key in way[:-1]:
            body = body[key]
        body[way[-1]] = value

    rewrite_manifest(folder, change)


PASSES = {"forward": 0.1, "backward": 0.2, "ready": [0.1] * 3, "source": "a clock"}


@pytest.mark.parametrize(
    ("way", "value", "said"),
    [
        (("facts", "parameters"), -5, "facts.parameters (toy) = -5: must be at least 1"),
        (("facts", "parameters"), 57, "facts.parameters = 57: the shapes have 56 elements"),
        (("facts", "parameters"), 10**40, "must be at most 1099511627776"),
        (("facts", "layers"), [], "facts.layers (toy): must have at least 1 entry"),
        (("facts", "layers", 0, "parameters"), [0, 1], "are not the numbers 0 to 2"),
        (("facts", "layers", 0, "colour"), 1, "colour (body) = 1: is not a known key"),
        (("facts", "samples_per_worker"), 0, "samples_per_worker (toy) = 0: must be at least 1"),
        (("parameters", 0, 1), [4, -3, 2], "parameters.0.1.1 = -3: must be at least 1"),
        (("parameters", 1, 0), "head.weight", "'head.weight' appears more than once"),
        (("workers",), 10**9, "list of files does not fit its iterations and workers"),
        (("moment_costs",), {"7": []}, "moment_costs: 7 is not the number of a parameter"),
        (("moment_costs", "0", 0, "nbytes"), 1.5, "nbytes = 1.5: must be a whole number"),
        (("source", "losses"), [float("nan")], "source.losses: must be text, a finite number"),
        (("source", "losses"), {"a": 1}, "source.losses: must be text, a finite number"),
        (("passes",), PASSES | {"forward": float("nan")}, "forward = nan: must be a finite number"),
        (("passes",), PASSES | {"backward": 1e9}, "= 1000000000.0: must be at most"),
        (("passes",), PASSES | {"ready": [0.1]}, "passes.ready: must have 3 entries"),
        (("passes",), PASSES | {"ready": [0.1, 0.3, 0]}, "0.3 is after the end of the backward"),
        (("passes",), PASSES | {"ready": "soon"}, "passes.ready = 'soon': must be a list"),
        (("passes",), PASSES | {"ready": [0.1, None, 0]}, "ready.1 = (nothing): must be a number"),
        (("passes",), {"forward": 0.1}, "passes.backward: is missing"),
        (("buckets",), [["body.weight", "x"]], "buckets: there is no parameter 'x'"),
        (("facts",), None, "facts = (nothing): must be a mapping"),
        (("facts", "name"), "", "facts.name = '': must not be empty"),
        (("facts", "name"), "\x1b[31mtoy", "has control characters in its text"),
        (("parameters", 0, 0), "a\ud800", "has control characters in its text"),
        (("second_moments",), 1, "second_moments = 1: must be true or false"),
        (("iterations",), 3, "list of files does not fit its iterations and workers"),
        (("dtype",), "int8", "dtype = 'int8': is not a choice"),
        (("facts", "ready_order"), [0], "ready_order does not name each parameter once"),
        (("facts", "ready_order"), [1, 2, 1], "ready_order does not name each parameter once"),
    ],
)
def test_what_a_manifest_says_is_checked_however_right_its_checksum_is(
    folder: Path, way: Way, value: object, said: str
) -> None:
    put(folder, way, value)
    with pytest.raises(TraceError) as refusal:
        Trace.open(folder)
    first = refusal.value.problems[0]
    assert said in first.message
    assert first.place == str(folder / "trace.json")
    assert first.hint


def ways(body: Any, way: Way = ()) -> Iterator[Way]:
    """To each value of a manifest, and to each key that may be added."""
    if isinstance(body, dict | list):
        for key in body if isinstance(body, dict) else range(len(body)):
            yield (*way, key)
            yield from ways(body[key], (*way, key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_of_any_manifest_only_a_whole_one_is_taken(folder: Path, data: st.DataObject) -> None:
    """The oracle is what the simulator divides by and sums."""
    path = folder / "trace.json"
    written = path.read_text()
    body = json.loads(written)
    way = data.draw(st.sampled_from(sorted(set(ways(body)) - {("sha256",)}, key=str)))
    odd: list[object] = [None, True, -1, 0, 10**40, 1e308, float("nan"), float("inf"), "", "x"]
    put(folder, way, data.draw(st.sampled_from([*odd, [], {}, [-1], [[]], {"0": {}}])))
    try:
        manifest = read_manifest(folder)
    except TraceError:
        pass
    else:
        assert manifest.facts.parameters == sum(math.prod(shape) for _, shape in SHAPES)
        assert manifest.facts.layers
        assert min(manifest.workers, manifest.iterations, manifest.facts.samples_per_worker) > 0
        costs = [cost for costs in manifest.moment_costs.values() for cost in costs]
        assert all(0 <= cost.nbytes < 2**63 and 0 <= cost.flops < 2**63 for cost in costs)
        assert "NaN" not in manifest_text(manifest)
    finally:
        path.write_text(written)


def test_a_manifest_that_is_nested_deeply_is_refused(folder: Path) -> None:
    (folder / "trace.json").write_text("[" * 100_000)
    with pytest.raises(TraceError, match="nested too deeply"):
        Trace.open(folder)


def test_a_folder_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"it has no trace\.json"):
        Trace.open(tmp_path)
    with pytest.raises(TraceError, match="there is no such folder"):
        Trace.open(tmp_path / "nowhere")


def test_a_trace_of_another_model_is_refused(folder: Path) -> None:
    trace = Trace.open(folder)
    assert trace.facts.name == "toy"  # what a scenario's model is compared with
    other_name = TensorSlice(name="other", shape=(4,), offset=0, index=0)
    with pytest.raises(TraceError, match="holds no tensor 'other'"):
        trace.bucket(BucketLayout(index=0, slices=(other_name,)), 0, 0)
    other_shape = TensorSlice(name="body.bias", shape=(5,), offset=0, index=0)
    with pytest.raises(TraceError, match=r"'body.bias' has shape \(4,\), not \(5,\)"):
        trace.bucket(BucketLayout(index=0, slices=(other_shape,)), 0, 0)


def test_more_than_was_recorded_is_refused(tmp_path: Path) -> None:
    trace = Trace.open(record(tmp_path / "small", moments=False))
    (layout,) = bucket_layouts(trace.parameters)
    with pytest.raises(TraceError, match="has 2 workers; number 2 is asked for"):
        trace.bucket(layout, 0, 2)
    with pytest.raises(TraceError, match="has 2 iterations; number 2 is asked for"):
        trace.bucket(layout, 2, 0)
    with pytest.raises(TraceError, match="holds no second moments"):
        trace.bucket(layout, 0, 0, second_moments=True)


# --- NaN and infinity -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_named_when_read(folder: Path, value: float) -> None:
    content = load_file(folder / A_FILE)
    content["body.bias"][2] = value
    save_file(content, folder / A_FILE)
    trace = Trace(folder, read_manifest(folder))  # a file of another length: not to be opened
    (layout,) = bucket_layouts(trace.parameters)
    trace.bucket(layout, 0, 0)
    with pytest.raises(InputError, match=r"tensor 'body\.bias', iteration 1, worker 0"):
        trace.bucket(layout, 1, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named_when_written(tmp_path: Path, value: float) -> None:
    bad = found(1, 0)
    bad.gradients[2][3, 1] = value
    with TraceWriter(tmp_path / "trace") as writer:
        writer.begin(FACTS, SHAPES)
        with pytest.raises(InputError, match=r"tensor head\.weight.*iteration 1, worker 0"):
            writer.add(bad)


def test_a_value_too_large_for_float16_is_named(tmp_path: Path) -> None:
    bad = found(0, 1)
    bad.gradients[0][0] = 1e5  # above 65504
    with TraceWriter(tmp_path / "trace", dtype="float16") as writer:
        writer.begin(FACTS, SHAPES)
        with pytest.raises(InputError, match="too large for float16") as refusal:
            writer.add(bad)
    assert refusal.value.problems[0].hint == "store float32"


def test_gradients_lost_to_float16_are_counted(tmp_path: Path) -> None:
    small = found(0, 0, moments=False)
    small.gradients[0].fill_(1e-9)  # half of the smallest float16 is 3e-8: 24 of 56 are lost
    with TraceWriter(tmp_path / "trace", dtype="float16") as writer:
        writer.begin(FACTS, SHAPES)
        writer.add(small)
        folder = writer.finish(
            workers=1, iterations=1, second_moments=False, moment_costs={}, source={}
        )
    assert Trace.open(folder).source["flushed_to_zero"] == pytest.approx(24 / 56)


# --- writing whole or not at all ----------------------------------------------------------------


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, InputError, RuntimeError])
def test_interrupted_writing_leaves_nothing(
    tmp_path: Path, interruption: type[BaseException]
) -> None:
    def interrupted() -> None:
        with TraceWriter(tmp_path / "trace") as writer:
            writer.begin(FACTS, SHAPES)
            writer.add(found(0, 0))
            assert len(list(tmp_path.iterdir())) == 1  # the temporary folder
            raise interruption("stop")

    with pytest.raises(interruption):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gcsim.traces.storage.writing.write_tensors", full)
    with pytest.raises(InputError, match="cannot write: No space left on device"):
        record(tmp_path / "trace")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_is_told_before_anything_is_made(tmp_path: Path) -> None:
    enormous = (("x", (1 << 50,)),)
    with TraceWriter(tmp_path / "trace") as writer:
        writer.begin(FACTS, enormous)
        with pytest.raises(InputError, match=r"bytes, [0-9]+ are free"):
            writer.iterations_that_fit(1, 1, False, None)


def test_an_existing_trace_is_not_replaced(folder: Path) -> None:
    before = (folder / "trace.json").read_bytes()
    with pytest.raises(InputError, match="exists already"):
        record(folder)
    assert (folder / "trace.json").read_bytes() == before


def test_an_empty_folder_may_become_a_trace(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert Trace.open(record(tmp_path / "empty")).workers == 2


def test_a_limit_keeps_whole_iterations(tmp_path: Path) -> None:
    of_iteration = 2 * 2 * file_length(SHAPES, "float32")  # two workers, two kinds
    with TraceWriter(tmp_path / "trace") as writer:
        writer.begin(FACTS, SHAPES)
        assert writer.iterations_that_fit(5, 2, True, 3 * of_iteration + 1) == 3
        assert writer.iterations_that_fit(2, 2, True, 3 * of_iteration) == 2
        with pytest.raises(InputError, match=f"takes {of_iteration} bytes, more than"):
            writer.iterations_that_fit(5, 2, True, of_iteration - 1)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot store 'int8'"):
        TraceWriter(tmp_path / "trace", dtype="int8")


def test_each_model_is_there_early_in_the_middle_and_late() -> None:
    wanted = {f"{model}-{stage}" for model, (_, stages) in RECIPES.items() for stage in stages}
    assert set(shipped_traces()) == wanted
    assert all(list(stages) == ["early", "middle", "late"] for _, stages in RECIPES.values())


def test_they_are_small_enough_to_be_shipped() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 12e6


@pytest.mark.parametrize("name", sorted(shipped_traces()))
def test_a_shipped_trace_is_whole_and_is_what_its_recipe_says(name: str) -> None:
    trace = Trace.open(shipped_traces()[name])  # checks every file's SHA-256
    model, _, stage = name.rpartition("-")
    assert trace.facts.name == model
    assert trace.facts.parameters == shipped_model(model).parameters
    assert trace.facts.ready_order == facts_and_parameters(shipped_model(model), 1)[0].ready_order
    assert (trace.workers, trace.facts.samples_per_worker) == (WORKERS, BATCH_SIZE)
    assert trace.source["warmup_steps"] == RECIPES[model][1][stage]
    (layout, *_) = bucket_layouts(trace.parameters)
    ours, theirs = (trace.bucket(layout, 0, worker).gradient for worker in (0, WORKERS - 1))
    assert ours.isfinite().all()
    assert not ours.equal(theirs)  # own mini-batches


@pytest.mark.parametrize("model", sorted(RECIPES))
def test_the_loss_falls_from_stage_to_stage(model: str) -> None:
    losses = []
    for stage in ("early", "middle", "late"):
        found = Trace.open(shipped_traces()[f"{model}-{stage}"], verify=False).source["losses"]
        assert isinstance(found, list)
        losses.append(sum(found) / len(found))
    assert losses == sorted(losses, reverse=True)
