"""A profiler's trace is read: real ones that torch.profiler makes here, and one of a GPU by hand.

The hand-written trace has the schema of pytorch/kineto (libkineto/src/output_json.cpp): the host
queues kernels long before the GPU runs them, so that a reader of the host's clock would be wrong
by far. Its expected numbers are those that it was written with.
"""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from gcsim import json_stream
from gcsim.errors import InputError
from gcsim.traces.kineto.iterations import check_profile, examine_profile
from gcsim.traces.kineto.json_stream import events
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.profile import PassTimes

Event = dict[str, Any]
Parameters = list[tuple[str, tuple[int, ...]]]
GRADIENT = "torch::autograd::AccumulateGrad"


def read_profile(path: Path, parameters: Parameters) -> PassTimes:
    return examine_profile(path, parameters).times


def parameters_of(model: nn.Module) -> Parameters:
    return [(name, tuple(p.shape)) for name, p in trainable(model)]


def profiled(
    path: Path,
    name: str,
    *,
    shapes: bool,
    scheduled: bool = True,
    passes: int = 1,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Parameters:
    """Profile four training steps of a shipped model, of which a schedule shows three."""
    entry = shipped_model(name)
    inner = build_model(entry, seed=0)
    model = wrap(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(4, *entry.input_shape), torch.randint(0, entry.classes, (4,))
    shown = schedule(wait=0, warmup=1, active=3, repeat=1) if scheduled else None
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=shapes, schedule=shown
    ) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(passes):
                nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if scheduled:
                profiler.step()
    profiler.export_chrome_trace(str(path))
    return parameters_of(inner)


def only_step(path: Path, number: int) -> list[Event]:
    """Leave one iteration of a profile, read without gcsim."""
    body = json.loads(path.read_text())
    step = next(e for e in body["traceEvents"] if e["name"] == f"ProfilerStep#{number}")
    until = step["ts"] + step["dur"]
    kept = [e for e in body["traceEvents"] if "ts" in e and step["ts"] <= e["ts"] <= until]
    path.write_text(json.dumps({**body, "traceEvents": kept}))
    return kept


# --- real profiles of this machine ---------------------------------------------------------------


@pytest.mark.parametrize("scheduled", [True, False])
@pytest.mark.parametrize("shapes", [True, False])
def test_a_chain_of_layers_is_ready_from_the_last_to_the_first(
    tmp_path: Path, shapes: bool, scheduled: bool
) -> None:
    path = tmp_path / "p.json"
    parameters = profiled(path, "lenet", shapes=shapes, scheduled=scheduled)
    check_profile(path)
    times = read_profile(path, parameters)
    assert times.ready is not None
    layers: dict[str, float] = {}
    for (name, _), ready in zip(parameters, times.ready, strict=True):
        layer = name.rpartition(".")[0]
        layers[layer] = max(ready, layers.get(layer, 0.0))
    assert list(layers.values()) == sorted(layers.values(), reverse=True)
    assert min(times.ready) > 0
    assert max(times.ready) < times.backward < 5
    assert 0 < times.forward < 5
    assert ("shape and order" if shapes else "their order (no shapes") in times.source
    assert f"median of {2 if scheduled else 3} of" in times.source
    assert "the host's clock" in times.source


def test_the_times_are_those_that_the_events_say(tmp_path: Path) -> None:
    """Against a naive reading of the whole JSON, one iteration alone."""
    path = tmp_path / "p.json"
    parameters = profiled(path, "lenet", shapes=True)
    listed = only_step(path, 2)
    times = read_profile(path, parameters)
    named: dict[str, list[Event]] = {}
    for event in listed:
        named.setdefault(event["name"], []).append(event)
    backward = min(
        e["ts"] for name, found in named.items() for e in found if name.startswith("autograd::")
    )
    forward = min(e["ts"] for e in listed if e.get("cat") == "fwdbwd")
    optimizer = named["Optimizer.step#SGD.step"][0]["dur"]
    arrivals = sorted(e["ts"] + e["dur"] for e in named[GRADIENT])
    assert times.ready is not None
    assert sorted(times.ready) == pytest.approx([1e-6 * (at - backward) for at in arrivals])
    assert times.forward == pytest.approx(1e-6 * (backward - forward))
    assert times.backward == pytest.approx(1e-6 * (arrivals[-1] - backward + optimizer))


def test_residual_branches_are_told_apart_by_shape(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    parameters = profiled(path, "resnet20_cifar10", shapes=True)
    ready = read_profile(path, parameters).ready
    assert ready is not None
    at = dict(zip((name for name, _ in parameters), ready, strict=True))
    names = list(at)
    convolutions = [n for n in names if n.endswith("conv2.weight")]
    assert len(convolutions) == 9
    assert [at[n] for n in convolutions] == sorted((at[n] for n in convolutions), reverse=True)
    assert at["fc.weight"] < at[convolutions[-1]]
    assert max(ready) == at[names[0]] or "conv1" in names[0]


def test_the_last_of_several_micro_batches_counts(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    parameters = profiled(path, "lenet", shapes=True, passes=3)
    listed = only_step(path, 2)
    times = read_profile(path, parameters)
    arrivals = sorted(e["ts"] + e["dur"] for e in listed if e["name"] == GRADIENT)
    assert len(arrivals) == 3 * 10
    forward = min(e["ts"] for e in listed if e.get("ph") == "s" and e["ts"] > arrivals[19])
    nodes = [e["ts"] for e in listed if e["name"].startswith("autograd::engine")]
    backward = min(at for at in nodes if at > forward)
    assert times.forward == pytest.approx(1e-6 * (backward - forward))
    assert times.ready is not None
    assert sorted(times.ready) == pytest.approx([1e-6 * (at - backward) for at in arrivals[20:]])


@pytest.mark.parametrize(("shapes", "batch"), [(True, 4), (False, None)])
def test_the_batch_is_seen_where_shapes_are(
    tmp_path: Path, shapes: bool, batch: int | None
) -> None:
    parameters = profiled(tmp_path / "p.json", "lenet", shapes=shapes)
    assert examine_profile(tmp_path / "p.json", parameters).batch_size == batch


def test_the_buckets_of_ddp_are_seen(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/met", rank=0, world_size=1)
    try:
        path = tmp_path / "p.json"
        parameters = profiled(
            path,
            "resnet20_cifar10",
            shapes=True,
            wrap=lambda model: nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5),
        )
    finally:
        dist.destroy_process_group()
    found = examine_profile(path, parameters)
    assert sum(found.buckets) == sum(math.prod(shape) for _, shape in parameters)
    assert len(found.buckets) > 1
    assert found.times.ready is not None


# --- a GPU, by hand ------------------------------------------------------------------------------


MODEL: Parameters = [("a.weight", (4, 3)), ("a.bias", (4,)), ("b.weight", (2, 4)), ("b.bias", (2,))]
STREAM, EXCHANGE = 7, 20


class Writer:
    """Events of a host that queues kernels, and of the stream that runs them later."""

    def __init__(self, base: float) -> None:
        self.events: list[Event] = []
        self.host = base
        self.gpu = base
        self.correlation = int(base) % 1_000_000

    def op(self, name: str, lasts: float, cat: str = "cpu_op", **arguments: Any) -> None:
        """Something that the host does next."""
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": self.host,
             "dur": lasts, "args": {"External id": 1, **arguments}}
        )  # fmt: skip
        self.host += lasts

    def kernel(self, lasts: float, behind: float, stream: int = STREAM, name: str = "gemm") -> None:
        """A kernel that the host launches now, and that starts `behind` later or when it can."""
        self.correlation += 1
        launched = self.host
        self.op("cudaLaunchKernel", 1, "cuda_runtime", correlation=self.correlation, cbid=211)
        start = max(self.gpu, launched + behind) if stream == STREAM else launched + behind
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start,
             "dur": lasts, "args": {"correlation": self.correlation, "device": 0, "context": 1,
                                    "stream": stream, "queued": 0}}
        )  # fmt: skip
        for phase, pid, tid, at in (("s", 1, 2, launched), ("f", 0, stream, start)):
            self.events.append(
                {"ph": phase, "id": self.correlation, "pid": pid, "tid": tid, "ts": at,
                 "cat": "ac2g", "name": "ac2g"}
            )  # fmt: skip
        if stream == STREAM:
            self.gpu = start + lasts


