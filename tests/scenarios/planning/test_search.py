"""The front of a search against all settings of a small grid, and against a naive definition."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcsim.errors import InputError
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.planning.offers import Offer
from gcsim.scenarios.planning.search import HOUR, Job, Point, Search, Site, Work, sizes, undominated
from gcsim.simulator.training import Strategy
from gcsim.traces.models.transformer import Checkpointing

TWO = "compressors=[none, fp16]"
NOISE = "training.noise={variation: 0.1}"
NOTHING: Any = None


def offer(device: str, gpus: int, nodes: int, price: float, network: str = "10gbe") -> Offer:
    return Offer(
        place="offers.csv:2", name=device, device=device, gpus=gpus, nodes=nodes, network=network,
        price=price,
    )  # fmt: skip


def search(*overrides: str, job: dict[str, Any] | None = None) -> Search:
    given = {"model": "lenet", "amount": 1e7, "batch": 4096.0, **(job or {})}
    offers = [offer("t4", 1, 3, 0.5), offer("v100", 4, 2, 6.0, "100gbe")]
    return Search(job=Job(**given, overrides=(TWO, *overrides)), offers=offers)


@pytest.fixture(scope="module")
def small() -> Search:
    return search()


def every(found: Search) -> list[Point]:
    return [
        point
        for site in found.sites
        for work in found.works(site)
        for point in found.points(work)
    ]  # fmt: skip


def naive(points: list[Point]) -> set[tuple[float, float]]:
    """Pairs than which no point is better in one and no worse in the other."""
    pairs = {(one.hours, one.money) for one in points}
    return {
        (hours, money)
        for hours, money in pairs
        if not any(h <= hours and m <= money and (h, m) != (hours, money) for h, m in pairs)
    }


@pytest.mark.parametrize("noise", [False, True])
def test_the_front_is_that_of_all_settings(small: Search, noise: bool) -> None:
    found = search(NOISE, "training.iterations=4") if noise else small
    points = every(found)
    before = found.simulated
    front = found.front()
    assert before == len(points)
    assert {(one.hours, one.money) for one in front} == naive(points)
    assert len(front) > 1
    assert [one.hours for one in front] == sorted(one.hours for one in front)
    if not noise:
        assert found.simulated - before < len(points)  # what cannot win is not simulated


def test_the_front_is_that_of_all_settings_by_the_first_strategy_that_fits() -> None:
    """In 12 GiB gpt2_medium's optimizer fits whole with small micro-batches, divided with larger
    ones. Of all works, each checked by its own scenario, those that surely fit by a strategy, and
    by none before it, have the front."""
    given = TWO, "training.device_memory=12 GiB"
    job = Job(model="gpt2_medium", amount=1e8, batch=16 * 256, sequence=256, overrides=given)
    found = Search(job=job, offers=[offer("v100", 2, 2, 1.0, "100gbe"), offer("t4", 1, 1, 0.2)])
    works = [
        Work(
            site=site, micro_batch=micro, accumulation=16 // site.workers // micro,
            checkpointing=kept, choices=(choice,), strategy=strategy,
        )
        for site in found.sites
        for micro in (1, 2, 4, 8, 16)
        if micro * site.workers <= 16
        for kept in get_args(Checkpointing)
        for strategy in get_args(Strategy)
        for choice in site.scenario.compressors[: 1 if site.workers == 1 else 2]
    ]  # fmt: skip
    largest = max(layout.numel for layout in found._known["dense"].profile.buckets)
    held = [work.scenario().tightest(work.choices[0], largest)[1] for work in works]
    sure = [work for work, one in zip(works, held, strict=True) if one and one.fits == "yes"]
    first = {
        (work.site.offer, work.site.nodes, work.micro_batch, work.checkpointing,
         work.choices[0].kind): work
        for work in reversed(sure)
    }  # fmt: skip
    sure = list(first.values())
    points = [point for work in sure for point in found.points(work)]
    before = found.simulated
    front = found.front()
    assert {(one.hours, one.money) for one in front} == naive(points)
    assert "zero2" in {one.work.strategy for one in front}
    assert found.simulated - before < len(points)
    divided = next(one.work for one in front if one.work.strategy == "zero2")
    assert "training.strategy=zero2" in divided.settings()
    job = replace(job, overrides=(*given, "training.strategy=ddp"))
    stated = Search(job=job, offers=found.offers)
    assert {work.strategy for site in stated.sites for work in stated.works(site)} == {"ddp"}


def test_the_faster_of_two_offers_is_that_with_the_shorter_printed_hours() -> None:
    """As stated TCP carries 18 of 100 Gbit/s and RDMA 90 % of 25, so RDMA is faster; but over the
    ranges (15 to 48 % and 64 to 92 %) TCP's median is, at the same price."""
    job = Job(model="vgg16", amount=1e6, batch=512.0, loop="own", overrides=("compressors=[none]",))
    two = [offer("a100_sxm_80gb", 1, 2, 9.0, network) for network in ("25gbe_roce", "100gbe")]
    fastest = Search(job=job, offers=two).front()[0]
    assert (fastest.work.site.nodes, fastest.work.site.offer.network) == (2, "100gbe")


