"""Which runs of GRACE are compared, and which contradict themselves or each other?

The rules look at the data alone, never at a prediction. One of them is near to it: `contradictory`
compares two measurements of a method with what a line of the stated rates would make of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from gcsim.analysis.validation.data_files import Row, data_values
from gcsim.analysis.validation.suite import DENSE, Excluded
from gcsim.analysis.validation.suites.grace.models import Network, networks
from gcsim.analysis.validation.suites.grace.payloads import VALUE_DEPENDENT, Method, sent

SOURCE = (
    "GRACE released data, sands-lab/grace-data GRACE_data_release.pickle @41915bbd (Xu et al., "
    '"GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021), '
    "https://github.com/sands-lab/grace-data"
)
LINE_RATES = (2 / 3, 3 / 2)
"""Gbit/s that runs at 1 and at 10 may imply for the slower line (it is 1)."""
STALLED = 0.5
"""Of its rate at 10 Gbit/s: what the method that sends least must keep at 1."""
_LABELS = {
    DENSE: "dense",
    "8bit": "8 bit",
    "adaq": "AdaQ",
    "dgc": "DGC",
    "efsignsgd": "EF-SignSGD",
    "natural": "natural",
    "onebit": "1-bit SGD",
    "powersgd": "PowerSGD",
    "qsgd": "QSGD",
    "randomk": "random-k",
    "signsgd": "SignSGD",
    "signum": "Signum",
    "sketch": "sketch",
    "terngrad": "TernGrad",
    "topk": "top-k",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row of the release."""

    row: str
    """The release's own id."""
    project: str
    mode: str
    model: str
    method: Method
    workers: int
    gbit: int | None
    library: str
    value: float

    @property
    def source(self) -> str:
        """Its citation."""
        return f"{SOURCE}; project {self.project}, mode {self.mode}, row {self.row}"

    @property
    def label(self) -> str:
        """Its method, for people, e.g. "top-k 1 %, error feedback"."""
        method = self.method
        name = _LABELS.get(method.compressor, method.compressor)
        if 0 < method.parameter < 1:
            name += f" {100 * method.parameter:g} %"
        elif method.parameter:
            name += f" {method.parameter:g}"
        return name + (", error feedback" if method.memory else "")

    @property
    def known(self) -> Network:
        """Its model's tensors; for models that have been found to be known."""
        return networks()[self.model]

    @property
    def seconds(self) -> float:
        """An iteration's, from the rate."""
        return self.workers * self.known.samples / self.rate

    @property
    def rate(self) -> float:
        """Samples a second of all workers."""
        return self.value * self.known.samples_counted


@cache
def runs() -> tuple[Run, ...]:
    """All rows of the file, in its order."""
    return tuple(
        data_values("grace", Run, method=_method, library=lambda row: row["transport"].split()[0])
    )