def cuda_trace(slow: float = 1.0, shapes: bool = True) -> Event:
    """Three iterations; in each, forward takes 100 us on the GPU, gradients are ready 40, 70, 150
    and 160 us after its end, and the optimiser takes 30 us. The first iteration takes twice as
    long, and everything `slow` times as long."""
    found: list[Event] = []
    for number in range(3):
        at = 1e9 + 10_000 * number
        factor = slow * (2 if number == 0 else 1)
        w = Writer(at)
        w.op("Optimizer.zero_grad#SGD.zero_grad", 5, "user_annotation")
        w.kernel(3, behind=2)  # before the forward pass
        w.events.append(
            {"ph": "s", "id": 9, "cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 2,
             "ts": w.host + 0.5}
        )  # fmt: skip
        w.host += 1
        w.kernel(60 * factor, behind=200)  # the host is far ahead of the GPU
        w.kernel(40 * factor, behind=0)
        for part, (name, lasts) in enumerate(
            [("b.bias", 40), ("b.weight", 30), ("a.weight", 80), ("a.bias", 10)]
        ):
            w.op("autograd::engine::evaluate_function: AddmmBackward0", 0)
            w.kernel(lasts * factor, behind=0)
            shape = list(dict(MODEL)[name])
            told: Event = {"Input Dims": [shape]} if shapes else {}
            w.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0)
            w.op("torch::autograd::AccumulateGrad", 2, **told)
            if part == 1:
                sized: Event = {
                    "In msg nelems": 10,
                    "Collective name": "allreduce",
                    "dtype": "Float",
                }
                w.op("c10d::allreduce_", 0)  # the same one, without its size
                w.op("record_param_comms", 1, **sized)
                w.kernel(5000, behind=0, stream=EXCHANGE, name="ncclDevKernel_AllReduce_Sum_f32")
        sized = {"In msg nelems": 16, "Collective name": "allreduce", "dtype": "Float"}
        w.op("record_param_comms", 1, **sized)
        w.kernel(300, behind=0, stream=EXCHANGE, name="ncclDevKernel_AllReduce_Sum_f32")
        w.gpu += 777  # the stream waits for the exchange
        step = w.host
        w.kernel(20 * factor, behind=0)
        w.kernel(10 * factor, behind=0)
        w.events.append(
            {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "pid": 1,
             "tid": 2, "ts": step, "dur": w.host - step, "args": {}}
        )  # fmt: skip
        w.events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1,
             "tid": 2, "ts": at, "dur": w.host - at, "args": {}}
        )  # fmt: skip
        w.events.append(
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{number}", "pid": 0,
             "tid": 7, "ts": at, "dur": 9000, "args": {}}
        )  # fmt: skip
        found += w.events
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 5,
            "deviceProperties": [{"id": 0}], "traceEvents": found, "traceName": "x"}  # fmt: skip


