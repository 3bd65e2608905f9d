"""Runs with stated traffic: formulas for the messages that other code sends for each bucket.

The sections `cluster`, `training`, `ddp` and `batch_size` are those of a scenario. A table of
layers and `traffic` replace compressors and gradients:

    model: resnet50                        # of the tables of layers, or one by formula
    compute: {step: 0.3 s}                 # forward and backward; default: the catalogue's
    traffic:
      grouping: ddp                        # or whole, tensors, horovod, mg_wfbp, none (no exchange)
      let: {bits: 8}
      exchange:                            # of a bucket: stages and collectives, in turn
        - encode: [[reduction, 1, 4*n], [streaming, 1, 5*n]]    # class, launches, bytes
        - all_reduce: ceil(n*bits/8)
          element: 1
        - decode: [[streaming, 1, 5*n]]

A formula knows the bucket's elements n and tensors t, the cluster's nodes p and workers w, and the
values of `let`; with `by_tensor` it is one tensor's, and knows its rows and columns, 0 of a vector.
Without a model the exchange is carried out alone, by ranks that enter together; the bytes of an
all-gather, a gather and a scatter may then differ by rank r.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.kernels import KernelClass, KernelCost
from gcsim.compressors.lockstep import CollectiveRecord
from gcsim.errors import InputError
from gcsim.scenarios.formulas import Each, Formula, Number, evaluated, parsed
from gcsim.scenarios.reading.checking import Section, checked, invalid
from gcsim.scenarios.reading.document import Document
from gcsim.scenarios.reading.types import Count, PositiveDuration
from gcsim.scenarios.reading.values import Spelled
from gcsim.scenarios.scenario import DdpBuckets
from gcsim.scenarios.sections.cluster import ClusterSection, build_cluster
from gcsim.scenarios.sections.file import DDP, TRAINING, buckets_of, build_training
from gcsim.scenarios.tensor_groups import fused, grouped, merged_ends
from gcsim.simulator.as_trained import as_trained
from gcsim.simulator.clock import PS_PER_SECOND, Picoseconds, Times
from gcsim.simulator.cluster import Cluster
from gcsim.simulator.collectives.dispatch import CollectiveMemo
from gcsim.simulator.collectives.servers import gloo_rooted
from gcsim.simulator.devices.device import Device
from gcsim.simulator.devices.pricing import PriceList
from gcsim.simulator.devices.step_time import step_time
from gcsim.simulator.devices.training_rates import PRODUCTS
from gcsim.simulator.devices.training_time import ComputeTimes, training_times
from gcsim.simulator.predict import predict
from gcsim.simulator.steps.averages import Averager
from gcsim.simulator.training import Training
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.models.registry import MODELS, at_sequence
from gcsim.traces.models.table import facts_and_parameters
from gcsim.traces.models.transformer import Transformer
from gcsim.traces.profile import (
    Compute,
    Exchange,
    ModelFacts,
    PassTimes,
    Phase,
    Quality,
    Step,
    TrafficProfile,
    every,
)

_CYCLE, _FUSION = 5e-3, 64 * 2**20
"""Horovod's defaults until 0.19: seconds between looks at tensors, most bytes per reduction."""
_Kernel = Annotated[
    tuple[KernelClass, Formula, Formula, Formula],
    BeforeValidator(lambda cost: (*cost, 0) if len(cost) == 3 else tuple(cost)),
]
"""Class, launches, bytes, and FLOPs if any."""
_ROOTED: dict[str, Callable[[Sequence[int]], list[gloo_rooted.Message]]] = {
    "broadcast": lambda sizes: gloo_rooted.broadcast_messages(sizes[0], len(sizes)),
    "gather": gloo_rooted.gather_messages,
    "scatter": gloo_rooted.scatter_messages,
}
_COLLECTIVES = ("all_reduce", "all_gather", "all_to_all", "push_pull", "tree_merge", *_ROOTED,
                "send")  # fmt: skip


