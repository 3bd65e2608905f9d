"""The reference methods do what PyTorch's hooks do, which run in two processes on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.reference import powersgd as torch_powersgd
from gcsim.compressors.reference.quantization import LEAST_SCALE, ranges, read_ranges
from gcsim.errors import InputError
from tests.compressors.shared import Team, normal
from tests.process import OVER_LOOPBACK, printed

WORKER = Path(__file__).with_name("hooks_worker.py")
SHAPES = [(16, 24), (7,), (8, 3, 3, 3), (16, 24), (30, 20), ()]
MATRICES = [(16, 24), (8, 3, 3, 3), (16, 24), (30, 20), (3,), (5, 4)]
STEPS, START, PERIOD = 7, 2, 3
POWER_SGD: dict[str, dict[str, Any]] = {
    "rank 1": {"rank": 1},
    "rank 2": {"rank": 2},
    "rank 3": {"rank": 3},
    "cold": {"rank": 2, "warm_start": False},
    "no feedback": {"rank": 1, "error_feedback": False},
    "epsilon": {"rank": 1, "epsilon": 1e-3},
}


def gradients() -> list[list[Tensor]]:
    """Gradients by step and rank; N(0, 1) exp(.8 N(0, 1)) of different sizes."""
    n = sum(torch.Size(shape).numel() for shape in MATRICES)
    generator = torch.Generator().manual_seed(0)
    return [
        [
            torch.randn(n, generator=generator) * torch.randn(n, generator=generator).mul(0.8).exp()
            for _ in range(2)
        ]
        for _ in range(STEPS)
    ]


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of the real hooks, by rank."""
    folder = tmp_path_factory.mktemp("hooks")
    torch.save({"shapes": MATRICES, "gradients": gradients()}, folder / "job.pt")
    printed(WORKER, folder, **OVER_LOOPBACK)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_casts_are_equal_to_the_hooks_bit_for_bit(hooks: list[dict[str, Any]], name: str) -> None:
    crew = Team(f"torch_{name}", MATRICES)
    for t, given in enumerate(gradients()):
        for rank, update in enumerate(crew.step(given, t)):
            assert torch.equal(update, hooks[rank][name][t])
        assert crew.sent == [(2 * given[0].numel(),) * 2]  # 16 bits an element


def test_a_cast_overflows_before_the_division_could_help() -> None:
    # 1e5 is beyond float16, the mean 5e4 is not: half way between multiples of 32, to even
    given = [torch.tensor([1e5, 6e4]), torch.tensor([0.0, 6e4])]
    with pytest.raises(InputError, match="1 of 2 elements"):
        Team("torch_fp16", [(2,)]).step(given)
    assert Team("fp16", [(2,)]).step(given)[0].tolist() == [49984.0, 6e4]