def stored(path: Path, body: Any) -> Path:
    path.write_text(json.dumps(body))
    return path


@pytest.mark.parametrize("shapes", [True, False])
def test_on_a_gpu_times_are_those_of_its_stream(tmp_path: Path, shapes: bool) -> None:
    path = stored(tmp_path / "gpu.json", cuda_trace(shapes=shapes))
    found = examine_profile(path, MODEL)
    times = found.times
    assert times.forward == pytest.approx(100e-6)
    # the weight of a arrives before its bias here, which only shapes tell
    first = (150e-6, 160e-6) if shapes else (160e-6, 150e-6)
    assert times.ready == pytest.approx((*first, 70e-6, 40e-6))
    # neither the wait for the exchange nor the 5 ms of its kernels
    assert times.backward == pytest.approx(190e-6)
    assert "the GPU's clock" in times.source
    assert "median of 2 of 3 iterations, the first left out" in times.source
    assert found.buckets == (10, 16)  # elements, of 26


def test_everything_scales_with_the_gpu(tmp_path: Path) -> None:
    slow = read_profile(stored(tmp_path / "gpu.json", cuda_trace(slow=4.0)), MODEL)
    assert slow.forward == pytest.approx(400e-6)
    assert slow.backward == pytest.approx(760e-6)