class Grid(Search):
    """Ten sites of 50 works with four methods each, of hours that a table holds."""

    def __post_init__(self) -> None:
        self.sites = tuple(
            Site(offer=offer("t4", 1, nodes, 0.5), nodes=nodes, scenario=NOTHING)
            for nodes in range(1, 11)
        )
        draws = np.random.default_rng(len(self.job.model))
        self.table = draws.lognormal(sigma=0.2, size=(10, 50, 4)) * 8
        self.bounds = self.table.min(axis=2) * draws.uniform(0.5, 1, size=(10, 50))
        self.question = 0

    def works(self, site: Site) -> list[Work]:
        return [
            Work(site=site, micro_batch=n, accumulation=1, checkpointing="none", choices=())
            for n in range(50)
        ]

    def shortest(self, work: Work) -> tuple[float, float]:
        bound = float(self.bounds[work.site.nodes - 1, work.micro_batch]) / work.site.nodes**0.5
        return bound, bound * work.site.price

    def points(self, work: Work) -> Iterator[Point]:
        for hours in self.table[work.site.nodes - 1, work.micro_batch] / work.site.nodes**0.5:
            self.question += 1
            money = float(hours) * work.site.price
            yield Point(work=work, choice=NOTHING, row=NOTHING, hours=float(hours), money=money)


@pytest.mark.parametrize("name", ["lenet", "alexnet", "resnet50"])
def test_the_front_is_that_of_two_thousand_settings(name: str) -> None:
    """More nodes are faster and dearer, so the front has some of them; most works are left out
    by the bound alone."""
    found = Grid(job=Job(model=name, amount=1.0, batch=1.0), offers=())
    front = found.front()
    question = found.question
    assert question < 1000
    points = every(found)
    assert len(points) == 2000
    assert {(one.hours, one.money) for one in front} == naive(points)
    assert len(front) > 1


def test_what_does_not_fit_is_told_offers_alone() -> None:
    """8 billion parameters with Adam need 16 bytes each, for which the catalogue has devices."""
    job = Job(model="llama3_8b", amount=1e7, batch=1e6, sequence=2048, overrides=(TWO,))
    for devices, cured in ((["t4"], False), (["t4", "b200"], True)):
        offers = [offer(device, 1, 4, 1.0) for device in devices]
        found = Search(job=job, offers=offers)
        misfit = found.misfit(found.sites[2])
        assert misfit is not None
        texts = [one.text for one in misfit.remedies]
        named = [text for text in texts if text.startswith("an offer with b200 (")]
        assert bool(named) is cured
        assert not any("cluster.device" in text for text in texts)


def test_no_iteration_is_shorter_than_the_bound(small: Search) -> None:
    for point in every(small):
        hours, money = small.shortest(point.work)
        assert 0 < hours <= point.hours
        assert 0 < money <= point.money


def test_hours_and_money_are_those_of_so_many_steps(small: Search) -> None:
    for point in every(small):
        work = point.work
        samples = work.site.offer.gpus * work.site.nodes * work.micro_batch * work.accumulation
        assert samples <= 4096
        assert small.steps[point.row.label] == 1.0  # dense and half precision: the same steps
        assert point.hours == pytest.approx(1e7 / samples * point.row.iteration_s / HOUR)
        assert point.money == pytest.approx(point.hours * work.site.nodes * work.site.offer.price)


