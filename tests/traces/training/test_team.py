"""Steps of data-parallel training."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.losses import sample_losses
from gcsim.traces.tasks.registry import make_split
from gcsim.traces.training.plan import Optimizer, Partition
from gcsim.traces.training.shares import Shares
from tests.traces.training.world import BATCH, entry, method, small, team, weights

WORKERS, STEPS, RATE = 4, 20, 0.1


def plain_training(
    optimizer: Optimizer,
    *,
    whole_batch: bool,
    accumulation: int = 1,
    clip: float | None = None,
    autocast: bool = False,
) -> torch.Tensor:
    """One process with `WORKERS` times the batch: torch's own optimiser; gradients of a worker's
    micro-batches accumulated, perhaps clipped, the mean over workers taken; or all taken in one
    pass. Weights in the model's order."""
    made = entry()
    data = make_split(made, 0).train
    shares = Shares(data, workers=WORKERS, batch=BATCH, seed=0, partition=Partition())
    model = build_model(made, seed=0)
    parameters = [parameter for _, parameter in trainable(model)]
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    kept = (
        {"momentum": optimizer.momentum}
        if optimizer.name == "sgd"
        else {"betas": (optimizer.momentum, optimizer.beta2)}
    )
    chosen = make[optimizer.name](
        parameters, lr=RATE, weight_decay=optimizer.weight_decay, foreach=False, **kept
    )
    for step in range(STEPS):
        numbers = range(step * accumulation, (step + 1) * accumulation)
        batches = [
            [data.taken(shares.indices(worker, number)) for number in numbers]
            for worker in range(WORKERS)
        ]
        chosen.zero_grad()
        if whole_batch:
            each = [pair for of_worker in batches for pair in of_worker]
            inputs, labels = (torch.cat(part) for part in zip(*each, strict=True))
            sample_losses(made, model(inputs), labels).mean().backward()  # type: ignore[no-untyped-call]  # torch's own
        else:
            sums = [torch.zeros_like(parameter) for parameter in parameters]
            for of_worker in batches:
                for inputs, labels in of_worker:  # (loss.mean() / accumulation).backward()
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        losses = sample_losses(made, model(inputs), labels)
                    losses = losses / (BATCH * accumulation)
                    losses.sum().backward()  # type: ignore[no-untyped-call]
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, clip)
                for total, parameter in zip(sums, parameters, strict=True):
                    assert parameter.grad is not None
                    total.add_(parameter.grad)
                chosen.zero_grad()
            for total, parameter in zip(sums, parameters, strict=True):
                parameter.grad = total / WORKERS
        chosen.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def lockstep_training(
    kind: str, optimizer: Optimizer, accumulation: int = 1, *, at_once: bool
) -> torch.Tensor:
    of = team(
        method(kind), workers=WORKERS, optimizer=optimizer, accumulation=accumulation,
        at_once=at_once,
    )  # fmt: skip
    assert (of._one_pass is None) != at_once
    for number in range(STEPS):
        done = of.step(number, RATE)
        assert [len(bucket) for bucket in done.collectives] == [1] * len(of.layouts)
    views = of._cut(weights(of)[0])  # in the model's order
    return torch.cat([view.flatten() for view in views])


@pytest.mark.parametrize("accumulation", [1, 3, 4])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_dense_training_is_one_process_with_all_batches(name: str, accumulation: int) -> None:
    """Bit for bit where both have a pass for each worker, worker after worker (four of them: a
    division by a power of two rounds nothing); to float32 rounding where one of them takes all
    batches in one pass. One all-reduce a bucket and step, whatever is accumulated."""
    optimizer = Optimizer(name=name, weight_decay=0.01)  # type: ignore[arg-type]
    found = lockstep_training("none", optimizer, accumulation, at_once=False)
    expected = plain_training(optimizer, whole_batch=False, accumulation=accumulation)
    assert torch.equal(found, expected)
    if name == "sgd":
        at_once = plain_training(optimizer, whole_batch=True, accumulation=accumulation)
        torch.testing.assert_close(found, at_once, rtol=1e-3, atol=1e-5)
        ours = lockstep_training("none", optimizer, accumulation, at_once=True)
        torch.testing.assert_close(ours, found, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "accumulation"),
    [({"clip": 0.3}, 1), ({"clip": 0.3}, 4), ({"autocast": True}, 1), ({"autocast": True}, 4)],
)
def test_clipped_gradients_and_bfloat16_passes_are_torchs(
    given: dict[str, Any], accumulation: int
) -> None:
    """Bit for bit: `clip_grad_norm_` on a worker's gradient of the whole step, before the exchange;
    `torch.autocast` around a pass, with gradients and updates in float32."""
    of = team(
        method("none"), workers=WORKERS, at_once=False, accumulation=accumulation, **given
    )  # fmt: skip
    for number in range(STEPS):
        of.step(number, RATE)
    found = torch.cat([view.flatten() for view in of._cut(weights(of)[0])])
    plain, asked = (
        plain_training(Optimizer(), whole_batch=False, accumulation=accumulation, **more)
        for more in ({}, given)
    )
    assert torch.equal(found, asked)
    assert not torch.equal(found, plain)
    assert torch.isfinite(found).all()


