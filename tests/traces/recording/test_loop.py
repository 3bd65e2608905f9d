"""Recording a loop of the user's: the trace holds its gradients, and the loop notices nothing."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gcsim
from gcsim.errors import InputError
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.moments import second_moments
from gcsim.traces.storage.store import Trace, recorded_passes
from tests.compressors.standin import pretended_gpu

BATCH = 8


def network() -> nn.Module:
    """With what makes a second run differ if anybody disturbs it: dropout, batch statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(4 * 6 * 6, 5),
        )


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + number)
    images = torch.randn(BATCH, 2, 8, 8, generator=generator)
    return images, torch.randint(0, 5, (BATCH,), generator=generator)


Told = Callable[[int, Tensor], bool]


def train(
    model: nn.Module,
    steps: int,
    told: Told = lambda number, loss: False,
    passes: int = 1,
    seen: list[list[Tensor]] | None = None,
) -> None:
    """A loop as people write it; `seen` gets each pass's gradients, taken by autograd alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(7)
    for number in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            images, labels = batch(number * passes + part)
            if seen is not None:
                state, buffers = torch.get_rng_state(), [b.clone() for b in model.buffers()]
                other = nn.functional.cross_entropy(model(images), labels)
                seen.append(list(torch.autograd.grad(other, list(model.parameters()))))
                torch.set_rng_state(state)
                for buffer, saved in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(saved)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if told(number, loss):
            return


def gradients(trace: Trace, iteration: int, worker: int, moments: bool = False) -> list[Tensor]:
    """By parameter."""
    (layout,) = bucket_layouts(trace.parameters, first=1 << 30)
    bucket = trace.bucket(layout, iteration, worker, second_moments=moments)
    flat = bucket.second_moment if moments else bucket.gradient
    assert flat is not None
    found = {piece.index: part.view(piece.shape) for piece, part in layout.views(flat)}
    return [found[number] for number in sorted(found)]


def all_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def recorded(folder: Path, model: nn.Module, **options: Any) -> Trace:
    """What is recorded of a loop of nine steps."""
    options = {"timed": 0, **options}
    seen, passes = options.pop("seen", None), options.pop("passes", 1)
    with gcsim.record(model, folder / "t", **options) as recording:
        train(model, 9, lambda _n, loss: recording.step(loss), passes=passes, seen=seen)
    return Trace.open(folder / "t")


def hooks(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield from module._forward_hooks.values()
        yield from module._forward_pre_hooks.values()
    for parameter in model.parameters():
        yield from (parameter._backward_hooks or {}).values()
        yield from (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
    from torch.optim import optimizer

    yield from optimizer._global_optimizer_pre_hooks.values()
    yield from optimizer._global_optimizer_post_hooks.values()


# --- what is recorded ---------------------------------------------------------------------------


def test_the_trace_holds_the_gradients_of_the_loop_from_before_clipping(tmp_path: Path) -> None:
    expected: list[list[Tensor]] = []
    losses: list[float] = []
    with gcsim.record(network_ := network(), tmp_path / "t", iterations=4, timed=2) as recording:

        def told(_number: int, loss: Tensor) -> bool:
            losses.append(float(loss.detach()))
            return bool(recording.step(loss))

        train(network_, 20, told, seen=expected)
    trace = Trace.open(tmp_path / "t")
    assert (trace.workers, trace.iterations) == (1, 4)
    assert len(losses) == 6
    assert trace.source["losses"] == losses[:4]
    for iteration in range(4):
        assert all_equal(gradients(trace, iteration, 0), expected[iteration])


def test_on_a_gpu_copies_are_queued_and_waited_for_once_an_iteration(tmp_path: Path) -> None:
    """On a stand-in: copies into pinned memory hold nobody up, and are there when they are read."""
    expected: list[list[Tensor]] = []
    waits: list[tuple[int, int]] = []
    network_ = network()
    with (
        pretended_gpu() as gpu,
        gcsim.record(network_, tmp_path / "t", iterations=2, timed=0, quiet=True) as recording,
    ):

        def told(_number: int, loss: Tensor) -> bool:
            before = gpu.waits
            done = recording.step(loss)
            waits.append((before, gpu.waits))
            return bool(done)

        train(network_, 20, told, seen=expected)
    assert waits == [(0, 1), (1, 2)]
    trace = Trace.open(tmp_path / "t")
    for iteration in range(2):
        assert all_equal(gradients(trace, iteration, 0), expected[iteration])


def test_recording_begins_after_the_steps_that_are_to_pass(tmp_path: Path) -> None:
    expected: list[list[Tensor]] = []
    attached: list[int] = []
    with gcsim.record(
        model := network(), tmp_path / "t", start=3, iterations=2, timed=1
    ) as recording:

        def told(_number: int, loss: Tensor) -> bool:
            attached.append(len([*hooks(model)]))
            return bool(recording.step(loss))

        train(model, 20, told, seen=expected)
    assert len(attached) == 3 + 2 + 1
    assert attached[:3] == [0, 0, 0]
    assert attached[3] > 0
    trace = Trace.open(tmp_path / "t")
    assert (trace.iterations, trace.source["warmup_steps"]) == (2, 3)
    for iteration in range(2):
        assert all_equal(gradients(trace, iteration, 0), expected[3 + iteration])


def test_a_loop_that_ends_before_the_start_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="ended after 4 steps, and recording begins after 9"),
        gcsim.record(model := network(), tmp_path / "t", start=9) as recording,
    ):
        train(model, 4, lambda _n, loss: recording.step(loss))
    assert not [*hooks(model)]
    assert [*tmp_path.iterdir()] == []


def test_training_is_bit_identical_with_and_without_a_recording(tmp_path: Path) -> None:
    alone, watched = network(), network()
    train(alone, 12)
    with gcsim.record(watched, tmp_path / "t", iterations=5, timed=3) as recording:
        train(watched, 12, lambda _n, loss: recording.step(loss) and False)
        assert recording.done
    for one, other in zip(alone.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_micro_batches_are_summed_and_said(tmp_path: Path) -> None:
    expected: list[list[Tensor]] = []
    trace = recorded(tmp_path, network(), iterations=2, passes=3, seen=expected)
    assert trace.source["micro_batches"] == 3
    for iteration in range(2):
        parts = expected[3 * iteration : 3 * iteration + 3]
        sums = [(a + b) + c for a, b, c in zip(*parts, strict=True)]
        assert all_equal(gradients(trace, iteration, 0), sums)


def test_virtual_workers_are_the_passes_of_an_iteration(tmp_path: Path) -> None:
    expected: list[list[Tensor]] = []
    options = {"iterations": 2, "timed": 1, "workers": 3}
    trace = recorded(tmp_path, network(), passes=3, seen=expected, **options)
    assert (trace.workers, trace.iterations) == (3, 2)
    for iteration in range(2):
        for worker in range(3):
            # exactly: not the difference of two sums
            assert all_equal(gradients(trace, iteration, worker), expected[3 * iteration + worker])


def test_layers_and_flops_are_those_of_the_module_on_its_first_batch(tmp_path: Path) -> None:
    facts = recorded(tmp_path, model := network(), iterations=1).facts
    assert facts.name == "Sequential"
    assert facts.samples_per_worker == BATCH
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    # 2 per multiply-add: 36 places x 4 channels x 18 weights, and 144 x 5
    assert {layer.name: layer.forward_flops for layer in facts.layers} == {
        "0": 2 * 36 * 4 * 18,
        "1": 0,
        "5": 2 * 144 * 5,
    }


def test_second_moments_are_those_of_the_closed_form(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5))

    model, other = plain(), plain()
    trace = recorded(tmp_path, model, iterations=2, second_moments=True)
    assert sorted(trace.moment_costs) == [0, 1, 2, 3]
    images, labels = batch(0)
    with second_moments(other) as watched:
        losses = nn.functional.cross_entropy(other(images), labels, reduction="none") / BATCH
        watched.backward(losses)
        expected = watched.accumulate()
    for got, wanted in zip(gradients(trace, 0, 0, moments=True), expected.values, strict=True):
        assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-12)


def test_a_model_without_a_closed_form_is_refused_by_name(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(128, 5)
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, images: Tensor) -> Any:
            return self.inner(images.flatten(1)) * self.factor

    with pytest.raises(InputError, match=r"parameter factor: .* belongs to no layer"):
        recorded(tmp_path, Scaled(), second_moments=True)
    assert list(tmp_path.iterdir()) == []


def test_float16_and_a_limit_of_size_keep_whole_iterations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 813 parameters: 1.6 kB and a header of 0.5 kB for each iteration
    trace = recorded(tmp_path, network(), dtype="float16", max_size="5 kB")
    assert (trace.dtype, trace.iterations) == ("float16", 2)
    assert trace.nbytes <= 5000
    assert "2 iterations of 20 (no more fit)" in capsys.readouterr().err


def test_a_scaler_is_divided_out_and_what_overflows_is_left_out(tmp_path: Path) -> None:
    class Scaler:
        """As torch.amp.GradScaler halves its scale after an overflow."""

        scale = 4.0

        def get_scale(self) -> float:
            return self.scale

    scaler, model = Scaler(), nn.Linear(3, 1, bias=False)
    with gcsim.record(
        model, tmp_path / "t", iterations=2, timed=0, scaler=scaler, batch_size=4
    ) as recording:
        for number in range(9):
            model.zero_grad()
            out = model(torch.full((4, 3), 1.0 + number)).mean() * scaler.scale
            (out * float("inf") if number == 1 else out).backward()
            scaler.scale = 2.0 if number == 1 else scaler.scale  # update() comes before step()
            if recording.step(out):
                break
    trace = Trace.open(tmp_path / "t")
    assert torch.equal(gradients(trace, 0, 0)[0], torch.full((1, 3), 1.0))
    assert torch.equal(gradients(trace, 1, 0)[0], torch.full((1, 3), 3.0))
    assert trace.source["iterations_left_out_by_the_scaler"] == 1


# --- times ---------------------------------------------------------------------------------------


def test_times_are_in_the_order_of_the_backward_pass(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
    with gcsim.record(model, tmp_path / "t", iterations=1, timed=5) as recording:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(9):
            with torch.no_grad():
                model(torch.zeros(2, 300))  # an evaluation in between is no pass
            optimizer.zero_grad()
            loss = model(torch.ones(64, 300)).square().mean()
            loss.backward()
            optimizer.step()
            if recording.step(loss):
                break
    passes = recorded_passes(tmp_path / "t")
    assert passes.ready is not None
    by_layer = [max(passes.ready[2 * n : 2 * n + 2]) for n in range(4)]
    assert by_layer == sorted(by_layer, reverse=True)
    assert min(passes.ready) > 0
    assert max(passes.ready) < passes.backward  # the optimiser comes after
    assert 0 < passes.forward < 1
    assert "median of 5 iterations" in passes.source


def test_without_timed_iterations_there_are_no_times(tmp_path: Path) -> None:
    recorded(tmp_path, network(), iterations=1)
    with pytest.raises(gcsim.InputError, match=r"holds no times .* gcsim record --times"):
        recorded_passes(tmp_path / "t")


# --- what goes wrong -----------------------------------------------------------------------------


def refused(tmp_path: Path, model: nn.Module, loop: Callable[[Any], Any], **options: Any) -> str:
    with (
        pytest.raises(InputError) as refusal,
        gcsim.record(model, tmp_path / "t", timed=0, quiet=True, **options) as recording,
    ):
        loop(recording)
    assert list(tmp_path.iterdir()) == []
    assert list(hooks(model)) == []
    problem = refusal.value.problems[0]
    assert problem.place
    assert problem.hint
    return str(problem)


def test_a_parameter_without_a_gradient_is_named(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "idle": nn.Linear(3, 1)})
    call = nn.Sequential(model["used"])
    call.idle = model["idle"]

    def forward(inputs: Tensor) -> Tensor:
        out: Tensor = model["used"](inputs)
        return out

    call.forward = forward  # type: ignore[method-assign]

    def loop(recording: Any) -> None:
        call(torch.ones(2, 3)).sum().backward()
        recording.step()

    said = refused(tmp_path, call, loop)
    assert "no gradient arrived for idle.weight, idle.bias" in said
    assert "allow_unused=True" in said
    with gcsim.record(call, tmp_path / "t", iterations=1, timed=0, allow_unused=True) as recording:
        loop(recording)
    held = gradients(Trace.open(tmp_path / "t"), 0, 0)
    assert [bool(part.any()) for part in held] == [True, True, False, False]


def test_a_gradient_of_another_shape_is_named(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)

    def loop(recording: Any) -> None:
        model(torch.ones(4, 3)).sum().backward()
        recording.step()
        model.zero_grad()
        model.weight.data = torch.ones(2, 5)
        model(torch.ones(4, 5)).sum().backward()
        recording.step()

    said = refused(tmp_path, model, loop)
    assert "parameter weight: error: its shape changed from [2, 3] to [2, 5]" in said


@pytest.mark.parametrize(
    ("model", "out", "told"),
    [
        (nn.Embedding(5, 2, sparse=True), lambda model: model(torch.tensor([1, 2])),
         "its gradient is sparse"),
        *((nn.Linear(3, 2), lambda model, value=value: model(torch.ones(4, 3)) * value,
           "tensor weight: error: NaN or infinity in the gradients of iteration 0")
          for value in (float("nan"), float("inf"))),
    ],
)  # fmt: skip
def test_a_gradient_that_cannot_be_stored_is_named(
    tmp_path: Path, model: nn.Module, out: Callable[[nn.Module], Tensor], told: str
) -> None:
    def loop(recording: Any) -> None:
        out(model).sum().backward()  # type: ignore[no-untyped-call]
        recording.step()

    assert told in refused(tmp_path, model, loop)


@pytest.mark.parametrize(
    ("loop", "options", "told"),
    [
        (lambda r, m: train(m, 1, lambda _n, _: r.step(torch.tensor(float("nan")))), {},
         "the loss is nan"),
        (lambda r, m: train(m, 1, lambda _n, s: r.step(s), passes=3), {"workers": 2},
         "had 3 backward passes; workers=2 needs one for each"),
        (lambda r, m: train(m, 1, lambda _n, s: r.step(s)), {"batch_size": 64},
         "took [8, 2, 8, 8], and batch_size is 64"),
        (lambda r, m: train(m, 2), {}, "before an iteration was recorded"),
        (lambda r, m: r.step(), {}, "no gradient arrived"),
    ],
)  # fmt: skip
def test_a_loop_that_cannot_be_recorded_is_told(
    tmp_path: Path, loop: Callable[[Any, nn.Module], Any], options: dict[str, int], told: str
) -> None:
    model = network()
    assert told in refused(tmp_path, model, lambda recording: loop(recording, model), **options)


def test_a_folder_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").write_text("x")
    model = network()
    with pytest.raises(InputError, match="exists already"), gcsim.record(model, tmp_path / "t"):
        pass
    assert (tmp_path / "t" / "mine").read_text() == "x"
    assert list(hooks(model)) == []


def test_a_scenario_is_told_the_other_name(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="record_scenario"),
        gcsim.record("lenet_2node", tmp_path / "t"),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("when", [0, 3])
def test_an_interrupt_leaves_nothing(
    tmp_path: Path, failure: type[BaseException], when: int
) -> None:
    def told(number: int, loss: Tensor) -> bool:
        if number == when:
            raise failure
        return bool(recording.step(loss))

    model = network()
    with pytest.raises(failure), gcsim.record(model, tmp_path / "t") as recording:
        train(model, 9, told)
    assert list(tmp_path.iterdir()) == []
    assert list(hooks(model)) == []


def test_a_loop_that_ends_early_keeps_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gcsim.record(model := network(), tmp_path / "t") as recording:
        train(model, 3, lambda _n, loss: recording.step(loss))
    assert Trace.open(tmp_path / "t").iterations == 3
    assert "recorded 3 iterations of 20, 1 worker" in capsys.readouterr().err


def test_hooks_are_gone_as_soon_as_enough_is_recorded(tmp_path: Path) -> None:
    model = network()
    with gcsim.record(model, tmp_path / "t", iterations=1, timed=1) as recording:
        train(model, 2, lambda _n, loss: recording.step(loss))
        assert recording.done
        assert list(hooks(model)) == []
        assert (tmp_path / "t" / "trace.json").is_file()
        assert recording.step()


def test_a_forward_pass_that_cannot_be_repeated_has_no_flops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Once(nn.Linear):
        calls = 0

        def forward(self, given: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("only once")
            return super().forward(given)

    model = Once(3, 1)
    with gcsim.record(model, tmp_path / "t", iterations=1, timed=0) as recording:
        model(torch.ones(2, 3)).sum().backward()
        recording.step()
    assert "cannot be repeated to count its FLOPs (RuntimeError: only once)" in caplog.text
    facts = Trace.open(tmp_path / "t").facts
    assert [(layer.parameters, layer.forward_flops) for layer in facts.layers] == [((0, 1), 0)]


def test_a_model_that_takes_a_dictionary_and_tokens_is_counted(tmp_path: Path) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

        def forward(self, given: dict[str, Tensor], *, mask: Tensor) -> Any:
            return self.head(self.embed(given["words"]) * mask[..., None])

    model = Tagger()
    with gcsim.record(model, tmp_path / "t", iterations=1, timed=0, name="tagger") as recording:
        words = torch.randint(0, 11, (6, 9))
        model({"words": words}, mask=torch.ones(6, 9)).sum().backward()
        recording.step()
    facts = Trace.open(tmp_path / "t").facts
    assert (facts.name, facts.samples_per_worker, facts.tokens) == ("tagger", 6, 9)
    assert facts.forward_flops == 2 * 9 * 4 * 3


def test_the_module_inside_a_compiled_one_is_named(tmp_path: Path) -> None:
    compiled: Any = torch.compile(copy.deepcopy(network()), backend="eager")
    trace = recorded(tmp_path, compiled, iterations=1)
    assert trace.parameters[0] == ("0.weight", (4, 2, 3, 3))
