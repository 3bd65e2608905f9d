"""Stage 1: the profile says what was sent, how often, and how near it came."""

import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from gcsim.compressors.base import (
    About,
    Compressor,
    CompressorParameters,
    Properties,
    Replicas,
    Worker,
)
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.errors import InputError
from gcsim.files import cache_folder, sealed
from gcsim.traces.profile import Layer, ModelFacts, TrafficProfile
from gcsim.traces.stage1 import cache
from gcsim.traces.stage1 import measure as measuring
from gcsim.traces.stage1.measure import Subject, measure, steps_to_run

READ = {1: [8, 8], 2: [8, 4 + 3 * 4], 3: [24, 24]}
LAYOUTS = (
    BucketLayout(index=0, slices=(TensorSlice(name="head", shape=(10, 20), offset=0, index=1),)),
    BucketLayout(index=1, slices=(TensorSlice(name="body", shape=(40, 10), offset=0, index=0),)),
)
ELEMENTS = 600


class Fixed:
    """Keyed random gradients in memory."""

    facts = ModelFacts(
        name="toy",
        parameters=ELEMENTS,
        layers=(Layer(name="all", parameters=(0, 1), forward_flops=1),),
        samples_per_worker=4,
    )
    moment_costs: ClassVar[dict[int, tuple[()]]] = {}

    def __init__(self, workers: int = 2, iterations: int = 4) -> None:
        self.workers = workers
        self.iterations = iterations

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        generator = torch.Generator().manual_seed(100 * layout.index + 10 * iteration + worker)
        gradient = torch.randn(layout.numel, generator=generator)
        moment = gradient.square() * 2 / 4 if second_moments else None
        return Bucket(layout=layout, gradient=gradient, second_moment=moment)


def subject(kind: str, **parameters: object) -> Subject:
    return Subject(
        kind=kind, compressor=compressor_class(kind), parameters=check_parameters(kind, parameters)
    )


def profile_of(kind: str, gradients: Fixed | None = None, **parameters: object) -> TrafficProfile:
    source = gradients or Fixed()
    profiles = measure(
        [subject(kind, **parameters)], source, LAYOUTS, workers=2, seed=0, provenance={}
    )
    return profiles[0]


def test_dense_sends_four_bytes_an_element_without_error() -> None:
    profile = profile_of("none")
    assert profile.wire_bytes_per_worker == 4 * ELEMENTS
    assert profile.quality.nmse == 0
    assert profile.quality.cosine_similarity == pytest.approx(1)
    assert [phase.count for phase in profile.phases] == [1]
    assert len(profile.phases[0].steps) == 4


def test_a_step_has_one_exchange_a_bucket_in_bucket_order() -> None:
    profile = profile_of("none")
    for step in profile.phases[0].steps:
        sent = [exchange.collectives[0].sent[0] for exchange in step.exchanges]
        assert sent == [4 * layout.numel for layout in LAYOUTS]


def test_a_period_is_weighted_by_how_often_each_phase_occurs() -> None:
    # one dense fp16 step in ten: 2 bytes an element; the others send about k values of 2 bytes
    profile = profile_of("gradient_sampling_bayes", tau=10, ratio=0.05)
    counts = {phase.name: phase.count for phase in profile.phases}
    assert sorted(counts.values()) == [1, 9]
    dense = 2 * ELEMENTS
    short = [
        sum(exchange.collectives[0].sent[0] for exchange in step.exchanges)
        for phase in profile.phases
        if phase.count == 9
        for step in phase.steps
    ]
    expected = (dense + 9 * sum(short) / len(short)) / 10
    assert profile.wire_bytes_per_worker == pytest.approx(expected)


