"""Search of each method's learning rate by training.

The same rates are tried for each method, by successive halving (K. Jamieson, A. Talwalkar, AISTATS
2016, arXiv:1502.07943): all rates for a quarter of the steps, the better half for half of them, and
so on; the best to the end. Whenever the best is the lowest or highest rate so far, the next rate in
the ratio is trained for as many steps, until the best is not at an edge, up to `WIDER` rates per
method; shipped trajectories are not extended. The best rate has the least held-out loss, mean over
all evaluations and seeds: it learns early, with every seed. (With one seed, nearly dense methods
got the highest or lowest rate by chance, and their steps differed by a factor of two.)
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from gcsim.compressors.options.method import method_of
from gcsim.errors import InputError, InternalError
from gcsim.scenarios.progress import Progress
from gcsim.scenarios.scenario import CompressorChoice, Scenario
from gcsim.scenarios.sweeps.processes import (
    MEMORY_OF_A_WORKER,
    LocalWorkers,
    Work,
    Workers,
    check_jobs,
    default_jobs,
    drive,
)
from gcsim.scenarios.sweeps.tasks import Failure
from gcsim.scenarios.trained.horizon import Delays, stated_delays, stated_share, telling, too_short
from gcsim.scenarios.trained.runs import Run, cache_name, plan_of
from gcsim.traces.training.loop import put_away
from gcsim.traces.training.trajectory import Trajectory

if TYPE_CHECKING:
    from gcsim.scenarios.sweeps.dask_cluster import ClusterWorkers

WIDER = 12  # most learning rates of a method beyond the stated ones
COMPRESSED = 0.1  # least share of steps in which a trained method must compress
_FIRST = 0.05  # share of steps, after warm-up, in which dense training learns if it does at all


@dataclass(slots=True)
class MethodTraining:
    """Trajectories of one method."""

    choice: CompressorChoice
    rate: float = math.nan  # best rate
    trajectories: list[Trajectory] = field(default_factory=list)  # with the best rate, one per seed
    rates: dict[float, dict[int, Trajectory]] = field(default_factory=dict)
    """Trajectories by rate and seed, as far as they were trained."""
    made: str = ""  # processor and libraries of shipped trajectories; "": trained here
    kept: bool = False  # whether all trajectories were in this machine's cache

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the lowest or highest of several."""
        return len(self.rates) > 1 and self.rate in (min(self.rates), max(self.rates))

    @property
    def untrained(self) -> str:
        """Reason if the training does not count, since it compresses in too few steps; else ""."""
        cls, parameters = method_of(self.choice.kind, self.choice.parameters)
        steps = sum(window.steps for each in self.trajectories for window in each.windows)
        own = [each.own_steps for each in self.trajectories]
        if cls.about.family == "dense" or sum(map(len, own)) >= COMPRESSED * steps:
            return ""
        begin = min((each[0] for each in own if each), default=cls.warmup_steps(parameters))
        if not begin:
            return "every step sends what dense training sends"
        return f"compression begins at step {begin}"

    @property
    def delays(self) -> float | None:
        """Whole gradients that the planned steps send (`horizon.py`); None: each step sends one."""
        found = self._delays
        return None if found is None else found.number

    @property
    def _delays(self) -> Delays | None:
        kind, given, first = self.choice.kind, self.choice.parameters, self.trajectories[0]
        if stated_share(kind, given) is not None:
            return stated_delays(kind, given, first.steps)
        share = self.wire_bytes_per_worker / first.model.gradient_bytes
        return None if share >= 1 else Delays(share * first.steps, share)

    @property
    def too_short(self) -> str:
        """Reason if the training is too short to be conclusive; else ""."""
        least = telling(self.choice.kind, self.choice.parameters)
        return "" if self.untrained else too_short(self._delays, self.trajectories[0].steps, least)

    @property
    def wire_bytes_per_worker(self) -> float:
        """Bytes given to collectives per step, mean over all steps and seeds."""
        windows = [window for each in self.trajectories for window in each.windows]
        sent = sum(window.steps * window.wire_bytes_per_worker for window in windows)
        return sent / max(1, sum(window.steps for window in windows))


