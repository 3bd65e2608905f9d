"""How is a compressor deployed? As a communication hook of PyTorch's `DistributedDataParallel`.

    model = DistributedDataParallel(net)
    gcsim.ddp_hook("topk", ratio=0.01).register(model)      # on every rank, before training

The fourth driver of a compressor's `exchange`, beside lockstep, the meter and the checker: what
was simulated is what runs. Given the same gradients, the updates equal those of `lockstep` with
`in_gloo_ring_order` bit for bit.

- **Order.** One thread a rank exchanges the buckets, one after the other in the order in which DDP
  hands them over (the same on all ranks), while the backward pass goes on. It has a process group
  of its own, so that no other collective comes in between. (PyTorch's PowerSGD hook issues
  collectives from callbacks, whose order may differ between ranks: on Gloo with several buckets
  it may hang.) It waits as long as the model's own, and in its first steps ranks compare what they
  ask for (`deadlines.py`, `alike.py`).
- **Steps** are counted by exchanged iterations: passes under `no_sync` accumulate and do not count.
  The first iteration (with `static_graph` the first two) is exchanged uncompressed, since DDP forms
  its buckets anew after it; the next one is the compressor's step 0. Each bucket has a compressor
  of its own, as in stage 1 of a simulation.
- **Update.** What `exchange` returns takes the place of the mean gradient; DDP divides nothing.
  Parameters that this rank did not use count as zeros, as in DDP.
- **Memory.** Compressors work where the gradients lie. On a GPU that is a stream of its own, behind
  the event at which DDP's bucket is complete and beside the backward pass; payloads travel over
  NCCL where the model's group does, else through host memory over Gloo. DDP gets a future for
  which its stream waits, and the host no longer than until all is queued. Not run on a GPU yet.
"""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice
from gcsim.compressors.ddp.alike import COMPARED, require_alike
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.ddp.measured import Measured, Sums, median_gap, sent_by
from gcsim.compressors.ddp.model import (
    agree,
    group_for,
    one_device,
    require_ddp_support,
    require_dense,
    require_float32,
)
from gcsim.compressors.dense import Dense
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.mistakes import RefusedRequestError, new_member
from gcsim.compressors.options.method import Method, checked
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import compressor_class
from gcsim.compressors.streams import Beside, Clock, clock_of
from gcsim.errors import InputError, Problem

if TYPE_CHECKING:
    Future = torch.futures.Future[Any]

_NOTHING = CompressorParameters()


def ddp_hook(
    compressor: str | type[Compressor] | Mapping[str, Any],
    /,
    *,
    seed: int = 0,
    process_group: Any = None,
    check_finite: bool = True,
    other_buckets: Mapping[str, Sequence[int]] | None = None,
    training_steps: int | None = None,
    **parameters: Any,
) -> DdpHook:
    """A compressor as DDP communication hook; `register` it on the model on every rank.

    Parameters
    ----------
    compressor : a registered name, `package.module:Class`, a class, or a scenario's entry
        (`{"kind": "topk", "ratio": 0.01}`)
    seed : of the compressor's random numbers; equal on all ranks
    process_group : a Gloo or NCCL group of the model's ranks that nobody else uses meanwhile; by
        default one is made: NCCL's where the model's own group is, else Gloo's
    check_finite : refuse gradients that hold NaN or infinity; one pass over each
    other_buckets : by name of another compressor: numbers of the buckets, as DDP has them after its
        first iteration, that it exchanges with its default parameters (`{"fp16": [0, 1]}`)
    training_steps : iterations of the training, where `dense_steps` is a share of them
    parameters : the compressor's, and options of any (`dense_steps`, `payload`, `dense_tensors`)

    Raises `InputError` for an unknown compressor or parameters, and for a method that DDP cannot
    carry: one whose replicas differ, or that needs second moments of the samples' gradients.
    """
    given = dict(parameters)
    if isinstance(compressor, Mapping):
        entry = {key: value for key, value in compressor.items() if key != "label"}
        if not isinstance(kind := entry.pop("kind", None), str):
            raise InputError(Problem(message="no compressor is named", place="kind"))
        compressor, given = kind, {**entry, **given}
    if isinstance(compressor, str):
        kind, cls = compressor, compressor_class(compressor)
    else:
        kind, cls = compressor.__name__, compressor
        if not issubclass(cls, Compressor):
            raise InputError(f"{kind} is not a subclass of gcsim.Compressor")
    method = _method(kind, cls, given, training_steps)
    others: dict[int, _Method] = {}
    for name, numbers in (other_buckets or {}).items():
        other = _method(name, compressor_class(name), {})
        for number in numbers:
            if number in others or not isinstance(number, int) or number < 0:
                twice = f"bucket {number} has two compressors"
                message = twice if number in others else f"{number!r} is no number of a bucket"
                hint = "each bucket, counted from 0, has one compressor"
                raise InputError(Problem(message=message, place=f"other_buckets.{name}", hint=hint))
        others |= dict.fromkeys(numbers, other)
    return DdpHook(
        method, others, seed=seed, process_group=process_group, check_finite=check_finite
    )


