"""Live training: it learns, it is repeatable, and it is data-parallel SGD."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gcsim.errors import InputError
from gcsim.traces.live import LiveTrainer, WorkerGradients, pick_device
from gcsim.traces.models.building import build_model, trainable
from gcsim.traces.models.registry import shipped_model
from gcsim.traces.models.torch_generator import keyed_generator
from gcsim.traces.tasks.images import Textures

LENET = shipped_model("lenet")


def trainer(
    seed: int = 0, model: nn.Module | None = None, rate: float = 0.02, batch_size: int = 16
) -> LiveTrainer:
    return LiveTrainer(
        LENET,
        model or build_model(LENET, seed=seed),
        Textures((1, 32, 32), 10, seed),
        batch_size=batch_size,
        learning_rate=rate,
        momentum=0.9,
        seed=seed,
    )


def taken(
    seed: int = 0, workers: int = 2, with_second_moments: bool = False
) -> list[WorkerGradients]:
    training = trainer(seed)
    list(training.warm_up(3))
    return list(training.gradients(2, workers, with_second_moments=with_second_moments))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_network_learns_the_task(seed: int) -> None:
    losses = list(trainer(seed, rate=0.01, batch_size=128).warm_up(160))
    # Samples are never seen twice, so who knows nothing of them stays at ln 10 = 2.30 or above.
    assert sum(losses[:5]) / 5 > 2.2
    assert sum(losses[-20:]) / 20 < 1.0


def test_equal_seeds_give_equal_gradients_bit_for_bit() -> None:
    for one, other in zip(taken(), taken(), strict=True):
        assert one.loss == other.loss
        for a, b in zip(one.gradients, other.gradients, strict=True):
            assert torch.equal(a, b)


def test_other_seeds_workers_and_iterations_give_other_gradients() -> None:
    gradients = [found.gradients[0] for found in [*taken(0), *taken(1)[:1]]]
    for i, one in enumerate(gradients):
        for other in gradients[i + 1 :]:
            assert not torch.equal(one, other)


def test_gradients_of_a_worker_do_not_depend_on_how_many_there_are() -> None:
    few, many = taken(workers=1), taken(workers=3)
    for a, b in zip(few[0].gradients, many[0].gradients, strict=True):
        assert torch.equal(a, b)  # the first iteration starts from the same weights


def test_iterations_and_workers_come_in_order() -> None:
    places = [(found.iteration, found.worker) for found in taken(workers=3)]
    assert places == [(i, w) for i in range(2) for w in range(3)]


def test_weights_advance_as_torchs_sgd_with_the_workers_mean_gradient() -> None:
    training = trainer()
    list(training.warm_up(2))
    list(training.gradients(2, 2))
    reference = build_model(LENET, seed=0)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.02, momentum=0.9)
    task = Textures((1, 32, 32), 10, 0)
    for step in range(4):
        optimiser.zero_grad()
        workers, samples = (1, 4) if step < 2 else (2, 16)  # a quarter of a batch in warm-up
        for worker in range(workers):
            images, labels = task.batch(samples, worker=worker, step=step)
            loss = cross_entropy(reference(images), labels) / workers
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    for one, (_, other) in zip(training._parameters, trainable(reference), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_gradients_that_were_handed_out_do_not_change_later() -> None:
    training = trainer()
    kept = []
    for found in training.gradients(2, 2):
        kept.append((found, [gradient.clone() for gradient in found.gradients]))
    for found, copies in kept:
        assert all(map(torch.equal, found.gradients, copies))


def test_second_moments_do_not_change_the_training() -> None:
    for one, other in zip(taken(), taken(with_second_moments=True), strict=True):
        assert other.second_moments is not None
        torch.testing.assert_close(one.loss, other.loss)
        for a, b in zip(one.gradients, other.gradients, strict=True):
            torch.testing.assert_close(a, b)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.layer = nn.Linear(1024, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(self.drop(images.flatten(1)))
        return logits


def test_dropout_is_keyed_and_leaves_the_global_generator_alone() -> None:
    first = []
    for noise in (1, 2):
        with keyed_generator(0, "dropping"):
            model = Dropping()
        torch.rand(noise)  # the global generator stands elsewhere
        before = torch.get_rng_state()
        found = next(trainer(model=model).gradients(1, 1))
        assert torch.equal(torch.get_rng_state(), before)
        first.append(found.gradients[0])
    assert torch.equal(*first)
    assert float((first[0] == 0).double().mean()) < 0.1  # 16 samples: 2^-16 of inputs all dropped


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    taken(with_second_moments=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_diverging_training_is_named() -> None:
    with pytest.raises(InputError, match="training diverged: the loss of warm-up step"):
        list(trainer(rate=1e6).warm_up(10))


def test_a_parameter_without_gradient_is_named() -> None:
    model = build_model(LENET, seed=0)
    model.register_parameter("idle", nn.Parameter(torch.zeros(2)))
    with pytest.raises(InputError, match="parameter idle: error: gets no gradient"):
        list(trainer(model=model).warm_up(1))


def test_a_missing_gpu_and_an_unknown_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == "cpu"
    with pytest.raises(InputError, match="torch sees no GPU"):
        pick_device("cuda")
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        pick_device("tpu")
