"""Gradient sampling: probabilities add up to k, masks agree, the prior does what it says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from gcsim.compressors import check
from gcsim.compressors.coding.selecting.sampling import Weights
from gcsim.compressors.coding.selecting.scales import scales_for_count
from gcsim.compressors.registry import check_parameters
from gcsim.compressors.segments import Segments
from gcsim.errors import InputError, InternalError
from tests.compressors.shared import Team, normal

NAME = "gradient_sampling_bayes"
TOY = torch.tensor([64.0, 16, 8, 4, 4, 2, 1, 1])


def scale_for_count(values: Tensor, k: int, rounds: int) -> float:
    weights = Weights.of(values, Segments.alone(values.numel()))
    given = weights.values, weights.sums, weights.segments
    return float(scales_for_count(*given, np.array([float(k)]), rounds)[0])


def probabilities(weight: Tensor, k: int, rounds: int = 5) -> Tensor:
    found: Tensor = weight.double() * scale_for_count(weight, k, rounds)
    return found.clamp(max=1.0)


def test_toy_vector_is_normalised_as_worked_out_by_hand() -> None:
    # sum 100. Round 1: 4 * 64/100 > 1, F = {64}, kappa = 3 * 100/36 = 8.333; round 2: 8.333 *
    # 16/100 > 1, F = {64, 16}, kappa = 2 * 100/20 = 10; then no other exceeds 1.
    assert scale_for_count(TOY, 4, 1) * 100 == pytest.approx(25 / 3)
    assert scale_for_count(TOY, 4, 5) * 100 == pytest.approx(10.0)
    assert probabilities(TOY, 4).tolist() == pytest.approx([1, 1, 0.8, 0.4, 0.4, 0.2, 0.1, 0.1])


def test_five_rounds_come_close_and_never_above_k() -> None:
    heavy = (2 * normal(100_000, 2)).exp().square()
    total = float(probabilities(heavy, 10_000, rounds=5).sum())
    assert 0.9 * 10_000 < total <= 10_000 * (1 + 1e-6)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50).filter(any), st.floats(0, 1))
@example([3e-31, 1.0, 3e-31], 0.5)  # a rest that is lost in a sum with the heavy element
def test_normalisation_keeps_order_and_bounds(values: list[float], part: float) -> None:
    weight = torch.tensor(values)
    k = max(1, round(part * len(values)))
    p = probabilities(weight, k, rounds=60)
    assert float(p.sum()) <= k * (1 + 1e-6)
    order = weight.argsort()
    assert bool((p[order].diff() >= 0).all())
    if int((weight > 0).sum()) >= k:
        assert float(p.sum()) == pytest.approx(k, rel=1e-6)


def test_fewer_positive_weights_than_k_are_all_certain() -> None:
    assert probabilities(torch.tensor([1.0, 0, 1e-9, 0]), 3).tolist() == [1, 0, 1, 0]
    assert scale_for_count(torch.zeros(4), 2, 5) == 0.0


def synchronised(n: int, gradient: Tensor, **parameters: Any) -> Any:
    workers = Team(NAME, [(n,)], **{"workers": 1, **parameters})
    workers.step([gradient] * len(workers.workers), 0)
    return workers


def test_synchronisation_is_the_half_precision_all_reduce() -> None:
    gradients = [normal(1000, seed) for seed in range(2)]
    sampling, half = Team(NAME, [(1000,)]), Team("fp16", [(1000,)])
    assert torch.equal(sampling.step(gradients, 300)[0], half.step(gradients)[0])  # 300 = 3 tau
    assert sampling.sent == [(2000, 2000)]


def test_a_sampled_step_sends_sixteen_bits_for_each_sample_and_no_index() -> None:
    gradients = [normal(5050, seed) for seed in range(2)]
    workers = Team(NAME, [(100, 50), (50,)], ratio=0.1)
    workers.step(gradients, 0)
    first, second = workers.step(gradients, 1)
    assert torch.equal(first, second)
    assert workers.sent == [(2 * int((first != 0).sum()),) * 2]
    kept = first != 0
    mean = (gradients[0].half() / 2 + gradients[1].half() / 2).float()
    assert torch.equal(first[kept], mean[kept])


def test_sample_count_has_the_mean_and_spread_of_independent_draws() -> None:
    # Poisson-binomial: mean sum(p) = k = 100, variance sum p(1 - p); for N(0, 1) exp(.8 N(0, 1))
    # the standard deviation is about 8.9.
    n = 10_000
    gradient = normal(n, 1) * (0.8 * normal(n, 2)).exp()
    workers = synchronised(n, gradient, alpha=1.0, tau=1000)
    p = probabilities((gradient.half().float() / gradient.abs().max()).square(), 100)
    variance = float((p * (1 - p)).sum())
    assert variance**0.5 == pytest.approx(8.9, abs=0.1)
    counts = torch.tensor(
        [float((workers.step([gradient], t)[0] != 0).sum()) for t in range(1, 401)]
    )
    assert float(counts.mean()) == pytest.approx(100.0, abs=4.5 * (variance / 400) ** 0.5)
    assert float(counts.std()) == pytest.approx(variance**0.5, rel=0.16)  # 4.5 / sqrt(2 * 400)


def test_inclusion_frequency_is_the_probability_so_the_mean_update_is_p_times_g() -> None:
    # The toy weights w = g^2; probabilities by hand above.
    gradient = torch.tensor([8.0, -4, 8**0.5, 2, -2, 2**0.5, 1, -1])
    p = torch.tensor([1, 1, 0.8, 0.4, 0.4, 0.2, 0.1, 0.1])
    draws = 4000
    workers = synchronised(8, gradient, ratio=0.5, alpha=1.0, tau=10_000)
    total = torch.zeros(8)
    for t in range(1, draws + 1):
        total += workers.step([gradient], t)[0]
    spread = gradient.abs() * (p * (1 - p) / draws).sqrt()
    deviation = (total / draws - p * gradient).abs()
    # float16 of sqrt(8) and sqrt(2) is off by 2^-11 of itself, of its square by 2^-10
    assert (deviation <= 4.5 * spread + 2.0**-9 * gradient.abs()).all()


def test_unbiased_divides_by_the_probability() -> None:
    gradient = torch.tensor([8.0, -4, 8**0.5, 2, -2, 2**0.5, 1, -1])
    p = torch.tensor([1, 1, 0.8, 0.4, 0.4, 0.2, 0.1, 0.1])
    workers = synchronised(8, gradient, ratio=0.5, alpha=1.0, tau=10_000, unbiased=True)
    update = sum(workers.step([gradient], t)[0] for t in range(1, 30))
    counted = update / gradient * p
    assert (counted - counted.round()).abs().max() < 0.03  # whole numbers of visits
    assert counted[:2].tolist() == pytest.approx([29.0, 29.0])


def test_the_prior_is_alpha_to_the_number_of_visits() -> None:
    n = 2000
    gradient = normal(n, 3) + 3.0  # nothing near zero, so that a visit shows
    workers = synchronised(n, gradient, ratio=0.1, alpha=0.8)
    visits = torch.zeros(n)
    for t in range(1, 10):
        visits += workers.step([gradient], t)[0] != 0
    state = workers.workers[0].distributions[0]
    torch.testing.assert_close(state.prior, 0.8**visits, rtol=1e-5, atol=0)
    assert visits.max() >= 2


def test_the_prior_survives_a_synchronisation() -> None:
    gradient = normal(500, 3)
    workers = synchronised(500, gradient, ratio=0.1, tau=3)
    for t in (1, 2, 3):
        workers.step([gradient], t)
    state = workers.workers[0].distributions[0]
    fresh = synchronised(500, gradient, ratio=0.1).workers[0].distributions[0]
    assert not bool((state.prior == 1).all())
    torch.testing.assert_close(state.weights.values, fresh.weights.values * state.prior)


def test_a_prior_that_has_fallen_everywhere_is_lifted_back_to_mean_one() -> None:
    gradient = torch.ones(20)
    workers = synchronised(20, gradient, ratio=1.0, tau=5, alpha=0.01)
    for t in range(1, 6):  # four visits each: 1e-8
        workers.step([gradient], t)
    assert workers.workers[0].distributions[0].prior.tolist() == pytest.approx([1.0] * 20)


def test_known_error_of_a_log_normal_gradient() -> None:
    # Of exp(N(0, 1)) at 1 %: sum (1 - p) g^2 is .77 of |g|^2 (top-k leaves .63), within sampling
    # error of the heavy tail. The largest 1 % of the elements has 36 % of the sum of g^2 but 92 %
    # of the sum of g^4: the weights of Algorithm 1 are not squared a second time.
    n = 100_000
    gradient = normal(n, 1).exp()
    weights = (gradient / gradient.max()).square()
    energy = gradient.double().square()
    lost = float(((1 - probabilities(weights, n // 100)) * energy).sum() / energy.sum())
    assert lost == pytest.approx(0.772, abs=0.02)
    for power, share in ((1, 0.36), (2, 0.92)):
        mass = energy.pow(power).sort(descending=True).values
        assert float(mass[: n // 100].sum() / mass.sum()) == pytest.approx(share, abs=0.02)


def test_a_zero_gradient_is_sampled_uniformly_afterwards() -> None:
    n = 10_000
    workers = synchronised(n, torch.zeros(n), alpha=1.0)
    update = workers.step([torch.ones(n)], 1)[0]
    assert int(update.sum()) == pytest.approx(100, abs=45)  # 4.5 sd of a binomial


def test_a_sampled_step_without_a_distribution_is_our_bug() -> None:
    with pytest.raises(InternalError, match="step 1 samples tensor 't0' before"):
        Team(NAME, [(10,)], workers=1).step([torch.ones(10)], 1)


def test_default_volume_is_one_percent() -> None:
    # 16 n (1/tau + (1 - 1/tau) k/n) / (32 n) = .995 % for tau = 100, k/n = .01
    n = 20_000
    workers = Team(NAME, [(n,)], workers=1)
    sent = 0
    for t in range(100):
        workers.step([normal(n, t)], t)
        sent += workers.sent[0][0]
    # sd of a count is below sqrt(k) = 14; of 99 of them 1.4e2 x 2 B
    assert sent / (100 * 4 * n) == pytest.approx(0.00995, rel=0.03)


# --- gradient sampling, random sampling, options -----------------------------------------------


def test_gradient_sampling_is_the_prior_one_with_alpha_one() -> None:
    plain = Team("gradient_sampling", [(40, 50)], ratio=0.1, tau=4)
    other = Team(NAME, [(40, 50)], ratio=0.1, tau=4, alpha=1.0)
    for t in range(9):
        gradients = [normal(2000, 10 * t + rank) for rank in range(2)]
        assert torch.equal(plain.step(gradients, t)[0], other.step(gradients, t)[0])


@pytest.mark.parametrize(
    ("spread", "times"), [pytest.param(0.0, 8.6, marks=pytest.mark.long), (0.8, 34.0)]
)
def test_gradient_sampling_finds_the_largest_many_times_as_often_as_random_sampling(
    spread: float, times: float
) -> None:
    # Share of the largest 1 % among what is sampled: sum of p over them / k, 1 % for random
    # sampling. 8.6 times as much for a Gaussian gradient, as in the paper's section 4.2 ("about 8
    # times", a layer of ResNet-50); more for heavier tails.
    n, steps = 50_000, 60
    gradient = normal(n, 1) * (spread * normal(n, 2)).exp()
    top = torch.zeros(n, dtype=torch.bool)
    top[gradient.abs().topk(n // 100).indices] = True
    share = {}
    for name, options in (
        ("gradient_sampling", {"tau": 1000}),
        ("random_sampling_bayes", {"alpha": 1.0}),
    ):
        crew = Team(name, [(n,)], workers=1, **options)
        hits = sampled = 0
        for t in range(steps):
            kept = crew.step([gradient], t)[0] != 0
            if int(kept.sum()) < n // 2:  # not the synchronisation
                hits += int((kept & top).sum())
                sampled += int(kept.sum())
        share[name] = hits / sampled
    p = probabilities(gradient.square(), n // 100)
    expected = float(p[top].sum() / p.sum())
    assert expected == pytest.approx(times / 100, rel=0.05)
    # 30 000 samples of which 1 %: 300 with sd 17; of which 8.6 %: 2580 with sd 48
    assert share["random_sampling_bayes"] == pytest.approx(0.01, abs=5 * 0.0006)
    assert share["gradient_sampling"] == pytest.approx(expected, rel=5 * 0.019)


def test_random_sampling_never_synchronises_and_is_uniform() -> None:
    n, steps = 5000, 200
    crew = Team("random_sampling_bayes", [(n,)], workers=2, ratio=0.05, alpha=1.0)
    visits = torch.zeros(n)
    for t in range(steps):
        update = crew.step([torch.ones(n)] * 2, t)[0]
        assert crew.sent == [(2 * int(update.sum()),) * 2]
        visits += update
    # Each count is binomial(200, .05): chi-square with n degrees of freedom.
    squares = float(((visits - 10).square() / 9.5).sum())
    assert squares == pytest.approx(n, abs=5 * (2.1 * n) ** 0.5)


def test_the_prior_makes_random_sampling_visit_everything_sooner() -> None:
    # Plain: (1 - .1)^20 = .12 of the elements are not seen in 20 steps. With alpha = .1, what was
    # sampled is ten times less likely than what was not.
    n = 5000
    missed = {}
    for alpha in (1.0, 0.1):
        crew = Team("random_sampling_bayes", [(n,)], workers=1, ratio=0.1, alpha=alpha)
        seen = sum((crew.step([torch.ones(n)], t)[0] for t in range(20)), torch.zeros(n))
        missed[alpha] = int((seen == 0).sum()) / n
    assert missed[1.0] == pytest.approx(0.9**20, abs=5 * (0.12 * 0.88 / n) ** 0.5)
    assert missed[0.1] < 0.3 * missed[1.0]


def test_a_prior_without_synchronisations_is_lifted_before_float32_ends() -> None:
    crew = Team("random_sampling_bayes", [(20,)], workers=1, ratio=1.0, alpha=0.01)
    for t in range(40):  # all are sampled each time: .01^40 without lifting
        assert bool((crew.step([torch.ones(20)], t)[0] == 1).all())
    assert float(crew.workers[0].distributions[0].weights.values.min()) > 1e-6


@pytest.mark.parametrize("name", ["gradient_sampling", "random_sampling_bayes"])
def test_a_residual_delivers_what_was_not_sampled_later(name: str) -> None:
    # Naive: a = e + g; the mean of a where sampled (everywhere at a synchronisation), e = 0 there.
    options: dict[str, Any] = {"tau": 4} if name == "gradient_sampling" else {}
    crew = Team(name, [(30, 10)], workers=3, ratio=0.2, residual=True, values="fp32", **options)
    memory = torch.zeros(3, 300)
    for t in range(10):
        gradients = [normal(300, 10 * t + rank) for rank in range(3)]
        update = crew.step(gradients, t)[0]
        memory += torch.stack(gradients)
        kept = update != 0
        torch.testing.assert_close(update[kept], memory.mean(0)[kept])
        memory[:, kept] = 0.0
        if name == "gradient_sampling":
            assert bool(kept.all()) is (t % 4 == 0)


def test_the_residual_keeps_what_float16_rounds_off() -> None:
    crew = Team("gradient_sampling", [(500,)], workers=1, residual=True, tau=3)
    total, wanted = torch.zeros(500).double(), torch.zeros(500).double()
    for t in range(7):
        gradient = normal(500, t)
        wanted += gradient
        total += crew.step([gradient], t)[0]
    residual_of = crew.workers[0].residual[0]
    torch.testing.assert_close(total + residual_of, wanted, rtol=0, atol=1e-5)


def test_float32_values_are_as_long_as_their_name_says() -> None:
    crew = Team("gradient_sampling", [(1000,)], values="fp32", tau=5, ratio=0.1)
    gradients = [normal(1000, rank) for rank in range(2)]
    torch.testing.assert_close(crew.step(gradients, 0)[0], (gradients[0] + gradients[1]) / 2)
    assert crew.sent == [(4000, 4000)]
    update = crew.step(gradients, 1)[0]
    assert crew.sent == [(4 * int((update != 0).sum()),) * 2]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        (NAME, {"residual": True, "values": "fp32", "tau": 3}),
        ("random_sampling_bayes", {"unbiased": True, "values": "fp32", "ratio": 0.2}),
    ],
)
def test_laws_hold_for_options(name: str, parameters: dict[str, Any]) -> None:
    check(name, parameters)


def test_unbiased_and_residual_exclude_each_other() -> None:
    with pytest.raises(InputError, match="exclude each other"):
        check_parameters("gradient_sampling", {"unbiased": True, "residual": True})