def _method(row: Row) -> Method:
    memory, share = row["memory"] == "1", float(row["parameter"] or 0)
    return Method(compressor=row["compressor"], parameter=share, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is compared, and what is not."""

    rates: tuple[Run, ...]
    volumes: tuple[Run, ...]
    excluded: tuple[Excluded, ...]


def selection() -> Selection:
    """Apply the rules, one after the other: a run is counted with the first that excludes it."""
    left = _Left(runs())
    left.drop(
        [run for run in left if run.mode == "upper-bound"],
        'runs of mode "upper-bound"',
        "what they leave out is not documented; 43 of 316 are slower than the whole runs that they "
        "are said to bound",
    )
    left.drop(
        [run for run in left if run.model == "vgg19"],
        "runs of VGG-19",
        "bound by their hosts: one V100 makes 29 images/s, where ResNet-50 has 409, and dense "
        "training is as fast in mode upper-bound",
    )
    left.drop(
        [run for run in left if run.mode == "accuracy"],
        "runs of ResNet-9",
        "rates logged in accuracy runs, a third without a line rate; tensors and batch unknown",
    )
    left.drop(
        [run for run in left if run.method.compressor in VALUE_DEPENDENT],
        "runs of threshold and INCEPTIONN",
        "what they send is decided by the gradients' values; the release has it for the first "
        "steps only, and on ResNet-50 it contradicts the rates at 1 Gbit/s",
    )
    left.drop(
        [
            run
            for run in left
            if (run.mode, run.model, run.method.compressor) == ("data-volume", "ncf_ml20m", "adaq")
        ],
        "volumes of AdaQ on NCF",
        "it keeps a share of the elements that are not 0, which of embeddings depends on the batch",
    )
    volumes = [run for run in left if run.mode == "data-volume"]
    left.drop(volumes)
    left.drop(
        [run for run in left if run.known.batch is None],
        "rates of NCF",
        "samples of an iteration are not stated",
    )
    left.drop(
        stalled(left),
        "rates of the LSTM at 1 Gbit/s",
        f"next to no traffic (PowerSGD) does not keep {STALLED:.0%} of its rate at 10 Gbit/s; "
        "something else than the exchange holds every method up",
    )
    left.drop(
        contradictory(left),
        "rates of ResNet-50 with methods whose batch is in doubt",
        "a method's largest payload at 1 and at 10 Gbit/s implies a line of less than 2/3 or more "
        "than 3/2 Gbit/s in the place of the 1",
    )
    return Selection(rates=tuple(left), volumes=tuple(volumes), excluded=tuple(left.excluded))


class _Left(list[Run]):
    """Runs that no rule has excluded so far."""

    def __init__(self, everything: Iterable[Run]) -> None:
        super().__init__(everything)
        self.excluded: list[Excluded] = []

    def drop(self, what: Sequence[Run], name: str = "", rule: str = "") -> None:
        gone = {run.row for run in what}
        self[:] = [run for run in self if run.row not in gone]
        if name:
            self.excluded.append(Excluded(name, len(gone), rule))


def stalled(rates: Sequence[Run]) -> list[Run]:
    """Runs at 1 Gbit/s of models that something else than the exchange stalls there."""
    found: list[Run] = []
    for model in {run.model for run in rates}:
        pairs = _pairs([run for run in rates if run.model == model])
        if not pairs:
            continue
        slow, fast = min(pairs, key=lambda pair: sent_bytes(pair[0]))
        if slow.value < STALLED * fast.value:
            found += [run for run in rates if run.model == model and run.gbit == 1]
    return found


def contradictory(rates: Sequence[Run]) -> list[Run]:
    """All runs of those methods of a model whose largest payload implies a wrong line rate."""
    groups: dict[tuple[str, str], list[tuple[Run, Run]]] = {}
    for pair in _pairs(rates):
        groups.setdefault((pair[0].model, pair[0].method.compressor), []).append(pair)
    wrong = set()
    for key, pairs in groups.items():
        slow, fast = max(pairs, key=lambda pair: (sent_bytes(pair[0]), pair[0].row))
        low, high = LINE_RATES
        if not low <= implied_gbit(slow, fast) <= high:
            wrong.add(key)
    return [run for run in rates if (run.model, run.method.compressor) in wrong]


def implied_gbit(slow: Run, fast: Run) -> float:
    """The line rate of `slow`, in Gbit/s, that the difference of two runs' iterations implies when
    `fast` has ten times as much: what each worker receives takes so much longer."""
    p = slow.workers
    gathers = sent(slow.method, slow.known.tensors[0])[0].kind == "all_gather"
    received = sent_bytes(slow) * ((p - 1) if gathers else 2 * (p - 1) / p)
    more = slow.seconds - fast.seconds
    return 8e-9 * received * 0.9 / more if more > 0 else float("inf")


def sent_bytes(run: Run) -> int:
    """That a worker hands over in an iteration."""
    payloads = (one for tensor in run.known.tensors for one in sent(run.method, tensor))
    return sum(one.nbytes for one in payloads)


def _pairs(rates: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Runs at 1 and at 10 Gbit/s that are alike otherwise."""
    fast = {_rest(run): run for run in rates if run.gbit == 10}
    slow = (run for run in rates if run.gbit == 1)
    return [(run, fast[_rest(run)]) for run in slow if _rest(run) in fast]


def _rest(run: Run) -> tuple[str, Method, int, str]:
    return run.model, run.method, run.workers, run.library
