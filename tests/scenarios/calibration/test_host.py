"""The host's price of a launch and a stage's factors, fitted to whole stages."""

import itertools
from dataclasses import replace

import pytest
import torch

from gcsim.compressors.kernels import KernelCost
from gcsim.scenarios import catalog
from gcsim.scenarios.calibration import host
from gcsim.scenarios.calibration.host import (
    DATA,
    ELEMENTS,
    METHODS,
    Data,
    Timed,
    all_methods,
    host_prices,
    layout_of,
    stage_clocks,
    time_stages,
    with_stages,
)
from gcsim.simulator.devices.pricing import PriceList
from gcsim.traces.profile import Compute

TRITON = "variance_words.take_out"
"""A kernel that is one launch of Triton."""
GPU = catalog.device("h100_sxm")


def stage(
    name: str, kernels: int, operators: int, waits: int, seconds: float, **more: int
) -> Timed:
    """A stage of so many launches, which moves next to nothing, or so many bytes."""
    one = KernelCost(kind="streaming", launches=0, elements=0, nbytes=0)
    costs = (
        replace(one, name=TRITON, launches=kernels),
        replace(one, name="aten.add", launches=operators, nbytes=more.get("nbytes", 0)),
        replace(one, name="aten.item", kind="host_sync", launches=waits),
    )
    computes = (Compute(stage="encode", fixed=costs),)
    elements = more.get("elements", ELEMENTS)
    return Timed(
        name=f"{name}, step, encode", elements=elements, computes=computes, seconds=seconds
    )


def test_prices_are_those_that_made_the_times() -> None:
    counts = [(1, 0, 0), (0, 3, 0), (2, 5, 1), (4, 1, 3)]
    exact = [stage("fp16", *n, 300e-6 * n[0] + 20e-6 * n[1] + 70e-6 * n[2]) for n in counts]
    found = host_prices([*exact, stage("fp16", 0, 0, 0, 5e-6)], "fp16", "A GPU.")
    assert found["kernel"].launch == pytest.approx(300e-6, rel=1e-3)
    assert found["operator"].launch == pytest.approx(20e-6, rel=1e-3)
    assert found["wait"].launch == pytest.approx(70e-6, rel=1e-3)
    assert "4 stages of fp16; median error 0%" in found["kernel"].source


def test_a_range_holds_what_most_stages_say() -> None:
    # one kernel each, from half to twice the middle
    others = [stage("a", 0, 1, 0, 1e-5), stage("a", 0, 0, 1, 1e-5)]
    spread = [stage("a", 1, 0, 0, 1e-4 * 2 ** (n / 10 - 1)) for n in range(21)]
    low, high = host_prices(spread + others, "", "")["kernel"].launch_range or (0, 0)
    assert low < 1e-4 * 2**-0.7
    assert high > 1e-4 * 2**0.7


def test_a_calibrated_device_prices_a_stage_as_it_was_timed_and_others_by_their_launches() -> None:
    """Stages of gtopk take 1.5 times the host's time that the others' launches have; a long one
    of it takes twice the device's."""
    counts = {"fp16": (1, 3, 0), "topk": (3, 10, 1), "signsgd": (5, 0, 4), "cser": (2, 6, 2)}
    others = [stage(m, *n, 100e-6 * n[0] + 30e-6 * n[1] + 70e-6 * n[2]) for m, n in counts.items()]
    own = 1.5 * (4 * 100e-6 + 3 * 30e-6)
    rate = GPU.kernels["streaming"]
    assert rate.bandwidth
    nbytes = 10**11
    long = 2 * (3 * float(rate.launch) + nbytes / float(rate.bandwidth)) + 0.35 * own
    mine = [
        stage("gtopk", 4, 3, 0, own),
        stage("gtopk", 4, 3, 0, long, nbytes=nbytes, elements=25 * ELEMENTS),
    ]
    device = with_stages(GPU, [*others, *mine], "A GPU.")
    assert device.host["kernel"].launch == pytest.approx(100e-6, rel=0.2)
    assert set(device.stages) == {f"{m}, step, encode" for m in [*counts, "gtopk"]}
    again = stage_clocks(mine, device)["gtopk, step, encode"]
    assert again == device.stages["gtopk, step, encode"]
    for one in mine:
        clocks = device.stages[one.name]
        price = PriceList(device).priced_by(one.computes[0], 1)
        longer, shorter = sorted(
            (float(clocks.host * price.host), float(clocks.device * price.device)), reverse=True
        )
        assert (longer + 0.35 * shorter) / 1e12 == pytest.approx(one.seconds, rel=0.03)


SMALL: tuple[Data, ...] = (2500, 3600)


def test_methods_are_timed_where_they_run() -> None:
    found = time_stages("cpu", ("fp16", "topk", "cser"), data=SMALL, seconds=60)
    assert [one.name for one in found if one.elements == 2500][:4] == [
        "fp16, step, encode", "fp16, step, decode", "topk, step, encode", "topk, step, decode",
    ]  # fmt: skip
    assert {one.elements for one in found} == set(SMALL)
    assert all(one.seconds > 0 for one in found)
    prices = host_prices((one for one in found if one.elements == 2500), "three", "Here.")
    assert all(rate.launch > 0 for rate in prices.values())


def test_time_that_is_over_leaves_the_first_methods_on_the_first_bucket() -> None:
    methods, ticks = METHODS[:3] * 2, itertools.count()
    found = time_stages("cpu", methods, data=SMALL, seconds=3, clock=lambda: float(next(ticks)))
    # the sixth is asked for at 1 s and timed, then the next bucket's at 2 s, and at 3 s no other
    assert len({one.name for one in found if one.elements == 2500}) == 6
    assert {one.name.split(",")[0] for one in found if one.elements == 3600} == {METHODS[0]}
    over = time_stages("cpu", methods, data=SMALL, seconds=-1, clock=lambda: 0.0)
    assert len(over) == 2 * 5


def test_what_does_not_fit_into_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = host._stages

    def stages(name: str, *given: object) -> object:
        if name == "fp16":
            raise torch.OutOfMemoryError("no memory")
        return real(name, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "_stages", stages)
    found = time_stages("cpu", ("fp16", "signsgd"), data=SMALL[:1], seconds=9)
    assert {one.name.split(",")[0] for one in found} == {"signsgd"}


def test_all_shipped_methods_are_timed_on_four_lengths_and_two_lists_of_tensors() -> None:
    assert all_methods()[: len(METHODS)] == METHODS
    assert len(set(all_methods())) == len(all_methods())
    assert sorted(each for each in DATA if isinstance(each, int)) == [
        1_000_000, 7_000_000, 25_000_000, 61_000_000,
    ]  # fmt: skip
    lists = [len(layout_of(*each).slices) for each in DATA if not isinstance(each, int)]
    assert lists == [16, 51]