def test_a_local_method_is_run_for_whole_windows() -> None:
    chosen = subject("qsparse_local_sgd", interval=3)
    assert chosen.compressor.window(chosen.parameters) == 3
    assert steps_to_run(chosen, 4) == 6  # two windows hold the trace's four iterations
    profile = profile_of("qsparse_local_sgd")
    silent = [
        exchange.collectives == ()
        for phase in profile.phases
        for step in phase.steps
        for exchange in step.exchanges
    ]
    assert silent.count(True) == 4 * len(LAYOUTS)
    assert silent.count(False) == 2 * len(LAYOUTS)


@pytest.mark.parametrize(
    ("kind", "parameters", "expected"),
    [
        ("none", {}, ["step"]),
        ("gradient_sampling_bayes", {"tau": 3}, ["synchronisation", "sampled", "sampled"]),
        ("qsparse_local_sgd", {"interval": 3}, ["local", "local", "synchronisation"]),
        (  # not all of a period is run
            "ok_topk", {"threshold_interval": 2, "region_interval": 6},
            ["repartition", "reuse", "thresholds", "reuse", "thresholds", "reuse"],
        ),
    ],
)  # fmt: skip
def test_a_profile_says_in_which_order_kinds_of_step_come(
    kind: str, parameters: dict[str, Any], expected: list[str]
) -> None:
    profile = profile_of(kind, **parameters)
    assert [profile.phases[number].name for number in profile.order] == expected
    first, *_ = [phase.steps[0].number for phase in profile.phases]
    for number, phase in enumerate(profile.phases):
        for step in phase.steps:
            assert profile.order[(step.number - first) % profile.period] == number


@pytest.mark.parametrize("start", [1, 1000])
def test_a_start_up_is_left_out(start: int) -> None:
    # Compression from step `start` on is what training consists of, not the dense steps before.
    warmup_steps, late = profile_of("powersgd", rank=1), profile_of("powersgd", rank=1, start=start)
    assert late.wire_bytes_per_worker == warmup_steps.wire_bytes_per_worker
    assert [step.number for step in late.phases[0].steps] == list(range(start, start + 4))
    warm = profile_of("dgc", ratio=0.01, warmup_epochs=4, steps_per_epoch=2)
    cold = profile_of("dgc", ratio=0.01)
    assert warm.wire_bytes_per_worker == pytest.approx(cold.wire_bytes_per_worker, rel=0.2)


def test_a_trace_may_be_longer_than_a_period_that_must_be_short() -> None:
    assert steps_to_run(subject("none"), 300) == 300
    with pytest.raises(InputError, match="period"):
        steps_to_run(subject("qsparse_local_sgd", interval=1000), 4)


ABOUT = About(
    title="Toy",
    family="dense",
    collective="all-reduce",
    bits="32",
    unbiased=False,
    state="none",
    paper="none",
)


class Halving(Compressor):
    """Delivers half of the mean gradient: NMSE 1/4 and cosine 1, exactly."""

    about = ABOUT

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=bucket.gradient.clone())
        return reply / (2 * self.worker.count)


def test_nmse_and_cosine_of_half_the_gradient_are_a_quarter_and_one() -> None:
    chosen = Subject(kind="halving", compressor=Halving, parameters=CompressorParameters())
    profile = measure([chosen], Fixed(), LAYOUTS, workers=2, seed=0, provenance={})[0]
    assert profile.quality.nmse == pytest.approx(0.25, rel=1e-6)
    assert profile.quality.cosine_similarity == pytest.approx(1.0, rel=1e-6)


class MomentumSgd(Compressor):
    """Dense momentum, as an algorithm that folds it in would do without compressing."""

    about = ABOUT

    def __init__(self, worker: Worker, parameters: CompressorParameters) -> None:
        super().__init__(worker, parameters)
        self.buffer: dict[int, torch.Tensor] = {}

    @classmethod
    def momentum(cls, parameters: CompressorParameters) -> tuple[float, bool]:
        return 0.9, False

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        reply = yield AllReduce(tensor=bucket.gradient.clone())
        mean = reply / self.worker.count
        index = bucket.layout.index
        self.buffer[index] = 0.9 * self.buffer.get(index, torch.zeros_like(mean)) + mean
        return self.buffer[index].clone()