def test_clipping_scales_second_moments_by_the_square() -> None:
    """Sums over samples of the square of each sample's part of the gradient; a norm that is small
    enough changes nothing."""
    of, free = (team(method("variance"), clip=clip) for clip in (0.01, None))
    (_, moments), (_, before) = of._passes(0), free._passes(0)
    rows = of._rows.clone()
    with torch.no_grad():
        of._clipped(1e3, moments)
        assert torch.equal(of._rows, rows)
        of._clipped(0.01, moments)
    torch.testing.assert_close(of._rows.norm(dim=1), torch.full((2,), 0.01), rtol=1e-3, atol=0)
    for own, other, row, plain in zip(moments, before, of._rows, rows, strict=True):
        assert own is not None
        assert other is not None
        factor = float(row.norm() / plain.norm())
        torch.testing.assert_close(own, other * factor**2, rtol=1e-3, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_sgd_is_periodic_averaging_of_weights_under_any_schedule(momentum: float) -> None:
    """Each worker a model and torch's SGD of its own, whose weights are averaged after each third
    step; the plan's momentum is the method's."""
    made, workers, interval = entry(), 3, 3
    data = make_split(made, 0).train
    shares = Shares(data, workers=workers, batch=BATCH, seed=0, partition=Partition())
    models = [build_model(made, seed=0) for _ in range(workers)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1.0, momentum=momentum) for m in models]
    of = team(method("local_sgd", interval=interval, momentum=momentum), workers=workers)
    for number in range(STEPS):
        rate = 0.1 * (1 - number / STEPS)
        of.step(number, rate)
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, labels = data.taken(shares.indices(worker, number))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            sample_losses(made, model(inputs), labels).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        flat = torch.stack([nn.utils.parameters_to_vector(m.parameters()) for m in models]).detach()
        if (number + 1) % interval == 0:
            for model in models:
                nn.utils.vector_to_parameters(flat.mean(0), model.parameters())
            flat = flat.mean(0).expand(workers, -1)
        found = torch.stack([torch.cat([v.flatten() for v in of._cut(w)]) for w in weights(of)])
        torch.testing.assert_close(found, flat, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("kind", ["none", "variance", "ef_signsgd", "torch_post_local_sgd"])
def test_accumulated_micro_batches_are_one_batch_of_their_samples(kind: str) -> None:
    """For methods of all needs: gradients, second moments, weights of a worker's own. One step, as
    rounding may flip a sign later on."""
    whole, parts = (
        team(method(kind), workers=2, batch=8 * size, accumulation=8 // size) for size in (8, 2)
    )
    for of in (whole, parts):
        found = [of._pass(rank, 0) for rank in range(2)]
        (loss, moments), *_ = found
        if of is whole:
            expected_loss, expected, rows = loss, moments, of._rows.clone()
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(parts._rows, rows, rtol=1e-4, atol=1e-6)
    assert (moments is None) == (kind != "variance")
    if moments is not None:
        torch.testing.assert_close(moments, expected, rtol=1e-4, atol=1e-9)


def test_workers_that_differ_have_weights_of_their_own_until_they_meet() -> None:
    chosen = method("torch_post_local_sgd", start=0, interval=4)
    of = team(chosen, workers=3)
    for number in range(9):
        of.step(number, 0.05)
        spread = float((weights(of) - weights(of)[0]).abs().max())
        if number % 4 == 0:  # an averaging: up to the rounding of its mean
            assert spread < 1e-6
        else:
            assert spread > 1e-4


def test_running_statistics_are_those_of_worker_0() -> None:
    """As with DDP's broadcast_buffers: worker 0's batches alone move them."""
    of = team(method("none"), workers=3, model="normalised", limits=(1 << 20, 1 << 20))
    reference = team(method("none"), workers=3, model="normalised", limits=(1 << 20, 1 << 20))
    mean = None
    for number in range(3):
        inputs, _ = reference._taken([0], number)
        layers = copy.deepcopy(list(of._model.children()))
        hidden = layers[0](inputs)
        before = torch.zeros(16) if mean is None else mean
        mean = (0.9 * before + 0.1 * hidden.mean(0)).detach()
        of.step(number, 0.05)
        torch.testing.assert_close(of.state()["buffers"][0], mean)


def test_what_is_judged_is_the_mean_of_the_replicas() -> None:
    of = team(method("cser_pl", interval=50), workers=2)
    for number in range(5):
        of.step(number, 0.05)
    both = weights(of)
    loss, accuracy = of.evaluate()
    model = small()
    views = of._cut(both.mean(0))
    with torch.no_grad():
        for parameter, view in zip(model.parameters(), views, strict=True):
            parameter.copy_(view)
        test = make_split(entry(), 0).test
        inputs, labels = test.taken(np.arange(len(test)))
        logits = model(inputs)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert accuracy == pytest.approx(float((logits.argmax(1) == labels).float().mean()), abs=1e-6)
    assert torch.equal(weights(of), both)
