"""Local SGD and DiLoCo are what torch's optimisers do to weights: inner ones on each worker's, an
outer one on the weights that all last had."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.base import Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.local_updates.local_sgd import LocalSgdParameters
from gcsim.compressors.lockstep import Collectives, lockstep
from gcsim.compressors.options.method import method_of
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import create
from gcsim.errors import InputError
from tests.compressors.shared import Team, layout_of, normal

COUNT, N, STEPS = 3, 410, 24
RATES = [0.05 * (1 + step % 5) / 5 for step in range(STEPS)]
"""A rate of its own in each step, as under a schedule."""
Gradients = Callable[[int, int], Tensor]


def by_updates(
    name: str, given: dict[str, Any], layout: BucketLayout, gradient: Gradients
) -> tuple[list[Tensor], list[int]]:
    """Weights after each step, float64 `[workers, n]`, from zeros, by updates times the rate; bytes
    that worker 0 sends."""
    team = [create(name, Worker(rank=r, count=COUNT, seed=7), given) for r in range(COUNT)]
    weights, sent, now = [], [], torch.zeros(COUNT, layout.numel).double()
    for step, rate in enumerate(RATES):
        seen = Collectives()
        buckets = [
            Bucket(layout=layout, gradient=gradient(step, rank), rate=rate) for rank in range(COUNT)
        ]
        with torch.no_grad():
            updates = lockstep(
                [participate(m, b, step) for m, b in zip(team, buckets, strict=True)], seen
            )
        now = now - rate * torch.stack(updates).double()
        weights.append(now)
        sent.append(sum(record.sent[0] for record in seen.collectives))
    return weights, sent


def by_weights(given: dict[str, Any], gradient: Gradients, fragments: int = 1) -> list[Tensor]:
    """The same by torch's optimisers on weights in float64."""
    interval, outer = given["interval"], {"lr": 1.0, "momentum": 0.0, **given.get("outer", {})}
    own = [torch.nn.Parameter(torch.zeros(N).double()) for _ in range(COUNT)]
    inner: list[torch.optim.Optimizer] = [
        torch.optim.Adam([each], lr=1.0, betas=(0.9, 0.99))
        if given.get("inner") == "adam"
        else torch.optim.SGD([each], lr=1.0, momentum=0.9)
        for each in own
    ]
    cuts = [slice(p * N // fragments, (p + 1) * N // fragments) for p in range(fragments)]
    held = [torch.nn.Parameter(torch.zeros(N)[cut].double()) for cut in cuts]
    steps = [
        torch.optim.SGD(
            [each], lr=outer["lr"], momentum=outer["momentum"],
            nesterov=outer.get("name") == "nesterov",
        )
        for each in held
    ]  # fmt: skip
    found = []
    for step, rate in enumerate(RATES):
        for rank, (each, optimizer) in enumerate(zip(own, inner, strict=True)):
            optimizer.param_groups[0]["lr"] = rate
            each.grad = gradient(step, rank).double()
            optimizer.step()
        for p, cut in enumerate(cuts):
            if (step + 1) % interval != (p + 1) * interval // fragments % interval:
                continue
            distances = [held[p].data - each.data[cut] for each in own]
            held[p].grad = torch.stack(distances).mean(0)
            steps[p].step()
            for each in own:
                each.data[cut] = held[p].data
        found.append(torch.stack([each.data.clone() for each in own]))
    return found


@pytest.mark.parametrize("fragments", [1, 2, 3])
@pytest.mark.parametrize(
    "given",
    [
        {"interval": 4},
        {"interval": 6, "outer": {"name": "nesterov", "lr": 0.7, "momentum": 0.9}},
        {"interval": 3, "outer": {"name": "sgd", "lr": 0.5, "momentum": 0.6}},
        {"interval": 4, "inner": "adam", "beta2": 0.99, "outer": {"lr": 0.8}},
    ],
)
def test_updates_are_the_optimisers_steps_of_weights(given: dict[str, Any], fragments: int) -> None:
    def gradient(step: int, rank: int) -> Tensor:
        return normal(N, 31 * step + rank)

    found, _ = by_updates(
        "local_sgd", {**given, "fragments": fragments}, layout_of(400, 10), gradient
    )
    for ours, expected in zip(found, by_weights(given, gradient, fragments), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5)


def test_an_outer_rate_of_1_without_momentum_is_the_mean_of_weights() -> None:
    """Weights after a synchronisation: the mean of all workers' heavy-ball steps so far, which is
    the heavy ball of the mean gradient."""
    found, _ = by_updates(
        "diloco", {"interval": 4, "outer": {"name": "sgd", "lr": 1.0}}, layout_of(N),
        lambda step, rank: normal(N, 31 * step + rank),
    )  # fmt: skip
    mean, velocity = torch.zeros(N).double(), torch.zeros(N).double()
    for step, rate in enumerate(RATES):
        gradients = [normal(N, 31 * step + rank) for rank in range(COUNT)]
        velocity = 0.9 * velocity + torch.stack(gradients).double().mean(0)
        mean = mean - rate * velocity
        spread = float((found[step] - found[step].mean(0)).abs().max())
        torch.testing.assert_close(found[step].mean(0), mean, rtol=0, atol=2e-5)
        assert (spread < 1e-5) == ((step + 1) % 4 == 0)


def test_pytorchs_averager_is_local_sgd() -> None:
    """At a constant rate. It averages after the steps start, start + 4, …, with a
    dense start: with start 3 and equal gradients until then, at local SGD's steps."""
    ours = Team("local_sgd", [(N,)], interval=4)
    theirs = Team("torch_post_local_sgd", [(N,)], start=3, interval=4)
    for step in range(12):
        given = [normal(N, 2 * step + rank * (step > 3)) for rank in range(2)]
        both = ours.step(given, step), theirs.step(given, step)
        if step > 3:  # a dense start and equal steps differ in rounding alone
            for one, other in zip(*both, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            assert ours.sent == theirs.sent


@pytest.mark.parametrize(("values", "steps"), [("int8", 127), ("int4", 7)])
@pytest.mark.parametrize("fragments", [1, 2])
def test_quantised_outer_gradients_are_right_to_a_step_of_their_norm(
    values: str, steps: int, fragments: int
) -> None:
    """A value is rounded to a neighbouring level, 1 / steps of its bucket's maximum; replicas meet
    at the mean of what was decoded."""
    outer = {"name": "nesterov", "lr": 0.7, "momentum": 0.9}

    def gradient(step: int, rank: int) -> Tensor:
        return normal(N, 31 * step + rank)

    given = {"interval": 6, "outer": outer, "fragments": fragments}
    exact, whole = by_updates("local_sgd", given, layout_of(400, 10), gradient)
    found, sent = by_updates("local_sgd", {**given, "values": values}, layout_of(400, 10), gradient)
    first = 6 // fragments  # steps until the first outer step, -(1 + .9) .7 times the distance
    part = slice(0, N // fragments)
    assert float((found[first - 1][:, part] - found[first - 1][0, part]).abs().max()) < 1e-5
    distance = max(float((exact[first - 2][rank, part]).abs().max()) for rank in range(COUNT))
    error = float((found[first - 1][0, part] - exact[first - 1][0, part]).abs().max())
    assert 0 < error <= 1.9 * 0.7 * 1.5 * distance / steps
    bits = 8 if values == "int8" else 4
    for own, other in zip(sent, whole, strict=True):  # with a norm and a header of 20 bytes
        assert own == (other // 4 * bits + 7) // 8 + 24 * (other > 0)


def test_fragments_are_sent_at_equal_distances_and_are_all_of_the_model() -> None:
    parameters = LocalSgdParameters.model_validate({"interval": 10, "fragments": 4})
    due = [parameters.due(step) for step in range(20)]
    assert due == 2 * [None, 0, None, None, 1, None, 2, None, None, 3]
    _, sent = by_updates(
        "local_sgd", {"interval": 10, "fragments": 4}, layout_of(N), lambda step, _: normal(N, step)
    )
    assert [step for step in range(20) if sent[step]] == [1, 4, 6, 9, 11, 14, 16, 19]
    assert sum(sent[:10]) == sum(sent[10:20]) == 4 * N
    assert max(sent) <= 4 * -(-N // 4)
    for interval, fragments in ((1, 1), (7, 7), (9, 2)):
        chosen = LocalSgdParameters.model_validate({"interval": interval, "fragments": fragments})
        found = [chosen.due(step) for step in range(interval)]
        assert [one for one in found if one is not None] == list(range(fragments))


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("local_sgd", {"fragments": 5}, "5 fragments do not find a step each in an interval of 4"),
        ("local_sgd", {"outer": {"name": "nesterov"}}, "nesterov needs a momentum"),
        ("diloco", {"outer": {"lr": 0}}, "greater than 0"),
        ("topk", {"outer": {"lr": 1.0}}, "'outer' belongs to local_sgd, diloco"),
    ],
)
def test_an_impossible_outer_optimiser_is_refused(
    kind: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        method_of(kind, given)
    (problem,) = caught.value.problems
    assert says in f"{problem.message}; {problem.hint}"