class _Method(NamedTuple):
    """What exchanges a bucket."""

    kind: str
    compressor: type[Compressor]
    parameters: CompressorParameters

    @property
    def checked(self) -> Method:
        return Method(self.compressor, self.parameters)

    def plain(self) -> dict[str, Any]:
        return {"compressor": self.kind, "parameters": self.parameters.model_dump(mode="json")}


def _method(
    kind: str, cls: type[Compressor], given: Mapping[str, Any], steps: int | None = None
) -> _Method:
    chosen = checked(kind, cls, given).of_steps(steps)
    require_ddp_support(kind, *chosen)
    return _Method(kind, *chosen)


class DdpHook:
    """One rank's compressors of one model, and the thread that exchanges the buckets."""

    def __init__(
        self,
        method: _Method,
        others: Mapping[int, _Method],
        *,
        seed: int,
        process_group: Any,
        check_finite: bool,
    ) -> None:
        self.kind = method.kind
        self.parameters = method.parameters
        self.step = 0
        """Of the compressor, in the iteration exchanged last; negative before it takes part."""
        self.loss: float | None = None
        """The rank's, for methods that follow it: to be set before each `backward()`."""
        self.layouts: dict[int, BucketLayout] = {}
        """By number of the bucket, as DDP handed it over last."""
        self._method = method
        self._others = others
        self._seed = seed
        self._group = process_group
        self._check_finite = check_finite
        self._collectives: Collectives
        self._beside: Beside
        self._now: Clock
        self._members: dict[int, tuple[BucketLayout, Compressor]] = {}
        """By number of the bucket; used by the thread alone."""
        self._slices: dict[int, tuple[str, int]] = {}
        """By identity of a parameter: its name, and its number among the trained ones."""
        self._sums: dict[int, Sums] = {}
        """By number of the bucket: of the compressed steps."""
        self._starts = array("d")
        """Of these: when the first bucket was handed over, in seconds of the clock."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None

    def register(self, model: Any) -> DdpHook:
        """Make `model` (a `DistributedDataParallel`) exchange its gradients this way; the hook.

        To be called on every rank, before training. Raises `InputError`, on all ranks, when
        compressor, parameters, seed or model differ between them, or the model cannot be served: it
        is none of DDP's, has a hook already, or parameters beyond float32, float16 and bfloat16.
        """
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(model, DistributedDataParallel):
            raise InputError(
                Problem(
                    message=f"{type(model).__name__} is no DistributedDataParallel",
                    place="model",
                    hint="wrap the network in one, and register the hook on that",
                )
            )
        if self._slices or getattr(model, "_comm_hooks", None):
            message = "the hook serves a model already" if self._slices else "it has a hook already"
            raise InputError(Problem(message=message, place="model", hint="one hook for one model"))
        trained = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        device = one_device(trained)
        group, carries = group_for(model, self._group, device)
        self._collectives = Collectives(group, device if carries else None)
        self._beside, self._now = Beside(device), clock_of(device)
        with self._beside.after():
            agree(
                group,
                {
                    **self._method.plain(),
                    "other_buckets": {n: self._others[n].plain() for n in sorted(self._others)},
                    "seed": self._seed,
                    "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in trained],
                },
            )
        require_float32(trained)
        self._method.checked.require_names(name for name, _ in trained)
        self.step = -3 if model.static_graph else -2
        self._slices = {id(p): (name, number) for number, (name, p) in enumerate(trained)}

        def hook(state, bucket):  # type: ignore[no-untyped-def]
            return state.exchange(bucket)  # without annotations: DDP reads them, as objects

        hook.__name__ = hook.__qualname__ = f"gcsim.ddp_hook {self.kind}"
        model.register_comm_hook(self, hook)
        thread = threading.Thread(target=_work, args=(self._jobs,), name="gcsim-ddp", daemon=True)
        thread.start()
        weakref.finalize(self, _end, thread, self._jobs)
        return self

    def measured(self) -> Measured:
        """What this rank sent, and how long that took, in the steps that were compressed so far.

        To be called between iterations. Raises `InputError` when there was none.
        """
        if not self._sums:
            hint = "the first iterations are exchanged uncompressed: train for some more"
            raise InputError(Problem(message="no step was compressed", place="model", hint=hint))
        others: dict[str, list[int]] = {}
        for number in sorted(self._others.keys() & self._sums.keys()):
            others.setdefault(self._others[number].kind, []).append(number)
        return Measured(
            **self._method.plain(),
            other_buckets=others,
            workers=self._collectives.count,
            rank=self._collectives.rank,
            steps=len(self._starts),
            iteration_s=median_gap(self._starts),
            buckets=[self._sums[number].mean() for number in sorted(self._sums)],
        )

    def exchange(self, bucket: Any) -> Future:
        """What DDP calls for a `GradBucket`: the future update, in its buffer's dtype and shape.

        A failure appears where DDP waits for the update, in `backward()`, as a `RuntimeError` that
        quotes it. All later exchanges fail with it.
        """
        buffer: Tensor = bucket.buffer()
        layout = self._layout(bucket)
        if layout.index == 0:
            self.step += 1
            if self.step >= self._method.checked.dense_steps:
                self._starts.append(time.perf_counter())
        self.layouts[layout.index] = layout
        require_dense(buffer)
        step, loss = self.step, self.loss
        ready, promise = self._beside.ready(buffer), self._beside.future()

        def job() -> None:
            try:
                if self._failure is not None:
                    raise self._failure
                with torch.no_grad(), self._beside.after(ready):
                    part = Bucket(layout=layout, gradient=buffer.float(), loss=loss)
                    promise.set_result(self._update(part, step).to(buffer))
            except BaseException as error:  # else DDP would wait for ever
                self._failure = error
                promise.set_result(error)

        self._jobs.put(job)
        return promise.then(_update_or_failure)

    def _layout(self, bucket: Any) -> BucketLayout:
        slices, offset = [], 0
        for parameter in bucket.parameters():
            name, number = self._slices[id(parameter)]
            shape = tuple(parameter.shape)
            slices.append(TensorSlice(name=name, shape=shape, offset=offset, index=number))
            offset += parameter.numel()
        return BucketLayout(index=bucket.index(), slices=tuple(slices))

    def _update(self, bucket: Bucket, step: int) -> Tensor:
        """Runs on the thread."""
        member = self._member(bucket.layout) if step >= 0 else Dense(self._worker(), _NOTHING)
        exchange = participate(member, bucket, step, finite=self._check_finite, unmodified=False)
        index = bucket.layout.index
        first = self._others.get(index, self._method).checked.dense_steps
        sums = self._sums.setdefault(index, Sums()) if step >= first else Sums()
        sums.elements = bucket.layout.numel
        sums.steps += 1
        started = self._now()
        reply: Any = None
        while True:
            try:
                request = exchange.send(reply)
            except StopIteration as stop:
                update: Tensor = stop.value
                if 0 <= step < COMPARED:
                    require_alike(self._collectives, index, None)
                sums.took("whole_s", started, self._now())
                return update
            sums.sent_bytes += sent_by(request)
            asked = self._now()
            try:
                if 0 <= step < COMPARED:
                    require_alike(self._collectives, index, request)
                reply = self._collectives.execute(request)
            except RefusedRequestError as error:
                exchange.throw(error)
            sums.took("exchanged_s", asked, self._now())

    def _member(self, layout: BucketLayout) -> Compressor:
        method = self._others.get(layout.index, self._method)
        known, member = self._members.get(layout.index, (None, None))
        if member is None or known != layout:
            if known is not None:
                warnings.warn(
                    f"DDP has changed bucket {layout.index}: what {method.kind} held back is lost",
                    stacklevel=1,
                )
            member = new_member(method.compressor, self._worker(), method.parameters)
            self._members[layout.index] = layout, member
        return member

    def _worker(self) -> Worker:
        group = self._collectives
        return Worker(rank=group.rank, count=group.count, seed=self._seed)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """What the thread does, until it is given None."""
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the hook, which is to be freed with the model


def _end(thread: threading.Thread, jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """When the hook is freed, or Python exits: a thread that comes back from torch after that
    would abort the process. One that waits for a rank that is gone stays where it is."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=5)


def _update_or_failure(done: Future) -> Any:
    found = done.value()
    if isinstance(found, BaseException):
        raise found
    return found