class EntrySection(Section):
    """Stage of a bucket's exchange, or a collective."""

    encode: list[_Kernel] | None = None
    decode: list[_Kernel] | None = None
    per_payload: list[_Kernel] | None = None  # kernels of decode, once per payload
    busy: Formula | None = None  # measured seconds of a device's computation
    copied: Formula | None = None  # bytes between device and host, over `cluster.intra_node`
    in_host: Formula | None = None
    """Bytes that each rank copies in host memory (`cluster.host.per_copied_byte`)."""
    all_reduce: Formula | None = None
    all_gather: Formula | None = None
    all_to_all: Formula | None = None
    push_pull: Formula | None = None
    tree_merge: Formula | None = None
    broadcast: Formula | None = None
    gather: Formula | None = None
    """Directly to rank 0; like broadcast and scatter, only without a model."""
    scatter: Formula | None = None
    send: Formula | None = None
    element: Count = 4  # bytes, of an all-reduce
    dtype: str = "float32"
    times: Formula = 1
    inside: Count | None = None
    """Number of a node's devices that run this over `cluster.intra_node`, before one of them
    continues; priced as a copy by that one."""
    whole_variables: bool = False
    """Whether push-pull servers hold whole tensors (each, in forward order, on the server with the
    fewest bytes) and the last bucket pulls everything (TensorFlow 1, variable_mgr.py)."""

    @model_validator(mode="after")
    def _one(self) -> EntrySection:
        stages = [
            self.encode, self.decode, self.per_payload, self.busy, self.copied, self.in_host
        ]  # fmt: skip
        sent = [getattr(self, name) for name in _COLLECTIVES]
        if sum(one is not None for one in (*stages, *sent)) != 1:
            raise invalid(
                "an entry is one stage or one collective", f"of {', '.join(_COLLECTIVES)}"
            )
        return self

    @property
    def kind(self) -> str:
        """Kind of collective; "" for a stage."""
        return next((name for name in _COLLECTIVES if getattr(self, name) is not None), "")


class TrafficSection(Section):
    """Traffic of each bucket."""

    grouping: Literal["ddp", "whole", "tensors", "horovod", "mg_wfbp", "none"] = "ddp"
    part: Annotated[int, Field(ge=1)] | None = None
    """Most elements per message: a bucket is exchanged in parts, one by one; the first part has the
    bucket's tensors `t` and elements `whole`."""
    by_tensor: bool = False  # formulas are per tensor, summed over a bucket
    optimizer: list[_Kernel] = []  # noqa: RUF012
    """Kernels over all elements and tensors, after the last bucket."""
    slower: dict[KernelClass, Annotated[float, Field(gt=0)]] = {}  # noqa: RUF012
    """Factors on kernel times in this code, by kernel class."""
    let: dict[str, Formula] = {}  # noqa: RUF012
    """Names and their values, evaluated in order."""
    hook: bool = False
    """Whether a hook exchanges (`training.framework`) instead of the framework's reducer."""
    last: list[EntrySection] = []  # noqa: RUF012
    """Extra exchange after that of the last bucket."""
    exchange: Annotated[list[EntrySection], Field(min_length=1)] = [  # noqa: RUF012
        EntrySection(all_reduce="4*n")
    ]


class StepSection(Section):
    """User's own measurement."""

    step: PositiveDuration | None = None
    """Forward and backward of one device; None: the catalogue's."""
    forward: PositiveDuration | None = None
    backward: PositiveDuration | None = None  # both, instead of `step`
    optimizer: list[_Kernel] = []  # noqa: RUF012
    """Kernels of the optimizer in that time, which belong to neither pass."""

    @property
    def seconds(self) -> float | None:
        """Seconds of both passes, where they are stated."""
        if self.forward is not None and self.backward is not None:
            return float(self.forward + self.backward)
        return None if self.step is None else float(self.step)


class StatedFile(Section):
    """The whole file."""

    model: str = ""
    tokens: Annotated[int, Field(ge=0)] = 0
    batch_size: Count = 1
    cluster: ClusterSection
    training: Annotated[Spelled, TRAINING] = Field(default_factory=TRAINING.section)
    ddp: Annotated[Spelled, DDP] = Field(default_factory=DDP.section)
    compute: StepSection = StepSection()
    traffic: TrafficSection = TrafficSection()