def test_gzip_is_read_whatever_its_name(tmp_path: Path) -> None:
    plain = stored(tmp_path / "gpu.json", cuda_trace())
    zipped = tmp_path / "other.json"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read_profile(plain, MODEL), read_profile(zipped, MODEL)
    assert (one.forward, one.ready) == (other.forward, other.ready)


def test_the_names_of_pytorch_1_8_are_known(tmp_path: Path) -> None:
    body = cuda_trace()
    words = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    for event in body["traceEvents"]:
        event["cat"] = words.get(event["cat"], event["cat"])
        if "Input Dims" in event.get("args", {}):
            event["args"]["Input dims"] = event["args"].pop("Input Dims")
    del body["schemaVersion"]
    new = read_profile(stored(tmp_path / "new.json", cuda_trace()), MODEL)
    old = read_profile(stored(tmp_path / "old.json", body), MODEL)
    assert (new.forward, new.backward, new.ready) == (old.forward, old.backward, old.ready)


def test_an_unfinished_iteration_is_left_out(tmp_path: Path) -> None:
    body = cuda_trace()
    body["traceEvents"] = [e for e in body["traceEvents"] if e.get("ts", 0) < 1e9 + 20_240]
    arrivals = [e for e in body["traceEvents"] if e["name"] == "torch::autograd::AccumulateGrad"]
    while len(arrivals) > 9:  # of 4 parameters: two iterations and a piece
        body["traceEvents"].remove(arrivals.pop())
    times = read_profile(stored(tmp_path / "gpu.json", body), MODEL)
    assert "median of 1 of 2 iterations" in times.source


# --- what cannot be used -------------------------------------------------------------------------


def refusal(path: Path, parameters: Parameters = MODEL) -> str:
    with pytest.raises(InputError) as refused:
        read_profile(path, parameters)
    (problem,) = refused.value.problems
    assert problem.place == str(path)
    assert problem.hint
    return problem.message


def test_a_profile_of_another_model_is_told_by_number_and_by_shape(tmp_path: Path) -> None:
    path = stored(tmp_path / "gpu.json", cuda_trace())
    assert "4 gradients in an iteration; the model has 3 trained" in refusal(path, MODEL[:3])
    other = [*MODEL[:3], ("b.other", (9,))]
    said = refusal(path, other)
    assert "is of another model: it has gradients of shape [2] and none for b.other" in said


def test_inference_is_told(tmp_path: Path) -> None:
    body = cuda_trace()
    body["traceEvents"] = [e for e in body["traceEvents"] if "autograd" not in e["name"]]
    path = stored(tmp_path / "gpu.json", body)
    assert "shows no gradient" in refusal(path)
    with pytest.raises(InputError, match="shows no gradient"):
        check_profile(path)


def test_a_gpu_of_which_only_the_host_was_profiled_is_told(tmp_path: Path) -> None:
    body = cuda_trace()
    host = [e for e in body["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation", "fwdbwd")]
    host.append({"ph": "X", "cat": "cpu_op", "name": "aten::cudnn_convolution", "ts": 1, "dur": 1})
    said = refusal(stored(tmp_path / "gpu.json", {"traceEvents": host}))
    assert "no kernel that ran on it" in said


