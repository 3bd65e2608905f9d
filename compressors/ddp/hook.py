"""A compressor as a communication hook of PyTorch's `DistributedDataParallel`.

    model = DistributedDataParallel(net)
    gcsim.ddp_hook("topk", ratio=0.01).register(model)      # on every rank, before training

The hook runs the same `exchange` as the simulation: with the same gradients, updates equal those of
`lockstep` with `in_gloo_ring_order` bit for bit.

- **Order.** One thread per rank exchanges the buckets in the order in which DDP passes them (the
  same on all ranks), during the backward pass, over a separate process group, so that no other
  collective comes in between. (PyTorch's PowerSGD hook issues collectives from callbacks, whose
  order may differ between ranks: on Gloo with several buckets it may hang.) The group has the
  model's timeout, and in the first steps ranks compare their requests.
- **Steps** are exchanged iterations; passes under `no_sync` accumulate and do not count. The first
  iteration (with `static_graph` the first two) is exchanged uncompressed, since DDP forms its
  buckets anew after it; the next one is the compressor's step 0. Each bucket has a compressor of
  its own, as in stage 1 of a simulation.
- **Overflow.** If any rank's gradient is not finite, the iteration counts for no bucket on any
  rank: memory and step stay as they were (`steps.py`). DDP then gets infinity, for a `GradScaler`
  to skip the optimiser's step, or an error. So updates are handed over together, at the end of the
  backward pass, where DDP begins to wait for them.
- **Update.** `exchange`'s result replaces the mean gradient; DDP divides nothing. Parameters that
  this rank did not use count as zeros, as in DDP.
- **Memory.** Compressors work on the gradients' device. On a GPU they use a separate stream, which
  waits for DDP's bucket to be complete and runs parallel to the backward pass; payloads are sent
  over NCCL if the model's group uses it, else via host memory over Gloo. DDP's stream waits for
  the future. The host waits once per step, to know whether it counts, and if a method or a
  collective needs a length.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gcsim.compressors.base import Compressor, CompressorParameters, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.ddp import saved
from gcsim.compressors.ddp.between import PartCollectives
from gcsim.compressors.ddp.collectives import Collectives
from gcsim.compressors.ddp.measured import Measured, Sums, median_gap
from gcsim.compressors.ddp.model import (
    agree,
    group_for,
    group_of,
    one_device,
    require_ddp_support,
    require_dense,
    require_float32,
)
from gcsim.compressors.ddp.steps import Members, NotFiniteError, Part, Step, check_sum, regroup
from gcsim.compressors.demands import Demands
from gcsim.compressors.dense import Dense
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.mistakes import RefusedRequestError, new_member
from gcsim.compressors.named import method_named
from gcsim.compressors.options.method import Method, checked
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import REGISTRY, compressor_class
from gcsim.compressors.requests import tensors_sent
from gcsim.compressors.streams import Beside, Clock, clock_of
from gcsim.errors import InputError

if TYPE_CHECKING:
    Future = torch.futures.Future[Any]

_NOTHING = CompressorParameters()
COMPARED = 3
"""First steps of the compressor in which ranks compare their requests."""


def ddp_hook(
    compressor: str | type[Compressor] | Mapping[str, Any],
    /,
    *,
    seed: int = 0,
    process_group: Any = None,
    check_finite: bool = True,
    scaler: Any = None,
    other_buckets: Mapping[str, Sequence[int]] | None = None,
    training_steps: int | None = None,
    between: Literal["workers", "nodes", "racks"] = "workers",
    devices_per_node: int | None = None,
    ranks_per_rack: int | None = None,
    **parameters: Any,
) -> DdpHook:
    """Create a DDP communication hook; `register` it on the model on every rank.

    Parameters
    ----------
    compressor : a registered name, `package.module:Class`, a class, or a scenario's entry
        (`{"kind": "topk", "ratio": 0.01}`)
    seed : for the compressor's random numbers; equal on all ranks
    process_group : a Gloo or NCCL group of the model's ranks, not used elsewhere meanwhile; by
        default a new one: NCCL if the model's own group is NCCL, else Gloo
    check_finite : raise an error on all ranks if any gradient has NaN or infinity; False: give
        DDP infinity on all ranks, for a loop that checks its gradients
    scaler : the loop's `torch.amp.GradScaler`: methods see unscaled gradients, and overflows are
        infinity on all ranks, so that it skips the optimiser's step
    other_buckets : by name of another compressor: numbers of the buckets, as DDP has them after its
        first iteration, that it exchanges with its default parameters (`{"fp16": [0, 1]}`)
    training_steps : iterations of the training, if `dense_steps` is a share of them
    between : nodes, racks: ranks of each sum their gradients uncompressed, and the nodes or racks
        exchange the sums (`between.py`)
    devices_per_node : ranks per node, for `between`; by default torchrun's `LOCAL_WORLD_SIZE`
    ranks_per_rack : ranks per rack or site, for `between`
    parameters : the compressor's, and options (`dense_steps`, `payload`, `dense_tensors`)

    Raises `InputError` for an unknown compressor or parameter, and for a method that DDP cannot
    carry: one whose replicas differ, or that needs second moments of the samples' gradients.
    """
    given = dict(parameters)
    if isinstance(compressor, Mapping):
        entry = {key: value for key, value in compressor.items() if key != "label"}
        if not isinstance(kind := entry.pop("kind", None), str):
            raise InputError("no compressor is named", place="kind")
        compressor, given = kind, {**entry, **given}
    method = _method(compressor, given, training_steps)
    others: dict[int, _Method] = {}
    for name, numbers in (other_buckets or {}).items():
        other = _method(name, {})
        for number in numbers:
            if number in others or not isinstance(number, int) or number < 0:
                twice = f"bucket {number} has two compressors"
                message = twice if number in others else f"{number!r} is no number of a bucket"
                hint = "each bucket, counted from 0, has one compressor"
                raise InputError(message, place=f"other_buckets.{name}", hint=hint)
        others |= dict.fromkeys(numbers, other)
    if between not in ("workers", "nodes", "racks"):
        raise InputError(f"{between!r} is none of workers, nodes, racks", place="between")
    sizes = {"devices_per_node": devices_per_node, "ranks_per_rack": ranks_per_rack}
    for (name, size), ends in zip(sizes.items(), ("nodes", "racks"), strict=True):
        if size is not None and between != ends:
            message, hint = f"has no effect with between={between!r}", f"say between={ends!r}"
            raise InputError(message, place=name, hint=hint)
    ranks = 1
    if between == "nodes":
        ranks = devices_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        if ranks < 1:
            hint = "say devices_per_node=8, or start with torchrun"
            raise InputError("is unknown", place="devices_per_node", hint=hint)
    elif between == "racks":
        ranks = ranks_per_rack or 0
        if ranks < 1:
            raise InputError("is unknown", place="ranks_per_rack", hint="say ranks_per_rack=32")
    setup = _Setup(method, others, seed, check_finite, ranks)
    return DdpHook(setup, process_group=process_group, scaler=scaler)


class _Method(NamedTuple):
    kind: str
    checked: Method

    def plain(self) -> dict[str, Any]:
        parameters = self.checked.parameters.model_dump(mode="json")
        return {"compressor": self.kind, "parameters": parameters}


class _Setup(NamedTuple):
    """Arguments that copies of a hook share."""

    method: _Method
    others: Mapping[int, _Method]
    seed: int
    check_finite: bool
    ranks: int
    """Ranks per node or rack, which together are one worker of the method."""


def _method(
    compressor: str | type[Compressor], given: Mapping[str, Any], steps: int | None = None
) -> _Method:
    if isinstance(compressor, str):
        kind, in_name = method_named(compressor)
        cls, given = compressor_class(kind), {**in_name, **given}
    else:
        cls = compressor
        if not issubclass(cls, Compressor):
            raise InputError(f"{cls.__name__} is not a subclass of gcsim.Compressor")
        path = f"{cls.__module__}:{cls.__name__}"
        shipped = {f"gcsim.compressors.{target}": name for name, target in REGISTRY.items()}
        kind = shipped.get(path, path)  # as a scenario names it
    chosen = checked(kind, cls, given).of_steps(steps)
    require_ddp_support(kind, *chosen)
    return _Method(kind, chosen)


class DdpHook:
    """One rank's compressors for one model, and the thread that exchanges the buckets."""

    def __init__(self, setup: _Setup, *, process_group: Any = None, scaler: Any = None) -> None:
        self._setup = setup
        self._method, self._others, self._seed, self._check_finite, self._ranks = setup
        self.kind, self.parameters = self._method.kind, self._method.checked.parameters
        self.step = 0
        """Step of the compressor in the last exchanged iteration; negative before it starts."""
        self.loss: float | None = None
        """The rank's loss, for methods that need it: set it before each `backward()`."""
        self.layouts: dict[int, BucketLayout] = {}
        """Layouts by bucket number, as DDP last handed them over."""
        self.scaler = scaler
        """The training loop's `GradScaler`; may be set before `register`."""
        self._group = process_group
        self._collectives: Collectives | PartCollectives
        self._device: torch.device
        self._beside: Beside
        self._now: Clock
        self._members: Members = {}
        """Used only by the thread, and between iterations."""
        self._current: Step
        self._forming = 0
        """Iterations until DDP's buckets are final."""
        self._waiting: Mapping[str, Any] | None = None
        """A loaded state, for `register`."""
        self._slices: dict[int, saved.Trained] = {}
        """Trained parameters, by `id`."""
        self._known: dict[tuple[int, ...], BucketLayout] = {}
        """Layouts by bucket and ids of parameters, so that all steps share their `facts`."""
        self._sums: dict[int, Sums] = {}
        """Sums over the compressed steps, by bucket number."""
        self._starts = array("d")
        """Times at which the first bucket of each step was handed over, in seconds."""
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None

    def register(self, model: Any) -> DdpHook:
        """Register the hook on `model` (a `DistributedDataParallel`) and return it. Call it on
        every rank, before training. Raises `InputError`, on all ranks, if compressor, parameters,
        seed or model differ between them, or the model is not a DDP model, already has a hook, or
        has parameters other than float32, float16 and bfloat16."""
        from torch.nn.parallel import DistributedDataParallel

        if not isinstance(model, DistributedDataParallel):
            raise InputError(
                f"{type(model).__name__} is not a DistributedDataParallel model",
                place="model",
                hint="wrap the network in one, and register the hook on that",
            )
        hooks = [hook for _, hook in model._comm_hooks]  # of a copied model: no longer called
        if self._slices or not all(isinstance(h, DdpHook) and not h._slices for h in hooks):
            message = "the hook serves a model already" if self._slices else "it has a hook already"
            raise InputError(message, place="model", hint="one hook for one model")
        trained = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        device = one_device(trained)
        group, carries = group_for(model, self._group, device)
        self._collectives = collectives = Collectives(group, device if carries else None)
        self._beside, self._now = Beside(device), clock_of(device)
        self._device = device
        with self._beside.after():
            agree(
                group,
                {
                    **self._facts(),
                    "check_finite": self._refuses,
                    "state": self._waiting is not None,
                    "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in trained],
                },
            )
        require_float32(trained)
        if self._ranks > 1:
            self._collectives = PartCollectives(
                collectives,
                self._ranks,
                partial(group_of, model, device),
                device if carries else None,
            )
        self._method.checked.require_names(name for name, _ in trained)
        self._forming = 2 if model.static_graph else 1
        self.step = -1 - self._forming
        slices = {id(p): (n, number, tuple(p.shape)) for number, (n, p) in enumerate(trained)}
        if self._waiting is not None:
            self._resume(self._waiting, slices.values())
            self._waiting = None
        self._slices = slices
        model._comm_hooks.clear()
        model.register_comm_hook(self, _Named(self.kind))
        thread = threading.Thread(target=_work, args=(self._jobs,), name="gcsim-ddp", daemon=True)
        thread.start()
        weakref.finalize(self, _end, thread, self._jobs)
        return self

    def measured(self) -> Measured:
        """Return the bytes that this rank sent, and their times, in the compressed steps so far,
        without the method's dense steps and warm-up. Call it between iterations. Raises
        `InputError` if there were none."""
        if not self._starts:
            hint = (
                "the first iterations, dense steps and a warm-up do not count: train for some more"
            )
            raise InputError("no step was compressed", place="model", hint=hint)
        others: dict[str, list[int]] = {}
        for number in sorted(self._others.keys() & self._sums.keys()):
            others.setdefault(self._others[number].kind, []).append(number)
        whole = self._collectives
        if isinstance(whole, PartCollectives):
            whole = whole.everyone
        return Measured(
            **self._method.plain(),
            other_buckets=others,
            workers=whole.count,
            rank=whole.rank,
            ranks_per_part=self._ranks,
            steps=len(self._starts),
            iteration_s=median_gap(self._starts),
            buckets=[self._sums[number].mean() for number in sorted(self._sums)],
        )

    # --- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state after the last exchanged iteration: a dict of tensors, numbers
        and text for `torch.load(..., weights_only=True)`. Call it between iterations, and save it
        on every rank. Raises `InputError` if a compressor's state contains anything else."""
        if self._waiting is not None:
            return dict(self._waiting)
        if not self._slices:
            message = "the hook serves no model yet, and has no state"
            raise InputError(message, place="state", hint="register it first")
        return saved.state_of(self._facts(), self._worker(), self.step, self._members)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this rank's `state_dict`, to the same bits. Call it on every rank, before
        or after `register`, between iterations. Raises `InputError`, now or in `register`, for a
        state of another method or model or, unless steps are independent, of another rank or number
        of ranks."""
        saved.require_method(state, self._facts())
        if self._slices:
            self._resume(state, self._slices.values())
        else:
            self._waiting = state

    def _resume(self, state: Mapping[str, Any], trained: Iterable[saved.Trained]) -> None:
        """Continue from a state. Raises `InputError` on all ranks if one of them cannot."""
        members: Members = {}
        fault: InputError | None = None
        methods = [each.checked for each in (self._method, *self._others.values())]
        remembers = any(each.compressor.memory(each.parameters) != "none" for each in methods)
        try:
            saved.require_rank(state, self._worker(), remembers=remembers)
            with saved.whole():
                for layout in saved.layouts_of(state, trained):
                    member = self._new_member(layout)
                    if remembers:
                        saved.recall(member, state, layout, self._device)
                    members[layout.index] = layout, member
        except InputError as error:
            fault = error
        try:
            with self._beside.after():
                facts = {"state": state["step"] if fault is None else str(fault)}
                agree(self._collectives.group, facts)
        finally:
            if fault is not None:
                raise fault
        self._members = members
        self.step = state["step"] if members else -1 - self._forming

    def _facts(self) -> dict[str, Any]:
        """Return the arguments that distinguish hooks, without state."""
        others = {number: self._others[number].plain() for number in sorted(self._others)}
        found = {**self._method.plain(), "other_buckets": others, "seed": self._seed}
        return found if self._ranks == 1 else {**found, "devices_per_node": self._ranks}

    def __getstate__(self) -> dict[str, Any]:
        """Return arguments and state for a copy or pickle, which has no model and no group."""
        state = io.BytesIO()  # pickle does not know all dtypes
        torch.save(self.state_dict() if self._slices else self._waiting, state)
        return {
            "setup": self._setup, "scaler": self.scaler, "loss": self.loss,
            "state": state.getvalue(),
        }  # fmt: skip

    def __setstate__(self, given: dict[str, Any]) -> None:
        self.__init__(given["setup"], scaler=given["scaler"])  # type: ignore[misc]
        self.loss, state = given["loss"], io.BytesIO(given["state"])
        self._waiting = torch.load(state, map_location="cpu", weights_only=True)

    def exchange(self, bucket: Any) -> Future:
        """Exchange a `GradBucket` for DDP: return the future update, in its buffer's dtype and
        shape. A failure appears in `backward()`, where DDP waits for the update, as a
        `RuntimeError` that quotes it; all later exchanges then fail too."""
        buffer: Tensor = bucket.buffer()
        layout = self._layout(bucket)
        if layout.index == 0:
            self.step += 1
            regrouped = self._forming > 0 and self.step >= 0
            self._forming = max(0, self._forming - 1)
            self._current = Step(self.step, self.loss, regrouped=regrouped)
            if self.step >= self._method.checked.first_settled:
                self._starts.append(time.perf_counter())
        self.layouts[layout.index] = layout
        require_dense(buffer)
        step, last = self._current, bucket.is_last()
        ready, promise = self._beside.ready(buffer), self._beside.future()
        part = Part(layout=layout, buffer=buffer, promise=promise)

        def job() -> None:
            step.parts.append(part)
            try:
                if self._failure is not None:
                    raise self._failure
                with torch.no_grad(), self._beside.after(ready):
                    self._take(step, part, last=last)
            except BaseException as error:  # otherwise DDP would wait for ever
                self._failure = error
                step.end([error] * len(step.parts))

        self._jobs.put(job)
        return promise.then(_update_or_failure)

    def _layout(self, bucket: Any) -> BucketLayout:
        key = bucket.index(), *map(id, bucket.parameters())
        if key not in self._known:
            trained = (self._slices[each] for each in key[1:])
            self._known[key] = BucketLayout.behind(key[0], trained)
        return self._known[key]

    # --- on the thread --------------------------------------------------------------------------

    def _take(self, step: Step, part: Part, *, last: bool) -> None:
        """Exchange a bucket; after the last one, hand all updates to DDP."""
        if self.scaler is not None and part is step.parts[0]:
            step.scale = _scale_of(self.scaler)
        gradient = step.unscale(part)
        agreed = self._collectives.begin_maximum(step.faulty) if last else None
        if not step.regrouped:
            step.scaled(part, self._exchange(step, part.layout, gradient))
        if agreed is None:
            return
        if step.regrouped:
            layouts = [layout for _, (layout, _) in sorted(self._members.items())]
            updates = regroup(step.parts, layouts, partial(self._exchange, step))
            for each, update in zip(step.parts, updates, strict=True):
                step.scaled(each, update)
        else:
            for number in [number for number in self._members if number > part.layout.index]:
                del self._members[number]  # DDP has fewer buckets than before
        if step.counts(agreed()):
            step.end([each.update for each in step.parts])
            return
        step.undo(self._members)
        if step.number >= 0:
            self.step -= 1
        if self._refuses:
            title = self._method.checked.compressor.about.title
            error = step.error(title, self._collectives.group)
            step.end([error] * len(step.parts))
        else:
            step.end([torch.full_like(each.buffer, torch.inf) for each in step.parts])

    def _exchange(self, step: Step, layout: BucketLayout, gradient: Tensor) -> Tensor:
        """Return the update of a bucket, which `step` may undo."""
        if step.number >= 0:
            step.remember(self._members, layout.index)
        if isinstance(self._collectives, PartCollectives):
            gradient = self._collectives.mean(gradient)
        bucket = Bucket(layout=layout, gradient=gradient, loss=step.loss)
        try:
            return self._update(bucket, step.number, step.checks)
        except NotFiniteError as error:  # raised at once in host memory
            step.shared_problem = error.problems[0]
            return gradient

    def _update(self, bucket: Bucket, step: int, checks: Demands) -> Tensor:
        member = self._member(bucket.layout) if step >= 0 else Dense(self._worker(), _NOTHING)
        exchange = participate(member, bucket, step, finite=False, unmodified=False)
        index = bucket.layout.index
        first = self._others.get(index, self._method).checked.first_settled
        sums = self._sums.setdefault(index, Sums()) if step >= first else Sums()
        sums.elements = bucket.layout.numel
        sums.steps += 1
        instants = [self._now()]
        reply = None
        while True:
            try:
                with checks:
                    request = exchange.send(reply)
            except StopIteration as stop:
                update: Tensor = stop.value
                if 0 <= step < COMPARED:
                    self._collectives.require_alike(index, None)
                sums.instants.append([*instants, self._now()])
                return update
            sums.sent_bytes += sum(tensor.nbytes for tensor in tensors_sent(request))
            instants.append(self._now())
            try:
                if 0 <= step < COMPARED:
                    self._collectives.require_alike(index, request)
                reply = self._collectives.execute(request)
            except RefusedRequestError as error:
                exchange.throw(error)
            instants.append(self._now())
            with checks:
                check_sum(request, reply)

    def _member(self, layout: BucketLayout) -> Compressor:
        known, member = self._members.get(layout.index, (None, None))
        if member is None or known != layout:
            if known is not None:
                kind = self._others.get(layout.index, self._method).kind
                warnings.warn(
                    f"DDP has changed bucket {layout.index}: what {kind} held back is lost",
                    stacklevel=1,
                )
            member = self._new_member(layout)
            self._members[layout.index] = layout, member
        return member

    def _new_member(self, layout: BucketLayout) -> Compressor:
        method = self._others.get(layout.index, self._method).checked
        return new_member(method.compressor, self._worker(), method.parameters)

    @property
    def _refuses(self) -> bool:
        """Whether a non-finite value is an error; otherwise DDP gets infinity."""
        scaled = self.scaler is not None and self.scaler.is_enabled()
        return self._check_finite and not scaled

    def _worker(self) -> Worker:
        group = self._collectives
        return Worker(rank=group.rank, count=group.count, seed=self._seed)


class _Named:
    """The function that DDP calls for each bucket, and logs under the method's name."""

    def __init__(self, kind: str) -> None:
        self.__name__ = self.__qualname__ = f"gcsim.ddp_hook {kind}"

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]
        return state.exchange(bucket)  # without annotations, since DDP checks them as objects


def _scale_of(scaler: Any) -> Tensor | float:
    """Return the loss scale, on its device; `get_scale` would wait for the device."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else float(scaler.get_scale())


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Run the thread's jobs until one is None."""
    while (job := jobs.get()) is not None:
        job()
        del job  # it references the hook, which shall be freed with the model


def _end(thread: threading.Thread, jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """End the thread when the hook is freed or Python exits, since a thread that returned from
    torch later would abort the process. A thread that waits for a lost rank is left."""
    jobs.put(None)
    if thread is not threading.current_thread():
        thread.join(timeout=5)


def _update_or_failure(done: Future) -> Any:
    found = done.value()
    if isinstance(found, BaseException):
        raise found
    return found