def stated(
    document: Document, facts: Callable[[str, int, int], tuple[ModelFacts, list[Shape]]]
) -> StatedRun:
    """Build the run of a document; `facts` returns a model's table by name, batch and tokens.
    Raises `InputError` with every problem and its place."""
    file = checked(StatedFile, document)
    cluster = build_cluster(file.cluster, file.batch_size)
    known, batch = MODELS.get(file.model), file.batch_size
    model, network = None, None
    tensors: tuple[tuple[str, Shape], ...] = ()
    if known is not None and known.transformer is not None:
        known = at_sequence(known, file.tokens) if file.tokens else known
        network = known.transformer
        model, tensors = facts_and_parameters(known, batch)
    elif file.model:
        model, shapes = facts(file.model, batch, file.tokens)
        tensors = tuple((str(number), shape) for number, shape in enumerate(shapes))
    device, slower = cluster.device, file.traffic.slower
    if slower:
        rates = {k: rate.faster(1 / slower.get(k, 1)) for k, rate in device.kernels.items()}
        cluster = replace(cluster, device=replace(device, kernels=rates))
    training = build_training(file.training, cluster, measured=file.compute.step is not None)
    if file.traffic.optimizer:
        sizes = [math.prod(shape) for _, shape in tensors]
        taken = _priced(file.traffic.optimizer, sizes, cluster.device)
        training = replace(training, optimizer=Fraction(taken, PS_PER_SECOND))
    return StatedRun(
        cluster=cluster,
        training=training,
        buckets=buckets_of(file.ddp),
        traffic=file.traffic,
        model=model,
        network=network,
        tensors=tensors,
        stated_step=file.compute.seconds,
        stated_backward=None if file.compute.backward is None else float(file.compute.backward),
        own_optimizer=tuple(file.compute.optimizer),
        batch=batch,
    )


BARE = Device(name="none", title="none", kernels={}, effective_flop_rate=1.0, source="")
"""Device of clusters without computation."""
BACKWARD = BARE.backward_over_forward  # default ratio of backward to forward


