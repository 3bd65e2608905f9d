"""A method for each bucket: what a mixture sends, and that no other bucket's choice is faster.

Expected numbers are those of the methods' own profiles, bucket by bucket, and of simulations of
every plan beside the one that was found.
"""

from itertools import product

import pytest

from gcsim.compressors.registry import REGISTRY, check_parameters
from gcsim.scenarios.advice.engine import Engine, KnownTraffic
from gcsim.scenarios.advice.per_bucket import can_share, mixed, plan
from gcsim.scenarios.advice.question import Words, ask
from gcsim.scenarios.scenario import CompressorChoice
from gcsim.traces.profile import Step

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def engine(own_cache: None) -> Engine:
    """ResNet-50, whose traffic comes with gcsim: five buckets on a slow network, one world."""
    words = Words(model="resnet50", device="v100", nodes=4, network="10 Gbit/s")
    return Engine(ask(None, words, ["uncertainty.draws=0"]))


def methods(engine: Engine, *labels: str) -> tuple[list[CompressorChoice], list[KnownTraffic]]:
    by_label = {choice.label: choice for choice in engine.scenario.compressors}
    choices = [by_label[label] for label in labels]
    known = [engine.known(choice, engine.scenario) for choice in choices]
    return choices, [one for one in known if one is not None]


def sent(step: Step) -> list[int]:
    """By bucket: bytes of all workers."""
    return [sum(sum(c.sent) for c in exchange.collectives) for exchange in step.exchanges]


def test_each_bucket_sends_what_its_method_sends(engine: Engine) -> None:
    _, known = methods(engine, "dense", "fp16", "gradient sampling")
    chosen = (2, 0, 1, 2, 0)
    found = mixed(known, chosen).profile
    alone = known[2].profile
    assert [phase.count for phase in found.phases] == [phase.count for phase in alone.phases]
    assert (found.period, found.order) == (alone.period, alone.order)
    for phase, other in zip(found.phases, alone.phases, strict=True):
        for step, of_alone in zip(phase.steps, other.steps, strict=True):
            of_dense, of_half = (sent(one.profile.phases[0].steps[0]) for one in known[:2])
            wanted = (sent(of_alone), of_dense, of_half)
            by_number = (wanted[1], wanted[2], wanted[0])
            assert sent(step) == [by_number[number][b] for b, number in enumerate(chosen)]


def test_a_mixture_of_one_method_takes_what_the_method_takes(engine: Engine) -> None:
    choices, known = methods(engine, "dense", "fp16", "Top-k 1 %")
    rows = engine.rows((), ["fp16", "Top-k 1 %"]) or {}
    whole = engine.row_of(choices[2], mixed(known, (2,) * 5), most_draws=0)
    assert whole.iteration_s == rows["Top-k 1 %"].iteration_s
    # of those before the last one, too, which are not in the last one's phases
    half = engine.row_of(choices[1], mixed(known, (1,) * 5), most_draws=0)
    assert half.iteration_s == pytest.approx(rows["fp16"].iteration_s, rel=1e-3)


@pytest.mark.parametrize(
    "labels",
    [("dense", "Top-k 1 %"), pytest.param(("dense", "fp16", "PowerSGD rank 4"),
                                          marks=pytest.mark.long)],
)  # fmt: skip
def test_no_plan_is_faster_than_the_one_that_is_found(
    engine: Engine, labels: tuple[str, ...]
) -> None:
    # There are 2^5 and 3^5. The search asks for some of them, and may be a bucket's 0.1 % away.
    choices, known = methods(engine, *labels)
    found = plan(engine, choices)
    assert found is not None
    times = [
        engine.row_of(choices[max(chosen)], mixed(known, chosen), most_draws=0).iteration_s
        for chosen in product(range(len(choices)), repeat=5)
    ]
    assert found.row.iteration_s <= min(times) * (1 + 6e-3)
    assert found.row.iteration_s <= found.alone.iteration_s * (1 + 6e-3)
    assert sum(found.share(label) for label in labels) == pytest.approx(1)


def test_one_bucket_is_nothing_to_choose_from() -> None:
    small = Engine(ask(None, Words(model="lenet", device="v100", nodes=4, network="1gbe")))
    assert plan(small, methods(small, "dense", "fp16")[0]) is None


@pytest.mark.parametrize(
    ("kind", "able"),
    [
        ("none", True), ("fp16", True), ("topk", True), ("powersgd", True), ("qsgd", True),
        ("cser", False),  # workers step apart
        ("signum", False), ("onebit_adam", False),  # another scale
        ("dgc", False),  # a momentum of its own
        ("variance", False),  # needs what DDP has not
    ],
)  # fmt: skip
def test_who_can_share_a_model_with_exact_buckets(kind: str, able: bool) -> None:
    assert kind in REGISTRY
    usual = check_parameters(kind, {}).model_dump()
    optioned = {**usual, "dense_steps": 100}
    for given in (usual, optioned) if kind in {"topk", "powersgd", "qsgd", "dgc"} else (usual,):
        assert can_share(CompressorChoice(kind=kind, label=kind, parameters=given)) == able