def test_a_method_with_its_own_momentum_is_compared_with_dense_momentum() -> None:
    chosen = Subject(kind="momentum", compressor=MomentumSgd, parameters=CompressorParameters())
    profile = measure([chosen], Fixed(), LAYOUTS, workers=2, seed=0, provenance={})[0]
    assert profile.quality.nmse < 1e-12


class OneForAll(Compressor):
    """Worker 0 applies the mean gradient N times over, the others nothing; nothing is sent."""

    about = ABOUT
    replicas: Replicas = "differ"

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties(replicas=cls.replicas)

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        reply: torch.Tensor = yield AllReduce(tensor=bucket.gradient.clone())
        return reply * (1.0 if self.worker.rank == 0 else 0.0)


class Together(OneForAll):
    replicas: Replicas = "meet"


def test_replicas_that_stay_apart_are_judged_one_by_one() -> None:
    # With 2 workers: |2 g - g|^2 and |0 - g|^2 are both |g|^2, their mean replica is exact.
    profiles = measure(
        [
            Subject(kind="apart", compressor=OneForAll, parameters=CompressorParameters()),
            Subject(kind="together", compressor=Together, parameters=CompressorParameters()),
        ],
        Fixed(), LAYOUTS, workers=2, seed=0, provenance={},
    )  # fmt: skip
    assert profiles[0].quality.nmse == pytest.approx(1.0, rel=1e-6)
    # law of cosines from the mean lengths: (2 + 1 - 1) / 2 over sqrt(2 * 1)
    assert profiles[0].quality.cosine_similarity == pytest.approx(0.5**0.5, rel=1e-6)
    assert profiles[1].quality.nmse < 1e-12


class Local(OneForAll):
    """Sends something, and applies its own gradient: exact where all workers see the same."""

    @classmethod
    def properties(cls, parameters: CompressorParameters) -> Properties:
        return Properties()

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        yield AllReduce(tensor=bucket.gradient[:1].clone())
        return bucket.gradient.clone()


class Alike(Fixed):
    """All workers have worker 0's gradients."""

    def bucket(
        self, layout: BucketLayout, iteration: int, worker: int, second_moments: bool = False
    ) -> Bucket:
        return super().bucket(layout, iteration, 0, second_moments)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_update_of_ones_own_gradient_is_no_exchange(workers: int) -> None:
    local = Subject(kind="local", compressor=Local, parameters=CompressorParameters())
    with pytest.raises(InputError, match="updates differ at step 0: its workers do not train"):
        measure([local], Alike(workers), LAYOUTS, workers=workers, seed=0, provenance={})


class LateLocal(Local):
    """Only from the tenth step on."""

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        if step > 9:
            return (yield from super().exchange(bucket, step))
        total: torch.Tensor = yield AllReduce(tensor=bucket.gradient.clone())
        return total / self.worker.count


def test_replicas_are_compared_in_every_step_that_is_run() -> None:
    late = Subject(kind="late", compressor=LateLocal, parameters=CompressorParameters())
    with pytest.raises(InputError, match="updates differ at step 10"):
        measure([late], Fixed(iterations=12), LAYOUTS, workers=2, seed=0, provenance={})


def test_more_workers_than_the_trace_holds_are_refused() -> None:
    with pytest.raises(InputError, match="can serve 2"):
        measure([subject("none")], Fixed(), LAYOUTS, workers=3, seed=0, provenance={})