Shape = tuple[int, ...]  # elements, or rows and columns, of a tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class StatedRun:
    """Run with stated traffic."""

    cluster: Cluster
    training: Training
    buckets: DdpBuckets
    traffic: TrafficSection
    model: ModelFacts | None  # None: the exchange alone
    network: Transformer | None  # of a model by formula
    tensors: tuple[tuple[str, Shape], ...]  # names and shapes, in forward order
    stated_step: float | None
    stated_backward: float | None
    own_optimizer: tuple[Any, ...]
    batch: int
    _exchanges_by_size: dict[tuple[int, int, int], Exchange] = field(default_factory=dict)
    """Cached exchanges by elements, tensors and whole elements."""

    def changed(self, let: Mapping[str, str], prices: Mapping[str, str]) -> StatedRun:
        """Return the run with other values of `let`, and other costs of its host in seconds."""
        for name, formula in let.items():
            try:
                parsed(formula)
            except SyntaxError as error:
                place, hint = f"--set traffic.let.{name}", "such as ceil(n*bits/8)"
                raise InputError(f"{formula!r} is not a formula", place=place, hint=hint) from error
        host = self.cluster.host
        if prices and host is not None:
            own: dict[str, Any] = dict.fromkeys(f"{name}_range" for name in prices)
            host = replace(host, **own | {name: Fraction(text) for name, text in prices.items()})
        return replace(
            self,
            cluster=replace(self.cluster, host=host),
            traffic=self.traffic.model_copy(update={"let": {**self.traffic.let, **let}}),
            _exchanges_by_size={},
        )

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the tensors."""
        return tuple(shape for _, shape in self.tensors)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the tensors."""
        return tuple(map(math.prod, self.shapes))

    @cached_property
    def step(self) -> float:
        """Seconds of one device's passes; `InputError` if the catalogue has no time."""
        if self.stated_step is not None or self.model is None:
            return self.stated_step or 0.0
        once = step_time(self.model, self.cluster.device, self.training.timed_as).seconds
        return float(once) * self._longer

    @property
    def _longer(self) -> float:
        """Factor on the passes for recomputation in the backward pass."""
        assert self.model is not None  # noqa: S101 (of a step)
        again = self.training.computed_again(self.network, self.model.forward_flops)
        return float(1 + again / PRODUCTS)

    @cached_property
    def passes(self) -> ComputeTimes:
        """Forward and backward."""
        return self._passes(self.profile.buckets)

    def _passes(self, layouts: Sequence[BucketLayout]) -> ComputeTimes:
        own = _priced(self.own_optimizer, self.sizes, self.cluster.device) / PS_PER_SECOND
        both = self.step - own
        backward = self.stated_backward or both - both / self._longer / (1 + BACKWARD)
        measured = PassTimes(forward=both - backward, backward=backward, source="measured")
        assert self.model is not None  # noqa: S101 (of a step)
        return training_times(self.model, layouts, self.cluster.device, measured)

    @cached_property
    def seconds(self) -> float:
        """Seconds of the iteration; without a model, of the exchange until the last rank's exit."""
        if self.model is None:
            return self.alone(self.cluster)
        if self.traffic.grouping == "none":
            return self.step
        return predict(
            self.profile,
            self.cluster,
            self.passes,
            training=self.training,
            spans=False,
            averager=Averager.of(self.cluster, self.training, 0),
        ).iteration

    def alone(self, cluster: Cluster) -> float:
        """Return the seconds of only the exchange on a cluster."""
        finishes: Times = np.zeros(cluster.workers, dtype=np.int64)
        memo, more = CollectiveMemo.of(cluster), 0
        names = self._names(0)
        by_rank = [[({**names, "r": rank}, 1)] for rank in range(cluster.workers)]
        for entry in self.traffic.exchange:
            if entry.in_host is not None and cluster.host is not None:
                nbytes = evaluated(entry.in_host, [(names, 1)])
                together = cluster.workers if cluster.host.ranks == "all" else 1
                more += cluster.host.copying(nbytes, together)
        for entry, record in self._all(self.traffic.exchange, by_rank[0]):
            if entry.kind in _ROOTED or entry.kind == "all_gather":
                formula = getattr(entry, entry.kind)
                sizes = [evaluated(formula, each) for each in by_rank]
            if entry.kind in _ROOTED:
                messages = [one for one in _ROOTED[entry.kind](sizes) if one.nbytes]
                finishes = gloo_rooted.carry_messages(finishes, messages, cluster)
            elif entry.kind == "all_gather":
                finishes = memo(replace(record, sent=tuple(sizes)), finishes)
            elif entry.kind == "send":
                link, nbytes = cluster.network, record.sent[0]
                more += link.serialization(nbytes) + link.latency_for(nbytes)
            elif entry.kind == "push_pull":  # of one worker too
                finishes = memo.prepare(record).execute(finishes, 0)
            else:
                finishes = memo(record, finishes)
        return (int(finishes.max()) + more) / PS_PER_SECOND

    @cached_property
    def message_bytes(self) -> float:
        """Mean bytes per exchange; 0 without an exchange."""
        if self.model is None:
            return float(self._names(0).get("b", 0))
        if self.traffic.grouping == "none":
            return 0.0
        return self.sent / sum(len(one.collectives) for one in self._exchanges)

    @property
    def sent(self) -> int:
        """Bytes from a worker per step."""
        return sum(record.sent[0] for one in self._exchanges for record in one.collectives)

    @property
    def _exchanges(self) -> tuple[Exchange, ...]:
        return self.profile.phases[0].steps[0].exchanges

    @cached_property
    def profile(self) -> TrafficProfile:
        """Traffic profile of equal steps, in which all workers send the same bytes."""
        assert self.model is not None  # noqa: S101 (of a step)
        layouts = self._layouts()
        exchanges = [one for layout in layouts for one in self._messages(layout)]
        if any(entry.whole_variables for entry in self.traffic.exchange):
            exchanges = self._by_variables(layouts)
        if self.traffic.last:
            exchanges.append(self._exchange(self.traffic.last, [(self._names(0), 1)]))
            layouts = (*layouts, BucketLayout(index=0, slices=()))
        elif len(exchanges) > len(layouts):  # parts are ready with the first
            layouts = tuple(
                one
                for layout in layouts
                for one in (layout, *[BucketLayout(index=0, slices=())] * (self._parts(layout) - 1))
            )
        step = Step(number=0, exchanges=tuple(exchanges))
        found = TrafficProfile(
            compressor="hook" if self.traffic.hook else "none", parameters={}, model=self.model,
            buckets=layouts, workers=1, period=1,
            phases=(Phase(name="every step", count=1, steps=(step,)),),
            quality=Quality(nmse=0.0, cosine_similarity=1.0),
        )  # fmt: skip
        training = self.training
        if "exchange" in self.traffic.model_fields_set:  # of whatever gradients
            training = replace(training, gradients="fp32")
        return every(as_trained(found, training, self.cluster), training.local_steps)

    def _layouts(self) -> tuple[BucketLayout, ...]:
        parameters = [(name, (math.prod(shape),)) for name, shape in self.tensors]
        match self.traffic.grouping:
            case "whole":
                return bucket_layouts(parameters, first=1 << 60, cap=1 << 60)
            case "tensors":
                return bucket_layouts(parameters, first=1, cap=1)
            case "horovod":
                return grouped(self.sizes, self._fused())
            case "mg_wfbp":
                return self._merged(bucket_layouts(parameters, first=1, cap=1))
            case _:
                pass
        return bucket_layouts(parameters, first=self.buckets.first, cap=self.buckets.cap)

    def _merged(self, tensors: tuple[BucketLayout, ...]) -> tuple[BucketLayout, ...]:
        """Merge tensors as MG-WFBP does, for its estimates `start_up` and `per_byte` (seconds)."""
        let = self._names(0)
        ready = list(accumulate(self._passes(tensors).parts))
        start_up, per_byte = (float(let.get(name, 0)) for name in ("start_up", "per_byte"))
        ends = merged_ends([one.numel for one in tensors], ready, start_up, per_byte)
        order = [one.slices[0].index for one in tensors]
        return grouped(self.sizes, [order[a:b] for a, b in pairwise([0, *ends])])

    def _parts(self, layout: BucketLayout) -> int:
        return -(-layout.numel // (self.traffic.part or layout.numel))

    def _messages(self, layout: BucketLayout) -> Iterator[Exchange]:
        """Yield the exchanges of the bucket, or of its parts."""
        if self.traffic.by_tensor:
            each = self._tensors(one.index for one in layout.slices)
            yield self._exchange(self.traffic.exchange, each)
            return
        left, part = layout.numel, self.traffic.part or layout.numel
        yield self._message(min(part, left), len(layout.slices), left)
        for _ in range(1, self._parts(layout)):
            left -= part
            yield self._message(min(part, left), 0, 0)

    def _message(self, elements: int, tensors: int, whole: int) -> Exchange:
        """Return the exchange of these sizes, cached, as prices are cached by identity."""
        key = elements, tensors, whole
        if key not in self._exchanges_by_size:
            self._exchanges_by_size[key] = self._exchange(
                self.traffic.exchange, [(self._names(*key), 1)]
            )
        return self._exchanges_by_size[key]

    def _tensors(self, indices: Iterable[int]) -> Each:
        alike = Counter(self.shapes[index] for index in indices)
        return [pair for shape, count in alike.items() for pair in self._alike(shape, count)]

    def _alike(self, shape: Shape, count: int) -> Each:
        """Tensors of one shape."""
        matrix = shape if len(shape) == 2 else (0, 0)
        return [(self._names(math.prod(shape), 1, matrix=matrix), count)]

    def _names(
        self, elements: int, tensors: int = 0, whole: int = 0, matrix: Shape = (0, 0)
    ) -> dict[str, Number]:
        own = {"n": elements, "t": tensors, "whole": whole}
        own |= {"p": self.cluster.nodes, "w": self.cluster.workers}
        own |= {"rows": matrix[0], "columns": matrix[1]}
        found: dict[str, Number] = dict(own)
        for name, formula in self.traffic.let.items():
            found[name] = parsed(formula)(found)
        return found

    def _all(
        self, entries: Sequence[EntrySection], each: Each
    ) -> Iterator[tuple[EntrySection, CollectiveRecord]]:
        for entry in entries:
            if entry.kind and entry.inside is None:
                for _ in range(_times(entry, each)):
                    yield entry, _record(entry, each)

    def _exchange(self, entries: Sequence[EntrySection], each: Each) -> Exchange:
        records: list[CollectiveRecord] = []
        stages: list[list[KernelCost]] = [[]]
        per_payload: list[KernelCost] = []
        for entry in entries:
            if entry.inside is not None:
                stages[-1].append(self._inside(_record(entry, each), entry.inside))
            elif entry.kind:
                own = [_record(entry, each)] * _times(entry, each)
                records += own
                stages += [[] for _ in own]
            elif entry.busy is not None:
                stages[-1].append(self._copy(float(parsed(entry.busy)(each[0][0]))))
            elif entry.copied is not None:
                link, nbytes = self.cluster.intra_node, evaluated(entry.copied, each)
                taken = link.serialization(nbytes) + link.latency_for(nbytes)
                stages[-1].append(self._copy(taken / PS_PER_SECOND))
            elif entry.per_payload is not None:
                per_payload += _costs(entry.per_payload, each)
            else:
                stages[-1] += _costs(entry.encode or entry.decode or [], each)
        last = len(stages) - 1
        return Exchange(
            computes=tuple(
                Compute(
                    stage="decode" if place == last else "encode",
                    fixed=tuple(stage),
                    per_payload=tuple(per_payload) if place == last else (),
                )
                for place, stage in enumerate(stages)
            ),
            collectives=tuple(records),
            servers=(None,) * last if any(r.kind == "tree_merge" for r in records) else (),
        )

    def _inside(self, record: CollectiveRecord, devices: int) -> KernelCost:
        """Return a copy that takes as long as a collective inside a node."""
        on = replace(
            self.cluster, nodes=1, devices_per_node=devices, network=self.cluster.intra_node
        )
        taken = int(CollectiveMemo.of(on)(record, np.zeros(devices, dtype=np.int64)).max())
        return self._copy(taken / PS_PER_SECOND)

    def _copy(self, seconds: float) -> KernelCost:
        """Return kernels that take this long."""
        nbytes = round(seconds * (self.cluster.device.kernels["streaming"].bandwidth or 0.0))
        return KernelCost(kind="streaming", launches=0, elements=nbytes // 4, nbytes=nbytes)

    def _by_variables(self, layouts: Sequence[BucketLayout]) -> list[Exchange]:
        held = [0] * self.cluster.servers
        for size in self.sizes:
            held[held.index(min(held))] += size
        unevenness = Fraction(max(held) * len(held), sum(held))
        pushed = [math.ceil(4 * layout.numel * unevenness) for layout in layouts]
        pulled = [0] * (len(layouts) - 1) + [sum(pushed)]
        nothing = (Compute(stage="encode", fixed=()), Compute(stage="decode", fixed=()))
        return [
            Exchange(
                computes=nothing,
                collectives=(CollectiveRecord(kind="push_pull", sent=(push,), pulled=pull),),
            )
            for push, pull in zip(pushed, pulled, strict=True)
        ]

    def _fused(self) -> list[list[int]]:
        """Return the groups of tensors that Horovod fuses in this run."""
        memo = CollectiveMemo.of(self.cluster)
        together = np.zeros(self.cluster.workers, dtype=np.int64)
        of_shapes = {
            shape: [record for _, record in self._all(self.traffic.exchange, self._alike(shape, 1))]
            for shape in set(self.shapes)
        }

        def transfer(nbytes: int) -> float:
            record = replace(of_shapes[self.shapes[0]][0], sent=(nbytes,))
            return int(memo(record, together).max()) / PS_PER_SECOND

        nbytes = {shape: sum(record.sent[0] for record in own) for shape, own in of_shapes.items()}
        sizes = [nbytes[shape] for shape in self.shapes]
        return fused(sizes, self._ready(), transfer, cycle=_CYCLE, threshold=_FUSION)

    def _ready(self) -> list[float]:
        """Return when each gradient is ready, in seconds from the start of backward, by the layers'
        FLOPs; later if exchanges wait."""
        waits = float(self.training.waits)
        assert self.model is not None  # noqa: S101 (of a step)
        total, spent = self.model.forward_flops, 0
        backward = self.step * BACKWARD / (1 + BACKWARD)
        found: dict[int, float] = {}
        for layer in reversed(self.model.layers):
            spent += layer.forward_flops
            ready = backward * (1 - waits) * spent / total
            found.update(dict.fromkeys(layer.parameters, ready))
        return [found[n] for n in range(len(found))]


def _record(entry: EntrySection, each: Each) -> CollectiveRecord:
    kind: Any = entry.kind
    nbytes = evaluated(getattr(entry, kind), each)
    pulled = nbytes if kind in {"push_pull", "tree_merge"} else 0
    if kind in {*_ROOTED, "send"}:  # carried out message by message
        kind = "all_gather"
    return CollectiveRecord(
        kind=kind, sent=(nbytes,), pulled=pulled, element=entry.element, dtype=entry.dtype
    )


def _times(entry: EntrySection, each: Each) -> int:
    """Return how often an entry is sent, for all tensors."""
    return math.ceil(parsed(entry.times)(each[0][0]))


def _costs(rows: Sequence[Any], each: Each) -> list[KernelCost]:
    elements = sum(count * int(names["n"]) for names, count in each)
    return [
        KernelCost(
            kind=kind,
            launches=evaluated(launches, each),
            elements=elements,
            nbytes=evaluated(nbytes, each),
            flops=evaluated(flops, each),
        )
        for kind, launches, nbytes, flops in rows
    ]


def _priced(rows: Sequence[Any], sizes: Sequence[int], device: Device) -> Picoseconds:
    """Return the time of kernels on all tensors."""
    names = {"n": sum(sizes), "t": len(sizes)}
    fixed = tuple(_costs(rows, [(names, 1)]))
    return PriceList(device).compute_time(Compute(stage="decode", fixed=fixed), 1) if rows else 0