def test_a_gradient_without_times_is_told(tmp_path: Path) -> None:
    body = {"traceEvents": [{"ph": "X", "name": "torch::autograd::AccumulateGrad", "ts": "soon"}]}
    assert "without ts and dur" in refusal(stored(tmp_path / "p.json", body))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_short_is_told_with_the_place(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "gpu.json"
    whole = json.dumps(cuda_trace()).encode()
    path.write_bytes(gzip.compress(whole[: len(whole) // 2]) if zipped else whole[:7000])
    said = refusal(path)
    assert "is cut short at event" in said
    if zipped:
        path.write_bytes(gzip.compress(whole)[:-200])
        assert "gzip data are cut short" in refusal(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("name: mine", "is no JSON object"),
        ("{}", "holds no traceEvents"),
        ('{"traceEvents": 3}', "holds no traceEvents"),
        ('{"traceEvents": [{"a" 1}]}', "is cut short"),
        ('{"traceEvents": [1 2]}', "is no JSON at event 1"),
        ("[" * 100_000, "is nested too deeply at event 0"),
        ("[]", "shows no gradient"),
    ],
)
def test_what_is_no_profile_is_told(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    assert said in refusal(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "p.json")


# --- reading -------------------------------------------------------------------------------------


@pytest.fixture(params=[1, 2, 3, 7, 64, 1 << 22])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(json_stream, "_CHUNK", request.param)
    return int(request.param)


def test_any_cut_of_the_file_into_chunks_reads_the_same(tmp_path: Path, chunk: int) -> None:
    """Against json.loads; numbers, escapes and characters of several bytes fall on the cuts."""
    listed = [
        {"name": 'a "quoted" \\ \u00e9 \u65e5\U0001f600', "ts": 123456.789, "dur": 1e-3},
        {"n": [1, [2, {}], []], "x": None, "y": -12.5e3, "z": True},
        17,
        {"name": "b", "ts": 90071992547409.93},
    ]
    for body in ({"schemaVersion": 12345, "traceEvents": listed, "last": [1, 2]}, listed):
        path = tmp_path / f"{type(body).__name__}.json"
        path.write_text(json.dumps(body, ensure_ascii=False, indent=1), encoding="utf-8")
        assert list(events(path)) == [entry for entry in listed if isinstance(entry, dict)]


def test_process_groups_of_a_profile_make_it_no_flight_recorder(tmp_path: Path) -> None:
    """`distributedInfo` of PyTorch 2.4 and later, on GPUs."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2}
    told = {
        "backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "nccl_version": "2.21.5",
        "pg_config": [{**group, "ranks": [0, 1]}],
    }  # fmt: skip
    plain = read_profile(stored(tmp_path / "a.json", cuda_trace()), MODEL)
    new = read_profile(
        stored(tmp_path / "b.json", {"distributedInfo": told, **cuda_trace()}), MODEL
    )
    assert (new.forward, new.backward, new.ready) == (plain.forward, plain.backward, plain.ready)


def test_keys_may_stand_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"traceEvents": [{"a": 1}], "distributedInfo": {"rank": 0}}')
    assert list(events(path)) == [{"a": 1}]


@pytest.mark.parametrize("before", ["", '{"traceEvents": ['])
def test_a_small_file_of_billions_of_blanks_is_refused_at_once(tmp_path: Path, before: str) -> None:
    path = tmp_path / "p.json"
    blanks = gzip.compress(b" " * 2**24)
    path.write_bytes(gzip.compress(before.encode()) + blanks * 200)  # 3 GB in 3 MB
    with pytest.raises(InputError, match="is no JSON at event 0") as refusal:
        list(events(path))
    at = refusal.value.problems[0].message.rpartition(" ")[2]
    assert int(at.replace(",", "")) < 2**25  # the rest was not read