def test_sites_are_powers_of_two_of_nodes_and_all(small: Search) -> None:
    assert [(site.offer.device, site.nodes) for site in small.sites] == [
        ("t4", 1), ("t4", 2), ("t4", 3), ("v100", 1), ("v100", 2)
    ]  # fmt: skip
    assert [sizes(most) for most in (1, 4, 6)] == [[1], [1, 2, 4], [1, 2, 4, 6]]


def test_one_device_exchanges_nothing_and_so_has_no_methods(small: Search) -> None:
    kinds = {
        site.workers: {choice.kind for work in small.works(site) for choice in work.choices}
        for site in small.sites
    }
    assert kinds[1] == {"none"}
    assert kinds[2] == {"none", "fp16"}


def test_a_batch_smaller_than_the_workers_leaves_those_machines_out() -> None:
    found = search(job={"batch": 2.0})
    works = {site.workers for site in found.sites if found.works(site)}
    assert works == {1, 2}
    assert all(found.misfit(site) is None for site in found.sites)


def test_a_mistake_in_an_offer_has_its_line() -> None:
    with pytest.raises(InputError) as refusal:
        Search(job=Job(model="lenet", amount=1.0, batch=8.0, overrides=("batch_siz=3",)),
               offers=[offer("t4", 1, 1, 1.0)])  # fmt: skip
    assert "batch_siz" in str(refusal.value)


def test_settings_that_a_plan_chooses_are_refused_all_at_once() -> None:
    """`cluster.device` would time every offer with that device, under the offers' own names."""
    with pytest.raises(InputError) as refusal:
        search("cluster.device=v100", "batch_size=7", "cluster.network.latency=1 ms")
    places = [one.place for one in refusal.value.problems]
    assert places == ["--set cluster.device", "--set batch_size"]


def test_a_mapping_with_a_setting_that_a_plan_chooses_is_refused() -> None:
    with pytest.raises(InputError, match=r"training\.accumulation"):
        search("training={accumulation: 4, exposed: 0}")


def plain(hours: float, money: float, sure: bool = True) -> Point:
    work: Any = SimpleNamespace(sure=sure)
    return Point(work=work, choice=NOTHING, row=NOTHING, hours=hours, money=money)


@pytest.mark.parametrize(("precision", "warned"), [("bf16", 1), (None, 0)])
def test_a_warning_about_all_offers_is_told_once(
    precision: str | None, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A precision has no effect on stated times; a default one is not stated at all."""
    search("compute={forward: 1 ms, backward: 2 ms}", job={"precision": precision})
    assert sum("training.precision" in one.message for one in caplog.records) == warned


@pytest.mark.parametrize(("device", "passes"), [("v100", "fp16"), ("p40", "fp32")])
def test_passes_of_half_gradients_are_those_of_advice(device: str, passes: str) -> None:
    """In 16 bits where the device has times of them."""
    half = "training.gradients=bf16"
    job = Job(model="lenet", amount=1e7, batch=4096.0, overrides=(TWO, half))
    (site, *_) = Search(job=job, offers=[offer(device, 1, 2, 1.0)]).sites
    advised = ask(None, Words(model="lenet", device=device, nodes=2, network="10gbe"), [half])
    assert site.scenario.training.precision == advised.scenario.training.precision == passes


def test_what_may_not_fit_beats_nothing_that_surely_fits() -> None:
    doubtful, sure, beaten = plain(1, 1, sure=False), plain(2, 2), plain(3, 3, sure=False)
    assert undominated([beaten, sure, doubtful]) == [doubtful, sure]
    assert undominated([plain(1, 1, sure=False), plain(1, 1)]) == [plain(1, 1)]


PAIRS = st.lists(st.tuples(*[st.integers(0, 6).map(float)] * 2), max_size=12)


@given(PAIRS)
def test_what_is_undominated_is_beaten_by_nothing(pairs: list[tuple[float, float]]) -> None:
    points = [plain(hours, money) for hours, money in pairs]
    found = [(one.hours, one.money) for one in undominated(points)]
    assert set(found) == naive(points)
    assert len(found) == len(set(found))
    assert found == sorted(found)
