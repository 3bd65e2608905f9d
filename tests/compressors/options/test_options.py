"""Options of every method, in lockstep: what is dense is dense, the rest is the method alone."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.lockstep import CollectiveRecord, Collectives, in_rank_order, lockstep
from gcsim.compressors.mistakes import new_member
from gcsim.compressors.options.method import OPTIONS, Method, Options, method_of, share_of
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.compressors.requests import Operation
from gcsim.errors import InputError
from tests.compressors.ddp.plan import OTHERS, PHASES

SHAPES = {
    "first.weight": (24, 32), "first.bias": (32,), "second.weight": (16, 3, 3, 3),
    "second.bias": (16,), "scale": (), "third.weight": (40, 20),
}  # fmt: skip
STEPS, COUNT, BEFORE = 4, 2, 2
LATER: dict[str, dict[str, Any]] = {
    **PHASES,
    "torch_post_local_sgd": {"start": 1, "interval": 2},
    "cser": {"interval": 2},
    "cser_pl": {"interval": 2},
    "diloco": {"interval": 2},
}
"""Kinds of step that come late by default, within `STEPS`."""
CASES = [(name, LATER.get(name, {})) for name in REGISTRY if name != "none"] + OTHERS
NAMES = [f"{kind}-{number}" for number, (kind, _) in enumerate(CASES)]
Given = dict[str, Any]


def layout_of(names: list[str]) -> BucketLayout:
    return BucketLayout.behind(0, ((n, list(SHAPES).index(n), SHAPES[n]) for n in names))


WHOLE = layout_of(list(SHAPES))
DENSE = [name for name in SHAPES if name.endswith("bias") or name == "scale"]
"""Tensors that `below: 10` and `*.bias` name."""
REST = [name for name in SHAPES if name not in DENSE]
KEPT = {"below": 10, "names": ["*.bias"]}


def gradient(step: int, rank: int, name: str) -> Tensor:
    seed = 1000 * step + 10 * rank + list(SHAPES).index(name)
    generator = torch.Generator().manual_seed(seed)
    return 0.1 * torch.randn(math.prod(SHAPES[name]), generator=generator)


def buckets(layout: BucketLayout, step: int, moments: bool) -> list[Bucket]:
    found = []
    for rank in range(COUNT):
        flat = torch.cat([gradient(step, rank, piece.name) for piece in layout.slices])
        moment = 2 * flat.square() if moments else None
        found.append(
            Bucket(layout=layout, gradient=flat, second_moment=moment, loss=1.0 / (step + 1))
        )
    return found


def trained(
    method: Method, layout: BucketLayout, steps: range, data: int = 0
) -> list[tuple[list[Tensor], list[CollectiveRecord]]]:
    """Each step: updates by rank, and collectives; gradients are those of `data` steps later."""
    cls, parameters = method.compressor, method.parameters
    team = [
        new_member(cls, Worker(rank=rank, count=COUNT, seed=3), parameters) for rank in range(COUNT)
    ]
    found = []
    for step in steps:
        given = buckets(layout, step + data, "second_moments" in cls.requires)
        seen = Collectives()
        with torch.no_grad():
            exchanges = [participate(m, b, step) for m, b in zip(team, given, strict=True)]
            found.append((lockstep(exchanges, seen), seen.collectives))
    return found


def dense_updates(method: Method, layout: BucketLayout, steps: int) -> Iterator[Tensor]:
    """Updates of dense SGD, under the method's momentum, as `torch.optim.SGD` adds it."""
    coefficient, nesterov = method.compressor.momentum(method.parameters)
    velocity = torch.zeros(layout.numel)
    for step in range(steps):
        mean = sum(b.gradient / COUNT for b in buckets(layout, step, moments=False))
        assert isinstance(mean, Tensor)
        velocity = coefficient * velocity + mean
        plain = mean if not coefficient else velocity
        yield torch.add(mean, velocity, alpha=coefficient) if nesterov else plain


def accepts(kind: str, given: Given) -> bool:
    try:
        method_of(kind, given)
    except InputError:
        return False
    return True


@pytest.mark.parametrize(("kind", "given"), CASES, ids=NAMES)
def test_after_dense_steps_comes_a_method_started_fresh(kind: str, given: Given) -> None:
    plain = method_of(kind, given)
    asked = {**given, "dense_steps": BEFORE}
    assert accepts(kind, asked) != plain.compressor.properties(plain.parameters).scale_free
    if not accepts(kind, asked):
        return
    delayed = method_of(kind, asked)
    found = trained(delayed, WHOLE, range(BEFORE + STEPS))
    for (updates, sent), expected in zip(found, dense_updates(plain, WHOLE, BEFORE), strict=False):
        assert all(torch.equal(update, expected) for update in updates)
        assert [record.sent for record in sent] == [(4 * WHOLE.numel,) * COUNT]
    fresh = trained(plain, WHOLE, range(STEPS), data=BEFORE)
    for (updates, sent), (alone, sent_alone) in zip(found[BEFORE:], fresh, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(updates, alone, strict=True))
        assert sent == sent_alone