def train_all(
    scenario: Scenario,
    *,
    jobs: int | None = None,
    dask: str | None = None,
    fresh: bool = False,
    widen: bool = False,
    progress: Progress,
    ended: Callable[[MethodTraining], None] = lambda dense: None,
    begun: Callable[[MethodTraining], None] = lambda dense: None,
) -> tuple[MethodTraining, ...]:
    """Train all methods, in the scenario's order; use cached and, unless `fresh`, shipped
    trajectories, beyond whose rates only `widen` searches. Dense training goes first: `begun` is
    called after its first steps with the stated rates, `ended` when it is finished; errors that
    these raise end all training. Raises `InputError` for a wrong method, model or data, before
    any training if a method's workers share more than collectives bring them."""
    check_jobs(jobs, dask)
    search = _Search(scenario, fresh, widen, ended, begun)
    search.begin()
    if search.to_train:
        from gcsim.compressors.conformance import refuse_side_channels

        for choice in search.to_train:
            refuse_side_channels(choice.kind, choice.parameters)
    with closing(_workers(scenario, search, jobs, dask)) as workers:
        return search.run(workers, progress)


def _workers(
    scenario: Scenario, search: _Search, jobs: int | None, dask: str | None
) -> LocalWorkers | ClusterWorkers:
    if dask is None or not search.waiting:
        return LocalWorkers(jobs or default_jobs(_memory(scenario)), side_by_side=True)
    from gcsim.scenarios.sweeps.dask_cluster import ClusterWorkers

    return ClusterWorkers(dask, partial(cache_name, search.waiting[0][1]), here=True)


def known_of(scenario: Scenario, choice: CompressorChoice) -> MethodTraining | None:
    """Return the trajectories that `train_all` would use for a method; None if it had to train."""
    search = _Search(replace(scenario, compressors=(choice,)), fresh=False, widen=False)
    search.begin()
    return None if search.waiting else search.tried[0]


def _memory(scenario: Scenario) -> int:
    """Return the approximate bytes of a process: per worker a gradient and the method's state, and
    five gradients more; a user's model is unknown."""
    vectors = 6 * plan_of(scenario).workers
    return MEMORY_OF_A_WORKER + 4 * vectors * (scenario.model.parameters or 0)


