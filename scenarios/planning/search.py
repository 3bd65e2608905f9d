"""Search over offers, nodes, checkpointing, micro-batches, strategies and methods for the Pareto
front of hours and money.

A *site* is an offer with a number of its nodes (powers of two, and all), a *work* one way to run a
step's batch: micro-batch (a power of two), accumulation, checkpointing, and whether the optimizer
is sharded, which takes longer and is tried if an unsharded one does not surely fit. Memory is
checked first: works with which a method surely fits, or, if there are none, may fit. Then stage 2
simulates an iteration in up to `_MOST_DRAWN` drawn worlds; hours and money are medians. A work is
skipped if its passes without communication already take longer and cost more than a known point;
this does not change the front, since no iteration is shorter than its passes. A point that may not
fit never beats one that surely fits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import get_args

from gcsim.errors import InputError, Problem
from gcsim.scenarios import load
from gcsim.scenarios.advice.engine import Engine, KnownTraffic
from gcsim.scenarios.advice.question import METHODS, Question, Words, ask, option
from gcsim.scenarios.catalog import devices
from gcsim.scenarios.checks.conflicts import shardable
from gcsim.scenarios.checks.fits import Misfit, misfits
from gcsim.scenarios.planning.offers import Offer
from gcsim.scenarios.progress import Progress, SilentProgress
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.reading.overrides import apply
from gcsim.scenarios.result import Result, Row
from gcsim.scenarios.run import simulated_run
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.trained.evidence import evidence_of
from gcsim.simulator.clock import TooLongError
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.training import Strategy
from gcsim.traces.models.transformer import Checkpointing

HOUR = 3600.0
_EXACT = ("none", "fp16")  # methods that need no evidence of accuracy
_MOST_ACCUMULATED = 1000
_MOST_DRAWN = 64  # worlds in a search; the points of the front have all worlds
_TRIED = "leave it out; gcsim advise answers for a single setting"
_OFFERED = "change it in the file of offers"
_CHOSEN = {
    "batch_size": f"{_TRIED}, --batch limits a step",
    "training.accumulation": _TRIED,
    "training.checkpointing": _TRIED,
    "cluster.groups": "write an offer per kind of node",
    **dict.fromkeys(
        ("cluster.device", "cluster.devices_per_node", "cluster.network", "cluster.nics_per_node",
         "cluster.nodes"), _OFFERED,
    ),
}  # fmt: skip
"""Settings that a plan chooses itself, and what to do instead of stating them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training to plan."""

    model: str
    amount: float  # tokens of all steps, or samples of a model that reads no tokens
    batch: float  # most tokens or samples per step
    precision: str | None = None  # None: half precision if the device has it
    sequence: int | None = None
    loop: str | None = None
    overrides: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A number of nodes of an offer."""

    offer: Offer
    nodes: int
    scenario: Scenario  # with all methods, whether they fit or not

    @property
    def workers(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.offer.gpus

    @property
    def price(self) -> float:
        """Price of all nodes per hour."""
        return self.nodes * self.offer.price


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A way to run a step's batch, and the methods that fit with it."""

    site: Site
    micro_batch: int
    accumulation: int
    checkpointing: Checkpointing
    choices: tuple[CompressorChoice, ...]
    strategy: Strategy = "ddp"
    sure: bool = True  # whether the methods surely fit

    @property
    def samples(self) -> int:
        """Samples per step."""
        return self.site.workers * self.micro_batch * self.accumulation

    def scenario(self, draws: int = 0) -> Scenario:
        """Return the site's scenario with these settings."""
        found = self.site.scenario
        training = replace(
            found.training, accumulation=self.accumulation, checkpointing=self.checkpointing,
            strategy=self.strategy,
        )  # fmt: skip
        return replace(
            found, training=training, batch_size=self.micro_batch, compressors=self.choices,
            draws=draws, left_out=(),
        )  # fmt: skip

    def settings(self) -> tuple[str, ...]:
        """Assignments as in `--set`."""
        found = [f"batch_size={self.micro_batch}", f"training.accumulation={self.accumulation}"]
        if self.site.scenario.model.transformer is not None:
            found.append(f"training.checkpointing={self.checkpointing}")
        if self.strategy != "ddp":
            found.append(f"training.strategy={self.strategy}")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A work with one method, and time and money of the whole training."""

    work: Work
    choice: CompressorChoice
    row: Row
    hours: float
    money: float

    def beats(self, hours: float, money: float, sure: bool) -> bool:
        """Whether it is at least as good as another point; `sure`: whether that surely fits."""
        return self.hours <= hours and self.money <= money and self.work.sure >= sure


@dataclass(slots=True)
class Search:
    """Sites of a job, and the traffic of its methods. Raises `InputError` with the line of an offer
    that makes no valid scenario."""

    job: Job
    offers: Sequence[Offer]
    progress: Progress = field(default_factory=SilentProgress)
    tell: Callable[[str], None] = lambda _: None
    sites: tuple[Site, ...] = ()
    steps: dict[str, float] = field(default_factory=dict)
    """Steps to the goal over dense training's, by method."""
    unproven: frozenset[str] = frozenset()
    """Methods assumed to take as many steps as dense training, without evidence."""
    simulated: int = 0  # number of simulated settings
    served: set[Offer] = field(default_factory=set)  # offers with simulated works
    supposed: tuple[str, ...] = ()  # overrides that are assumed because nothing is stated
    too_long: dict[Offer, str] = field(default_factory=dict)
    """Offers with works whose steps are too long for the clock, and the error."""
    _strategies: tuple[Strategy, ...] = get_args(Strategy)  # the stated one, or all
    _known: dict[str, KnownTraffic] = field(default_factory=dict)
    _prices: dict[str, PriceList] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with _each_once():
            questions = self._questions()
        first = questions[0][1]
        self.supposed = first.supposed
        if first.states_setting("training", "strategy"):
            self._strategies = (first.scenario.training.strategy,)
        engine = Engine(first, progress=self.progress, tell=self.tell)
        for choice in first.scenario.compressors:
            found = engine.known(choice, first.scenario)
            if found is not None:
                self._known[choice.label] = found
        known = evidence_of(first.scenario, list(self._known))
        self.steps = {
            label: known[label].steps_vs_dense if label in known else 1.0 for label in self._known
        }
        self.unproven = frozenset(
            choice.label
            for choice in first.scenario.compressors
            if choice.kind not in _EXACT and choice.label not in known
        )
        self.sites = tuple(
            Site(offer=offer, nodes=nodes, scenario=at)
            for offer, question in questions
            for nodes in sizes(offer.nodes)
            if (at := question.changed([f"cluster.nodes={nodes}"])) is not None
        )

    def _questions(self) -> list[tuple[Offer, Question]]:
        """Return each offer's scenario at its largest size, with the methods to compare."""
        job = self.job
        overrides = list(job.overrides)
        problems = [problem for text in overrides for problem in _chosen_by_the_plan(text)]
        if problems:
            raise InputError(problems)
        if not any(text.partition("=")[0].strip() == "compressors" for text in overrides):
            asking = _question(job, self.offers[0], overrides).scenario
            labels = [choice.label for choice in asking.compressors]
            known = evidence_of(asking, labels)
            chosen = [
                entry
                for entry, label in zip(METHODS, labels, strict=True)
                if entry["kind"] in _EXACT or label in known
            ]
            overrides.append(f"compressors={json.dumps(chosen)}")
        found = []
        for offer in self.offers:
            try:
                question = _question(job, offer, overrides)
                question.scenario  # noqa: B018  # its mistakes come first
                found.append((offer, question))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(list(dict.fromkeys(problems)))
        return found

    @property
    def a_sample(self) -> int:
        """Tokens per sample; 1 for a model that reads no tokens."""
        model = self.sites[0].scenario.model
        return model.input_shape[0] if model.input == "tokens" else 1

    @property
    def samples(self) -> int:
        """Most samples per step."""
        return int(self.job.batch / self.a_sample)

    @property
    def _largest(self) -> int:
        profile = next(iter(self._known.values())).profile
        return max(layout.numel for layout in profile.buckets)

    def works(self, site: Site) -> list[Work]:
        """Return the works of a site with the methods that surely fit, or else may fit."""
        most = self.samples // site.workers
        by_formula = site.scenario.model.transformer is not None
        again: tuple[Checkpointing, ...] = ("none", "selective", "full")
        found: list[Work] = []
        for kept in again if by_formula else again[:1]:
            micro = 1
            while micro <= most:
                work = Work(
                    site=site, micro_batch=micro, checkpointing=kept, choices=(),
                    accumulation=min(most // micro, _MOST_ACCUMULATED),
                )  # fmt: skip
                for choice in site.scenario.compressors:
                    if choice.label in self._known and (
                        site.workers > 1 or choice.kind == site.scenario.compressors[0].kind
                    ):
                        found += self._fitting(work, choice)
                micro *= 2
        return _joined([work for work in found if work.sure] or found)

    def _fitting(self, work: Work, choice: CompressorChoice) -> Iterator[Work]:
        """Yield the work with a method for each strategy with which it may fit. If DDP surely fits,
        or is not checked, other strategies are not tried, since FSDP's own costs are unknown."""
        for strategy in self._tried(work.site, choice):
            one = replace(work, choices=(choice,), strategy=strategy)
            _, held = one.scenario().tightest(choice, self._largest)
            fits = "yes" if held is None else held.fits
            if fits != "no":
                yield replace(one, sure=fits == "yes")
            if fits not in ("no", "perhaps") and strategy in ("ddp", "zero1"):
                return

    def _tried(self, site: Site, choice: CompressorChoice) -> tuple[Strategy, ...]:
        """Return the strategies that a method supports on a site."""
        at = site.scenario
        if site.workers == 1:
            return self._strategies[:1]
        return tuple(
            one for one in self._strategies
            if one == self._strategies[0] or shardable(choice, at.cluster, at.training, one)
        )  # fmt: skip

    def misfit(self, site: Site) -> Misfit | None:
        """Return the least memory that a training needs if no work of a site fits, and what would
        help, of other devices only offered ones; None if some work fits, or if there are more GPUs
        than samples per step."""
        if site.workers > self.samples or self.works(site):
            return None
        kept: Checkpointing = "full" if site.scenario.model.transformer is not None else "none"
        least = Work(site=site, micro_batch=1, accumulation=1, checkpointing=kept, choices=())
        found: list[Misfit] = []
        for choice in site.scenario.compressors:
            strategy = self._tried(site, choice)[-1]
            one = replace(least, choices=(choice,), strategy=strategy).scenario()
            found += misfits(one, {offer.device for offer in self.offers})
        return min(found, key=lambda one: one.memory.low, default=None)

    def shortest(self, work: Work) -> tuple[float, float]:
        """Return the least hours and money: those of the fastest passes without communication."""
        from gcsim.scenarios.running.simulate import compute_times  # not for cached plans

        scenario = work.scenario()
        noise = scenario.training.noise
        if noise is not None and (noise.variation or noise.slow_probability):
            return 0.0, 0.0  # an iteration may be shorter than its passes
        profile = self._profiles(work)[0].profile
        ends = compute_times(scenario, profile, None)
        code = scenario.training.code
        passes = ends["fastest" if scenario.draws else "stated"].total / 1e12
        passes *= float(min(Fraction(1), code.slowdown, *(code.slowdown_range or ())))
        step = passes * work.accumulation * min(self.steps[one.label] for one in work.choices)
        hours = self.job.amount / (work.samples * self.a_sample) * step / HOUR
        return hours, hours * work.site.price

    def _profiles(self, work: Work) -> list[KnownTraffic]:
        """Return the methods' traffic with the work's micro-batches."""
        found = []
        for choice in work.choices:
            known = self._known[choice.label]
            facts = replace(known.profile.model, samples_per_worker=work.micro_batch)
            found.append(KnownTraffic(known.key, replace(known.profile, model=facts)))
        return found

    def result(self, work: Work, draws: int) -> Result:
        """Simulate the work's methods, as in a run."""
        known, device = self._profiles(work), work.site.scenario.cluster.device
        prices = self._prices.setdefault(device.name, PriceList(device))
        self.simulated += len(work.choices)
        return simulated_run(
            work.scenario(draws), [one.key for one in known], [one.profile for one in known], None,
            progress=SilentProgress(), timelines=False, sources=False, prices=prices,
        )  # fmt: skip

    def points(self, work: Work) -> Iterator[Point]:
        """Yield the points of the work's methods."""
        rows = self.result(work, min(work.site.scenario.draws, _MOST_DRAWN)).rows
        self.served.add(work.site.offer)
        for choice, row in zip(work.choices, rows, strict=True):
            hours = self.hours(work, row)
            yield Point(
                work=work, choice=choice, row=row, hours=hours, money=hours * work.site.price
            )

    @contextmanager
    def left_out(self, work: Work) -> Iterator[None]:
        """Skip a work whose steps take too long for the clock."""
        try:
            yield
        except TooLongError as error:
            where = f"{work.site.nodes} x {work.site.offer.gpus}"
            self.too_long.setdefault(work.site.offer, f"{where}: {error.problems[0].message}")

    def hours(self, work: Work, row: Row) -> float:
        """Return the hours of the training with the row's iteration."""
        steps = self.job.amount / (work.samples * self.a_sample) * self.steps[row.label]
        return steps * row.iteration_s / HOUR / (row.goodput or 1.0)

    def front(self) -> list[Point]:
        """Return the points that no other beats, fastest first; of equal ones the first found."""
        works = [self.works(site) for site in self.sites]
        bounds = [[(self.shortest(one), one) for one in of_site] for of_site in works]
        for of_site in bounds:
            of_site.sort(key=lambda pair: (*pair[0], -pair[1].micro_batch))
        found: list[Point] = []
        first = [pair for of_site in bounds for pair in of_site[:1]]
        rest = [pair for of_site in bounds for pair in of_site[1:]]
        with self.progress.task("settings", len(first) + len(rest)) as task:
            for (hours, money), work in (*first, *rest):
                if not any(one.beats(hours, money, work.sure) for one in found):
                    with self.left_out(work):
                        found = undominated([*found, *self.points(work)])
                task.advance(note=work.site.offer.name)
        return found


def _chosen_by_the_plan(text: str) -> Iterator[Problem]:
    """Yield a problem for each setting of `_CHOSEN` that an override states."""
    key = text.partition("=")[0].strip()
    document = Document(name="", data={})
    apply(document, [text])
    for name, hint in _CHOSEN.items():
        if f"{name}.".startswith(f"{key}.") and tuple(name.split(".")) in document.keys:
            message = f"gcsim plan takes {name} from the offers or tries several values"
            yield Problem(message=message, place=f"--set {key}", hint=hint)


def undominated(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats, fastest first; of equal ones the first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (one.hours, one.money, not one.work.sure)):
        if not any(one.beats(point.hours, point.money, point.work.sure) for one in found):
            found.append(point)
    return found


def sizes(most: int) -> list[int]:
    """Return the powers of two up to a number, and the number."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def _joined(works: Iterable[Work]) -> list[Work]:
    """Merge works that differ only in the method."""
    found: dict[tuple[object, ...], Work] = {}
    for work in works:
        key = work.micro_batch, work.checkpointing, work.strategy
        here = found.get(key)
        found[key] = work if here is None else replace(here, choices=here.choices + work.choices)
    return list(found.values())


@contextmanager
def _each_once() -> Iterator[None]:
    """Log each warning about a scenario once, even if several offers cause it."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        text, before = record.getMessage(), len(said)
        said.add(text)
        return len(said) > before

    logger = logging.getLogger(load.__name__)
    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def _question(job: Job, offer: Offer, overrides: Sequence[str]) -> Question:
    """Return the question for all nodes of an offer, in 16 bits if the device has such times and no
    precision is stated."""
    precision = job.precision
    if precision is None and not any(text.lstrip().startswith("compute") for text in overrides):
        precision = "fp16" if "fp16" in devices()[offer.device].precisions else "fp32"
    words = Words(
        model=job.model, device=offer.device, gpus=offer.gpus, nodes=offer.nodes,
        network=offer.network, precision=precision, sequence=job.sequence, loop=job.loop,
        nics=offer.nics if offer.nics > 1 else None,
    )  # fmt: skip
    own = {"device", "gpus", "nodes", "network", "nics"}
    called = lambda word: f"{offer.place}: {word}" if word in own else option(word)  # noqa: E731
    question = ask(None, words, overrides, job.seed, called)
    return replace(question, fitting=False)