@pytest.mark.parametrize(("kind", "given"), CASES, ids=NAMES)
def test_beside_dense_tensors_is_the_method_on_the_others_alone(kind: str, given: Given) -> None:
    plain, asked = method_of(kind, given), {**given, "dense_tensors": KEPT}
    assert accepts(kind, asked) != plain.compressor.properties(plain.parameters).scale_free
    if not accepts(kind, asked):
        return
    found = trained(method_of(kind, asked), WHOLE, range(STEPS))
    kept, rest = layout_of(DENSE), layout_of(REST)
    alone = trained(plain, rest, range(STEPS))
    dense = dense_updates(plain, kept, STEPS)
    for (updates, sent), (others, sent_alone), expected in zip(found, alone, dense, strict=True):
        for update, other in zip(updates, others, strict=True):
            parts = {piece.name: part for piece, part in WHOLE.views(update)}
            assert torch.equal(torch.cat([parts[name] for name in DENSE]), expected)
            assert torch.equal(torch.cat([parts[name] for name in REST]), other)
        total, total_alone = (sum(sum(r.sent) for r in each) for each in (sent, sent_alone))
        assert total == total_alone + COUNT * 4 * kept.numel
        assert len(sent) <= len(sent_alone) + 1


def rounded(tensors: Sequence[Tensor], op: Operation) -> Tensor:
    """The oracle: float32 sums are numpy's of float16, in rank order."""
    if op != "sum" or tensors[0].dtype != torch.float32:
        return in_rank_order(tensors, op)
    total = tensors[0].numpy().astype(np.float16)
    for other in tensors[1:]:
        total = total + other.numpy().astype(np.float16)
    return torch.from_numpy(total.astype(np.float32))