class _Search:
    """Training of all methods, in which each result decides the next run."""

    def __init__(
        self,
        scenario: Scenario,
        fresh: bool,
        widen: bool,
        ended: Callable[[MethodTraining], None] = lambda dense: None,
        begun: Callable[[MethodTraining], None] = lambda dense: None,
    ) -> None:
        self._scenario, self._plan, self._fresh = scenario, plan_of(scenario), fresh
        self._widen = widen
        self._ended, self._begun = ended, begun
        self._grid = list(dict.fromkeys(self._plan.learning_rate.values))
        self.tried = [MethodTraining(choice=choice) for choice in scenario.compressors]
        self._asked: list[tuple[int, Run]] = []  # runs by task, with the method's number
        self._rung: dict[int, list[float]] = {}  # rates that are now compared, by method
        self._size: dict[int, int] = {}  # number of these that were stated
        self.waiting: deque[tuple[int, Work]] = deque()
        self._far: Counter[tuple[int, float, int]] = Counter()
        """Steps trained or given up, by method, rate and seed."""
        self._new = 0  # finished steps not reported yet

    def begin(self) -> None:
        """Request the first runs of all methods, and those that follow from known ones."""
        for number in range(len(self.tried)):
            if number != self._scenario.dense:
                self._compare(number, self._grid)
                continue
            for rate in self._grid:
                self._ask(number, rate, self._seeds[0], self._first)

    @property
    def to_train(self) -> list[CompressorChoice]:
        """Methods that need training."""
        return [self.tried[method].choice for method in dict(self._asked)]

    def run(self, workers: Workers, progress: Progress) -> tuple[MethodTraining, ...]:
        """Run the requested runs, and those that follow from them."""
        with progress.task("steps of training", self._expected()) as stage:

            def done(number: int, outcome: Trajectory | Failure) -> None:
                if isinstance(outcome, Failure):
                    if outcome.is_bug:
                        raise InternalError(outcome.traceback)
                    raise InputError(outcome.problems)
                method, run = self._asked[number]
                if run.known is None:  # another machine has trained
                    run.keep(outcome)
                self._note(method, run, outcome)
                told(f"{run.choice.label}, rate {run.rate:g}")

            def told(note: str = "") -> None:
                stage.advance(self._new, note=note)
                self._new = 0

            told()
            drive(workers, self.waiting, done, lambda text: stage.advance(0, note=text))
        trained = dict(self._asked)
        for method, one in enumerate(self.tried):
            one.kept = method not in trained and not one.made
        return tuple(self.tried)

    def _expected(self) -> int:
        """Return the steps of all methods if none ends early."""
        rates, before, steps = len(self._grid), 0, self._plan.steps
        while rates > 1:
            steps += rates * (self._until(rates) - before)
            before = self._until(rates)
            rates = self._better(rates)
        return (steps - before) * self._plan.seeds * len(self.tried)

    def _until(self, rates: int) -> int:
        """Return the steps after which this number of rates is compared."""
        share = rates / len(self._grid) * 4
        return self._whole(round(self._plan.steps / share))

    @property
    def _first(self) -> int:
        """Steps after which dense training is seen to learn or not."""
        first = self._whole(self._plan.schedule.warmup + math.ceil(_FIRST * self._plan.steps))
        return min(first, self._until(len(self._grid)))

    def _whole(self, steps: int) -> int:
        """Return steps up to the end of a window."""
        every = self._plan.evaluate_every
        return min(self._plan.steps, -(-steps // every) * every)

    def _better(self, rates: int) -> int:
        return -(-rates // 2) if rates > 2 else 1

    def _run(self, method: int, rate: float, seed: int, until: int) -> Run:
        choice = self.tried[method].choice
        return Run(
            scenario=self._scenario, choice=choice, rate=rate, seed=seed, until=until,
            fresh=self._fresh,
        )  # fmt: skip

    def _ask(self, method: int, rate: float, seed: int, until: int) -> None:
        run = self._run(method, rate, seed, until)
        known = run.known
        if known is not None:
            found, made = known
            self.tried[method].made = made or self.tried[method].made
            self._note(method, run, found)
            return
        put = self.waiting.appendleft if method == self._scenario.dense else self.waiting.append
        put((len(self._asked), run))
        self._asked.append((method, run))

    def _compare(self, method: int, rates: Sequence[float]) -> None:
        """Continue training the rates, the last one to its end."""
        until = self._until(len(rates))
        if len(rates) == 1:
            self.tried[method].rate, until = rates[0], self._plan.steps
        self._rung[method], self._size[method] = list(rates), len(rates)
        for rate in rates:
            for seed in self._seeds:
                self._ask(method, rate, seed, until)

    @property
    def _seeds(self) -> range:
        first = self._scenario.seed
        return range(first, first + self._plan.seeds)

    def _widened(self, method: int, best: float) -> bool:
        """Request a rate beyond the edge if the best is at the edge; return whether."""
        tried = self.tried[method]
        rates = sorted({*tried.rates, *self._rung[method]})
        if len(rates) in (1, len(self._grid) + WIDER) or best not in (rates[0], rates[-1]):
            return False
        beyond = best**2 / (rates[1] if best == rates[0] else rates[-2])
        beyond, until = float(f"{beyond:.6g}"), self._until(self._size[method])
        shipped = tried.made and not self._widen
        if shipped and not self._run(method, beyond, self._seeds[0], until).known:
            return False
        self._rung[method].append(beyond)
        for seed in self._seeds:
            self._far[method, beyond, seed] = until  # beyond what was expected
        for seed in self._seeds:
            self._ask(method, beyond, seed, until)
        return True

    def _note(self, method: int, run: Run, found: Trajectory) -> None:
        tried, key = self.tried[method], (method, run.rate, run.seed)
        self._new += max(0, run.until - self._far[key])
        self._far[key] = max(run.until, self._far[key])
        tried.rates.setdefault(run.rate, {})[run.seed] = found
        if method not in self._rung:
            if len(tried.rates) == len(self._grid):
                self._begun(tried)
                tried.rates.clear()  # they may have trained as far as the comparison asks
                self._compare(method, self._grid)
            return
        if run.rate == tried.rate:
            tried.trajectories.append(found)
            tried.trajectories.sort(key=lambda trajectory: trajectory.seed)
            if method == self._scenario.dense and len(tried.trajectories) == self._plan.seeds:
                self._ended(tried)
            return
        rung = self._rung[method]
        compared = [one for rate in rung for one in tried.rates.get(rate, {}).values()]
        through = sum(bool(one.ended) or len(one.losses) >= run.until for one in compared)
        if through < len(rung) * self._plan.seeds:
            return
        ranked = sorted(rung, key=lambda rate: (_held_out_loss(tried.rates[rate].values()), rate))
        if self._widened(method, ranked[0]):
            return
        left = self._better(self._size[method])
        for rate in ranked[left:]:
            for seed in tried.rates[rate]:
                put_away(replace(run, rate=rate, seed=seed).path)
        self._compare(method, ranked[:left])


def _held_out_loss(seeds: Collection[Trajectory]) -> float:
    """Return the loss by which rates are compared; divergence is worse than any loss."""
    if any(one.ended == "diverged" for one in seeds):
        return math.inf
    means = [fmean(each.loss for each in one.evaluations[1:]) for one in seeds]
    return fmean(means)