@pytest.mark.parametrize(("room", "times"), [(1 << 30, 1), (13000, 2), (0, 3)])
def test_gradients_are_read_once_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch, room: int, times: int
) -> None:
    """Two buckets of 200 and 400 elements, four iterations, two workers: 6,400 and 12,800 bytes.
    Where there is room for the shortest, which comes first, and half of the longest, the other half
    is read by each of the three methods; profiles are the same."""
    read: list[int] = []

    class Counted(Fixed):
        def bucket(self, layout: BucketLayout, *rest: Any, **given: Any) -> Bucket:
            read.append(layout.index)
            return super().bucket(layout, *rest, **given)

    monkeypatch.setattr(measuring, "KEPT_BYTES", room)
    kinds = ("none", "topk", "qsgd")
    found = measure(
        [subject(kind) for kind in kinds], Counted(), LAYOUTS, workers=2, seed=0, provenance={}
    )
    assert found == [profile_of(kind) for kind in kinds]
    assert [read.count(0), read.count(1)] == READ[times]


def test_equal_seeds_give_equal_profiles() -> None:
    assert profile_of("qsgd") == profile_of("qsgd")


def test_the_cache_returns_what_was_saved(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    profile = profile_of("topk")
    assert cache.load("some") is None
    cache.save("some", profile)
    assert cache.load("some") == profile


def test_a_damaged_cache_entry_is_as_good_as_none(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    cache.save("some", profile_of("none"))
    path = cache_folder() / "some.json"
    text = path.read_text()
    path.write_text(text.replace('"nmse":0.0', '"nmse":9.0'))
    assert cache.load("some") is None
    path.write_text(text[: len(text) // 2])
    assert cache.load("some") is None
    path.write_bytes(b"\xff\xfe")
    assert cache.load("some") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nmse":0.0', '"nmse":NaN'),
        ('"nmse":0.0', '"nmse":Infinity'),
        ('"nmse":0.0', '"nmse":-0.5'),
        ('"period":1', '"period":2'),
        ('"parameters":{}', '"parameters":{},"more":1'),
        ('"workers":2', '"workers":3'),
        ('"workers":2', '"workers":"2"'),
        ('"sent":[', '"sent":[-1,'),
        ('"striped":false', '"striped":0'),
        ('"launches":', '"launches":-'),
        ('"forward_flops":', '"forward_flops":1.5,"outputs":'),
    ],
)
def test_a_cache_entry_that_contradicts_itself_is_as_good_as_none(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(tmp_path))
    cache.save("some", profile_of("none"))
    path = cache_folder() / "some.json"
    body = path.read_text().partition("\n")[2]
    assert old in body
    body = body.replace(old, new, 1)
    path.write_bytes(sealed(body.encode()))
    assert cache.load("some") is None


def test_a_cache_that_cannot_be_written_costs_a_warning_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("GCSIM_CACHE_DIR", str(blocked / "below"))
    with pytest.warns(UserWarning, match="GCSIM_CACHE_DIR"):
        cache.save("some", profile_of("none"))


def test_the_cache_key_depends_on_every_fact() -> None:
    base = {"compressor": "topk", "ratio": 0.01}
    names = {
        cache.key(base),
        cache.key({**base, "ratio": 0.02}),
        cache.key({**base, "seed": 1}),
        cache.key(base, {"my:model": 1}),
    }
    assert len(names) == 4
    assert cache.key(base) == cache.key(dict(reversed(base.items())))


def test_gradient_quality_of_opposite_updates_is_finite() -> None:
    class Nothing(Compressor):
        """Delivers zeros: NMSE 1, cosine 0."""

        about = ABOUT

        def exchange(self, bucket: Bucket, step: int) -> Exchange:
            yield AllReduce(tensor=torch.zeros(1))
            return torch.zeros_like(bucket.gradient)

    chosen = Subject(kind="nothing", compressor=Nothing, parameters=CompressorParameters())
    profile = measure([chosen], Fixed(), LAYOUTS, workers=2, seed=0, provenance={})[0]
    assert profile.quality.nmse == pytest.approx(1)
    assert profile.quality.cosine_similarity == 0
    assert math.isfinite(profile.wire_bytes_per_worker)