@pytest.mark.parametrize(("kind", "given"), CASES, ids=NAMES)
def test_float_sums_are_halved_and_equal_the_oracle(kind: str, given: Given) -> None:
    plain, asked = method_of(kind, given), {**given, "payload": "fp16"}
    cls, parameters = plain.compressor, plain.parameters
    first = cls.warmup_steps(parameters)
    steps = range(first, first + STEPS)
    before = trained(plain, WHOLE, steps)
    sums = [r for _, sent in before for r in sent if is_float_sum(r)]
    if not accepts(kind, asked):
        assert not [record for record in sums if max(record.sent) > 8 * len(SHAPES)]
        return
    assert sums
    halves = trained(method_of(kind, asked), WHOLE, steps)
    for sent, halved in zip(before[0][1], halves[0][1], strict=True):
        if not is_float_sum(sent):
            assert halved == sent
            continue
        assert halved.sent == tuple(nbytes // 2 for nbytes in sent.sent)
        assert halved == replace(sent, sent=halved.sent, dtype="float16", element=2)
    team = [
        new_member(cls, Worker(rank=rank, count=COUNT, seed=3), parameters) for rank in range(COUNT)
    ]
    for step, (updates, _) in zip(steps, halves, strict=True):
        given_now = buckets(WHOLE, step, "second_moments" in cls.requires)
        with torch.no_grad():
            exchanges = [m.exchange(b, step) for m, b in zip(team, given_now, strict=True)]
            expected = lockstep(exchanges, reduction=rounded)
        assert all(torch.equal(a, b) for a, b in zip(updates, expected, strict=True))


def is_float_sum(record: CollectiveRecord) -> bool:
    """No registered method all-reduces maxima of float32 but norms, a few numbers a tensor."""
    return record.kind == "all_reduce" and record.dtype == "float32"


def test_the_three_compose_and_what_is_dense_stays_dense() -> None:
    given = {"rank": 2}
    both = {**given, "payload": "fp16", "dense_tensors": KEPT}
    plain = method_of("powersgd", given)
    found = trained(method_of("powersgd", {**both, "dense_steps": BEFORE}), WHOLE, range(6))
    later = trained(method_of("powersgd", both), WHOLE, range(4), data=BEFORE)
    halved = trained(
        method_of("powersgd", {**given, "payload": "fp16"}), layout_of(REST), range(4), BEFORE
    )
    dense = list(dense_updates(plain, WHOLE, 6))
    for step, (updates, _) in enumerate(found):
        parts = dict(zip(SHAPES, (part for _, part in WHOLE.views(updates[0])), strict=True))
        wanted = dict(zip(SHAPES, (part for _, part in WHOLE.views(dense[step])), strict=True))
        exact = SHAPES if step < BEFORE else DENSE
        assert all(torch.equal(parts[name], wanted[name]) for name in exact)
        if step >= BEFORE:
            assert torch.equal(updates[0], later[step - BEFORE][0][0])
            rest = torch.cat([parts[name] for name in REST])
            assert torch.equal(rest, halved[step - BEFORE][0][0])


def test_no_method_has_a_parameter_that_is_called_like_an_option() -> None:
    for name in REGISTRY:
        assert not set(OPTIONS) & set(compressor_class(name).Parameters.model_fields), name


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        ("none", {"payload": "fp16"}, "none is dense in all steps; kind: fp16 is dense training"),
        ("none", {"dense_steps": 3}, "none is dense in all steps"),
        ("topk", {"payload": "fp16"}, "payload has nothing to halve; its own parameter 'values'"),
        ("fp16", {"payload": "fp16"}, "adds up no float32 numbers"),
        ("signsgd", {"dense_steps": 3}, "do not tell how large the gradient is"),
        ("powersgd", {"payload": "fp8"}, "input should be 'fp16' or 'bf16'"),
        ("powersgd", {"dense_steps": 0}, "a number of steps, 1 or more, or a share"),
        ("powersgd", {"dense_steps": 1.0}, "a number of steps, 1 or more, or a share"),
        ("powersgd", {"dense_steps": True}, "a number of steps, 1 or more, or a share"),
        ("powersgd", {"dense_tensors": {}}, "write names:"),
        ("powersgd", {"dense_tensors": {"bellow": 3, "below": 4}}, "bellow"),
        ("powersgd", {"dense_step": 3}, "did you mean 'dense_steps'?"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(kind: str, given: Given, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        method_of(kind, given)


def nested(fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, bool]]:
    """Parameters with parameters of their own, and whether None leaves them out."""
    for key, field in fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        if any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds):
            yield key, NoneType in kinds


NESTED = [
    (kind, *found)
    for kind in REGISTRY
    for found in nested(compressor_class(kind).Parameters.model_fields)
] + [("topk", *found) for found in nested(Options.model_fields)]


def test_methods_and_options_have_nested_parameters() -> None:
    keys = {(kind, key) for kind, key, _ in NESTED}
    assert keys >= {("diloco", "outer"), ("local_sgd", "outer"), ("topk", "warm_up")}


@pytest.mark.parametrize("value", ["nesterov", 3, 0.5, True, ["name", "nesterov"], None])
@pytest.mark.parametrize(("kind", "key", "optional"), NESTED)
def test_a_nested_parameter_is_a_mapping_and_its_example_is_accepted(
    kind: str, key: str, optional: bool, value: object
) -> None:
    if value is None and optional:
        plain = method_of(kind, {}).parameters.model_dump()
        assert method_of(kind, {key: None}).parameters.model_dump() == plain
        return
    with pytest.raises(InputError) as caught:
        method_of(kind, {key: value})
    (problem,) = caught.value.problems
    assert problem.place == key
    assert f"{kind}.{key} = {value!r}: not a mapping" in problem.message
    example = yaml.safe_load(problem.hint.removeprefix("write it like "))
    method_of(kind, {"ratio": 0.01, **example} if kind == "topk" else example)


def test_plain_parameters_read_back() -> None:
    given = {"rank": 2, "dense_steps": 0.1, "payload": "bf16", "dense_tensors": KEPT}
    found = method_of("powersgd", given)
    for mode in ("python", "json"):
        assert method_of("powersgd", found.parameters.model_dump(mode=mode)) == found
    assert found.of_steps(1000).first_settled == 100
    with pytest.raises(InputError, match="share of the training's steps"):
        found.of_steps(None)


def test_a_pattern_that_names_no_tensor_is_refused() -> None:
    found = method_of("powersgd", {"dense_tensors": {"names": ["*.bias", "*.scale"]}})
    with pytest.raises(InputError, match=r"'\*\.scale' matches no tensor of the model"):
        found.require_names(SHAPES)


# --- a larger share at first ---------------------------------------------------------------------

BEGINNING: list[tuple[str, Given]] = [
    ("qsparse_local_sgd", {"interval": 1}),
    ("tk_ccd", {"groups": 4, "ratio": 0.3}),
]
SHARED = [
    (kind, given)
    for kind, given in (*CASES, *BEGINNING)
    if share_of(method_of(kind, given).parameters)[0]
    and accepts(kind, {**given, "warm_up": {"steps": 2, "from": 0.5}})
]


def test_every_method_with_a_share_can_begin_with_a_larger_one() -> None:
    kinds = {kind for kind, _ in SHARED}
    named = {kind for kind in REGISTRY if share_of(method_of(kind, {}).parameters)[0]}
    assert kinds == named
    assert {"topk", "randomk", "dgc", "gtopk", "sidco", "gradient_dropping", "dryden"} <= kinds


def test_the_share_falls_as_in_dgc() -> None:
    """25, 6.25, 1.5625 % and 0.4 %, then 0.1 %, a quarter of the warm-up each (DGC, section 3.3: by
    a factor of four; 0.25 / 4^4 = 1 / 1024)."""
    chosen = method_of("topk", {"ratio": 1 / 1024, "warm_up": {"steps": 200, "from": 0.25}})
    options = chosen.parameters
    assert isinstance(options, Options)
    shares = [share_of(options.at(step))[1] for step in range(201)]
    assert shares[::50] == pytest.approx([0.25, 0.0625, 0.015625, 0.00390625, 1 / 1024])
    ratios = [after / before for before, after in itertools.pairwise(shares)]
    assert ratios == pytest.approx([4**-0.02] * 200)
    assert chosen.compressor.warmup_steps(options) == 200
    part = method_of("topk", {"warm_up": {"steps": 0.1}, "dense_steps": 0.2}).of_steps(100)
    assert part.parameters.model_dump()["warm_up"] == {"steps": 10, "from": 0.25}
    assert part.compressor.warmup_steps(part.parameters) == 30


@pytest.mark.parametrize(("kind", "given"), SHARED)
def test_a_warm_up_begins_as_the_method_with_its_share_and_ends_as_the_method(
    kind: str, given: Given
) -> None:
    """The first step is that of a method with that share, to the last bit; of a message of fixed
    length, bytes fall from there to the method's; and what a method holds back, it delivers."""
    plain = method_of(kind, given)
    name, final = share_of(plain.parameters)
    first, steps = 0.5, 6
    warm = method_of(kind, {**given, "warm_up": {"steps": 4, "from": first}})
    larger = method_of(kind, {**given, name: 1 - first if name == "drop_rate" else first})
    found = trained(warm, WHOLE, range(steps))
    (updates, sent), *_ = trained(larger, WHOLE, range(1))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], updates, strict=True))
    assert found[0][1] == sent
    if kind in ("topk", "randomk", "gtopk"):
        alone = trained(plain, WHOLE, range(steps))
        nbytes = [sum(sum(r.sent) for r in records) for _, records in found]
        assert nbytes[-2:] == [sum(sum(r.sent) for r in records) for _, records in alone[-2:]]
        assert nbytes[:5] == sorted(nbytes[:5], reverse=True)
        assert nbytes[0] > nbytes[4]
    assert final < first