@pytest.mark.long
@pytest.mark.parametrize("name", POWER_SGD)
def test_powersgd_is_equal_to_the_hook_given_its_draws(
    hooks: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # To the last bit but for the order of sums in matrix products, which a library may choose
    # differently between processes; an algorithmic difference would be of order 1.
    crew = Team("torch_powersgd", MATRICES, start=START, **POWER_SGD[name])
    draws = hooks[0][f"{name} draws"]
    a_step = len(draws) // (STEPS - START if name == "cold" else 1)

    def of_step(seed: int, step: int, tensor: int, purpose: str) -> Iterator[Tensor]:
        return iter(draws[(step - START) * a_step :])

    def drawn(generator: Iterator[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
        return next(generator).clone().view(shape)

    monkeypatch.setattr(torch_powersgd, "stream", of_step)
    monkeypatch.setattr(torch_powersgd, "gaussian", drawn)
    for t, given in enumerate(gradients()):
        for rank, update in enumerate(crew.step(given, t)):
            torch.testing.assert_close(update, hooks[rank][name][t], rtol=2e-5, atol=2e-6)


def test_powersgd_takes_three_all_reduces_of_the_hooks_sizes() -> None:
    crew = Team("torch_powersgd", SHAPES, start=1, rank=2)
    given = [torch.ones(sum(torch.Size(shape).numel() for shape in SHAPES))] * 2
    crew.step(given, 0)
    assert crew.sent == [(4 * given[0].numel(),) * 2]
    crew.step(given, 1)
    # 2 (16 + 24) 2 = 160 < 384; 2 (8 + 27) 2 = 140 < 216; 2 (30 + 20) 2 = 200 < 600; not 7, 1
    left, right, plain = 2 * (16 + 8 + 16 + 30), 2 * (24 + 27 + 24 + 20), 7 + 1
    assert crew.sent == [(4 * plain,) * 2, (4 * left,) * 2, (4 * right,) * 2]


def test_a_zero_gradient_stays_zero_where_the_hook_divides_by_zero() -> None:
    crew = Team("torch_powersgd", [(10, 10)], start=0)
    for t in range(3):
        assert not crew.step([torch.zeros(100)] * 2, t)[0].any()


def test_powersgd_with_options_passes_all_checks() -> None:
    check("torch_powersgd", {"start": 0, "rank": 3, "epsilon": 1e-8})


@pytest.mark.long
def test_post_local_steps_are_those_of_hook_optimiser_and_averager(
    hooks: list[dict[str, Any]],
) -> None:
    # Parameters = -learning rate * sum of updates (SGD from zero), up to float32 rounding.
    crew = Team("torch_post_local_sgd", MATRICES, start=START, interval=PERIOD, momentum=0.9)
    parameters = [torch.zeros_like(g) for g in gradients()[0]]
    kinds = []
    for t, given in enumerate(gradients()):
        for rank, update in enumerate(crew.step(given, t)):
            parameters[rank] -= 0.1 * update
            expected = hooks[rank]["post_local"][t]
            torch.testing.assert_close(parameters[rank], expected, rtol=1e-4, atol=1e-4)
        kinds.append(len(crew.sent))
    assert kinds == [1, 1, 1, 0, 0, 1, 0]  # dense, dense, averaging at 2 and 5
    assert not torch.allclose(
        parameters[0], parameters[1], atol=1e-3
    )  # between averagings replicas differ


def test_post_local_windows_end_with_an_averaging() -> None:
    crew = Team("torch_post_local_sgd", [(5,)], start=7, interval=4)
    cls, parameters = type(crew.workers[0]), crew.workers[0].parameters
    first = cls.warmup_steps(parameters)
    assert [cls.phase(parameters, first + n) for n in range(4)] == ["local"] * 3 + ["averaging"]
    assert [cls.phase(parameters, n) for n in (0, 6, 7)] == ["dense", "dense", "averaging"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["pertensor", "perchannel"])
def test_quantisation_is_equal_to_the_hook_bit_for_bit(
    hooks: list[dict[str, Any]], name: str
) -> None:
    crew = Team(f"torch_quantization_{name}", MATRICES)
    for t, given in enumerate(gradients()):
        for rank, update in enumerate(crew.step(given, t)):
            assert torch.equal(update, hooks[rank][name][t])


def test_quantisation_sends_ranges_and_bytes() -> None:
    # 8 n + 64; with rows of 512, one more of them when n is a multiple, as the hook pads
    for n, rows in ((1000, 2), (1024, 3)):
        given = [normal(n, 1)] * 2
        crew = Team("torch_quantization_pertensor", [(n,)])
        crew.step(given)
        assert crew.sent == [(20 + 8,) * 2, (20 + n,) * 2]
        crew = Team("torch_quantization_perchannel", [(n,)])
        crew.step(given)
        assert crew.sent == [(20 + 8 * rows,) * 2, (20 + 512 * rows,) * 2]


def test_a_range_holds_zero_and_its_ends() -> None:
    # By hand: [1, 3] becomes [0, 3]: scale 3 / 255, zero point 0; [-5, 0]: zero point 255.
    scale, zero = ranges(torch.tensor([[1.0, 3.0], [-5.0, -1.0], [0.0, 0.0], [-2.0, 1.0]]))
    torch.testing.assert_close(scale, torch.tensor([3 / 255, 5 / 255, LEAST_SCALE, 3 / 255]))
    assert zero.tolist() == [0, 255, 0, 170]  # 2 / 3 of 255


def test_impossible_ranges_are_refused() -> None:
    crew = Team("torch_quantization_pertensor", [(3,)], workers=1)
    crew.step([torch.ones(3)])
    sent = crew.listener.received[0][0]
    read_ranges(sent, 3, 1)
    with pytest.raises(InputError, match="not one frame"):
        read_ranges(sent, 4, 1)
    with pytest.raises(InputError, match="bytes where"):
        read_ranges(sent, 3, 2)


def test_small_rows_are_an_option() -> None:
    check("torch_quantization_perchannel", {"bucket_size": 3})