@pytest.mark.parametrize("kind", ["topk", "randomk", "gradient_dropping", "dryden", "sidco"])
def test_nothing_is_lost_while_the_share_falls(kind: str) -> None:
    """Updates and what all workers still hold back are the sum of all mean gradients."""
    given: Given = {"error_feedback": True} if kind == "randomk" else {}
    given |= {"momentum": 0.0} if kind == "gradient_dropping" else {}
    chosen = method_of(kind, {**given, "warm_up": {"steps": 3, "from": 0.3}})
    assert chosen.compressor.properties(chosen.parameters).conserves
    team = [
        new_member(chosen.compressor, Worker(rank=rank, count=COUNT, seed=3), chosen.parameters)
        for rank in range(COUNT)
    ]
    total, expected = torch.zeros(WHOLE.numel), torch.zeros(WHOLE.numel)
    for step in range(5):
        now = buckets(WHOLE, step, moments=False)
        with torch.no_grad():
            update, *_ = lockstep([participate(m, b, step) for m, b in zip(team, now, strict=True)])
        total += update
        expected += sum(bucket.gradient for bucket in now) / COUNT
    held = [member.residual_of(buckets(WHOLE, 0, moments=False)[0]) for member in team]
    left = sum(each for each in held if each is not None) / COUNT
    torch.testing.assert_close(total + left, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("qsgd", {}, "no share that could begin larger"),
        ("topk", {"ratio": 0.5}, "begins with a share of 0.25, and ends with 0.5"),
        ("dgc", {"warmup_epochs": 3}, "a warm-up of its own, of 3 steps"),
        ("qsparse_local_sgd", {}, "write a number: interval: 3"),
        ("none", {}, "dense in all steps"),
    ],
)
def test_a_warm_up_without_a_meaning_is_refused(kind: str, given: Given, says: str) -> None:
    with pytest.raises(InputError) as caught:
        method_of(kind, {**given, "warm_up": {"steps": 3}})
    (problem,) = caught.value.problems
    assert problem.place == "warm_up"
    assert says in f"{problem.message}; {problem.hint}"
