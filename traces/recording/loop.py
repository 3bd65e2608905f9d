"""Recording of a user's loop: each iteration and the end, in one process or on all ranks.

Hooks fill a `GradientCapture` while the user's loop runs; `step` stores it and all ranks decide
together how to continue: first gradients, then times, then the trace is finished. Second moments
come from the closed forms of `second_moments`, by hooks during the user's own passes; a parameter
without one would need further backward passes, so it is refused by name.

Rank 0 creates the trace. Ranks that can see its temporary folder write to it; others (without a
shared file system) send their gradients to rank 0. Ranks agree on every decision that could differ
(a NaN on one rank), so that none waits for a rank that has left.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from gcsim.compressors.lazy_torch import Tensor, nn, torch
from gcsim.errors import InputError, Problem
from gcsim.traces.live import WorkerGradients
from gcsim.traces.models.building import trainable
from gcsim.traces.models.ready_order import whole_order
from gcsim.traces.moments import SecondMoments
from gcsim.traces.profile import Costs, ModelFacts, PassTimes
from gcsim.traces.recording.capture import GradientCapture
from gcsim.traces.recording.clock import OnePass, PassClock, can_be_timed, median_pass
from gcsim.traces.recording.model import FirstBatch, seen_model
from gcsim.traces.recording.result import Share, Wanted, checked_loss, summary, where_from
from gcsim.traces.storage.writing import TraceWriter


class Recording:
    """A recording in progress; see `record`."""

    def __init__(self, model: nn.Module, folder: Path, wanted: Wanted, scaler: Any) -> None:
        self.folder = folder
        self.iterations = 0
        """Complete iterations recorded so far."""
        self.done = False
        """Whether the trace is complete."""
        self._before = wanted.start
        """Number of training steps still to skip before recording."""
        self._called = model
        self._wanted = wanted
        self._scaler = scaler
        self._scale = 1.0
        self._spent = 0.0
        """Seconds that recording took in this process, without the hooks' copies."""
        self._losses: list[float | None] = []
        self._passes: list[OnePass] = []
        self._micro_batches = 1
        self._skipped = 0
        self._turns = 0
        self._limit = wanted.iterations
        self._facts: ModelFacts | None = None
        self._ranks = _Ranks()
        self._absent: tuple[int, ...] = ()
        self._times: PassTimes | None = None

    # --- the context --------------------------------------------------------------------------

    def __enter__(self) -> Recording:
        wanted = self._wanted
        self._model = seen_model(self._called)
        self._parameters = trainable(self._model)
        if wanted.distributed:
            self._ranks = _Ranks.of(self._called)
        self._refuse()
        self._capture = GradientCapture(
            self._parameters, workers=wanted.workers, allow_unused=wanted.allow_unused
        )
        self._capture.on_first = self._note_scale
        self._clock: PassClock | None = None
        self._moments = SecondMoments(self._model) if wanted.second_moments else None
        self._moment_costs: dict[int, Costs] = {}
        """Kernels that compute one mini-batch's second moments, by parameter."""
        self._first = FirstBatch(self._called)
        self._open()
        try:
            if not self._before:
                self._watch()
        except BaseException:
            self._close()
            raise
        return self

    def _watch(self) -> None:
        if self._moments is not None:
            self._moments.follow()
        self._capture.start()
        self._first.watch()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.done:
                self._finish_early()
        finally:
            self._close()

    def _refuse(self) -> None:
        """Raise `InputError` for wrong settings before the first iteration."""
        wanted, many = self._wanted, self._ranks.count > 1
        checks = (
            (wanted.iterations < 1, "iterations", "must be at least 1", ""),
            (wanted.start < 0, "start", "must not be negative", ""),
            (wanted.workers < 1, "workers", "must be at least 1", ""),
            (wanted.timed < 0, "timed", "must not be negative", ""),
            (not self._parameters, "model", "no parameter requires a gradient", ""),
            (
                many and wanted.workers > 1,
                "workers",
                "every rank is a worker of the trace",
                "leave workers out, or record one process with distributed=False",
            ),
            (
                wanted.second_moments and wanted.workers > 1,
                "second_moments",
                "second moments are recorded of one backward pass an iteration",
                "record with workers=1",
            ),
        )
        problems = [
            Problem(message=message, place=place, hint=hint)
            for wrong, place, message, hint in checks
            if wrong
        ]
        if problems:
            raise InputError(problems)

    def _open(self) -> None:
        """Create the temporary folder on rank 0; other ranks join it if they can see it."""
        temporary = None
        with self._ranks.together():
            if self._ranks.rank == 0:
                self._writer = TraceWriter(self.folder, dtype=self._wanted.dtype)
                temporary = self._writer.__enter__().temporary
        if self._ranks.count > 1:
            shared = _SharedFolder(self._ranks, temporary)
            self._absent = shared.absent
            if self._ranks.rank > 0:
                self._writer = TraceWriter(
                    self.folder, dtype=self._wanted.dtype, inside=shared.path
                )
                self._writer.__enter__()

    def _close(self) -> None:
        self._capture.stop()
        self._first.release()
        if self._clock is not None:
            self._clock.stop()
        if self._moments is not None:
            self._moments.release()
        self._writer.__exit__(None, None, None)

    # --- iterations -----------------------------------------------------------------------------

    def step(self, loss: Tensor | float | None = None) -> bool:
        """End an iteration; return True when enough is recorded. `loss` is recorded if given. Under
        `torch.distributed` every rank must call it."""
        if self.done:
            return True
        if self._before:
            self._before -= 1
            if not self._before:
                self._watch()
            return False
        began = time.perf_counter()
        if self.iterations < self._limit:
            self._take(loss)
            if self.iterations == self._limit:
                self._start_clock()
        else:
            assert self._clock is not None
            self._passes += [one] if (one := self._clock.turn()) is not None else []
            self._turns += 1
            if self._turns == self._wanted.timed:
                self._finish()
        self._spent += time.perf_counter() - began
        return self.done

    def _note_scale(self) -> None:
        """Read the scale before the scaler changes it at the end of the iteration."""
        if self._scaler is not None:
            self._scale = float(self._scaler.get_scale())

    def _take(self, loss: Tensor | float | None) -> None:
        """Store the gradients of the iteration that ends now."""
        problems = self._capture.problems()
        skip = False
        noted: float | None = None
        gradients: list[tuple[Tensor, ...]] = []
        moments: tuple[Tensor, ...] | None = None
        if not problems:
            try:
                if self._facts is None:
                    self._begin()
                gradients = self._capture.gradients()
                skip = self._scaler is not None and self._unscale(gradients)
                if not skip:
                    noted = None if loss is None else checked_loss(loss)
                    moments = self._take_moments(gradients[0])
                    self._store(gradients, moments)
            except InputError as error:
                problems = list(error.problems)
        agreed = self._ranks.gather((problems, skip, self._limit))
        found = [problem for of_rank, _, _ in agreed for problem in of_rank]
        if found:
            raise InputError(dict.fromkeys(found))
        self._limit = agreed[0][2]
        if any(skips for _, skips, _ in agreed):
            self._skipped += 1
        else:
            self._send(gradients, moments)
            self._micro_batches = self._capture.passes // self._wanted.workers
            self._losses.append(noted)
            self.iterations += 1
        self._capture.clear()
        if self._moments is not None:
            self._moments.follow()

    def _begin(self) -> None:
        """Determine, after the first iteration, what is recorded and how many iterations fit."""
        self._facts = self._first.facts(self._model, self._wanted.name, self._wanted.batch_size)
        self._writer.begin(self._facts, [(n, tuple(p.shape)) for n, p in self._parameters])
        if self._ranks.rank == 0:
            self._limit = self._writer.iterations_that_fit(
                self._wanted.iterations,
                self._workers,
                self._wanted.second_moments,
                self._wanted.max_bytes,
            )

    @property
    def _workers(self) -> int:
        return self._ranks.count * self._wanted.workers

    def _unscale(self, gradients: Sequence[Sequence[Tensor]]) -> bool:
        """Divide by the scaler's scale; return True if the scaled gradients have overflowed."""
        for of_worker in gradients:
            for gradient in of_worker:
                if not bool(torch.isfinite(gradient).all()):
                    return True
                gradient.div_(self._scale)
        return False

    def _take_moments(self, gradients: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Return the second moments of the single backward pass of the iteration, by parameter:
        float32 on the CPU. Raises `InputError` if a parameter has no closed form or, in the first
        iteration, is used outside its layer."""
        if self._moments is None:
            return None
        found = self._moments.followed(
            gradients, self._scale, metered=not self._moment_costs, check=self.iterations == 0
        )
        self._moment_costs = self._moment_costs or found.costs
        return tuple((value / self._scale**2).float().cpu() for value in found.values)

    def _store(
        self, gradients: Sequence[tuple[Tensor, ...]], moments: tuple[Tensor, ...] | None
    ) -> None:
        """Write this process's files, unless rank 0 has to."""
        if self._ranks.rank in self._absent:
            return
        for number, of_worker in enumerate(gradients):
            self._write(self._ranks.rank * self._wanted.workers + number, of_worker, moments)

    def _write(
        self, worker: int, gradients: tuple[Tensor, ...], moments: tuple[Tensor, ...] | None
    ) -> None:
        self._writer.add(
            WorkerGradients(
                iteration=self.iterations,
                worker=worker,
                loss=0.0,
                gradients=gradients,
                second_moments=moments,
            )
        )

    def _send(
        self, gradients: Sequence[tuple[Tensor, ...]], moments: tuple[Tensor, ...] | None
    ) -> None:
        """Send gradients from ranks that cannot see the folder to rank 0, which writes them."""
        if not self._absent:
            return
        count = len(self._parameters)
        with self._ranks.together():
            brought = self._ranks.bring([*gradients[0], *(moments or ())], self._absent)
            for rank, tensors in brought.items():
                self._write(rank, tuple(tensors[:count]), tuple(tensors[count:]) or None)

    # --- times ------------------------------------------------------------------------------------

    def _start_clock(self) -> None:
        self._capture.stop()
        if self._moments is not None:
            self._moments.release()
        if self._wanted.timed == 0 or not can_be_timed(self._parameters):
            self._finish()
            return
        self._clock = PassClock(self._called, self._parameters, exchanges=self._ranks.count > 1)
        self._clock.start()

    # --- the end ----------------------------------------------------------------------------------

    def _finish_early(self) -> None:
        """Finish after the loop has ended early."""
        if self._before:
            raise InputError(
                f"the loop ended after {self._wanted.start - self._before} steps, and recording "
                f"begins after {self._wanted.start}",
                place="start",
                hint="record with a smaller start, or train for longer",
            )
        if self.iterations == 0:
            message = "the loop ended before an iteration was recorded"
            hint = "call recording.step(loss) at the end of each iteration"
            raise InputError(message, place="recording.step", hint=hint)
        self._finish()

    def _finish(self) -> None:
        assert self._facts is not None
        share = Share(written=self._writer.written(), losses=self._losses, passes=self._passes)
        shares: list[Share] = self._ranks.gather(share)
        with self._ranks.together():
            if self._ranks.rank == 0:
                self._merge(shares)
        self.done = True
        self._close()
        if self._ranks.rank == 0 and not self._wanted.quiet:
            text = summary(
                self.folder,
                self._wanted,
                iterations=self.iterations,
                limit=self._limit,
                workers=self._workers,
                micro_batches=self._micro_batches,
                times=self._times,
                spent=self._spent,
            )
            sys.stderr.write(text + "\n")

    def _merge(self, shares: Sequence[Share]) -> None:
        """Merge all ranks' parts to one trace, on rank 0."""
        assert self._facts is not None
        for other in shares[1:]:
            self._writer.adopt(other.written)
        passes = [one for share in shares for one in share.passes]
        device = self._parameters[0][1].device
        self._times = median_pass(passes, device, ranks=self._ranks.count) if passes else None
        source = where_from(self._facts, self._wanted, device, shares, self.iterations)
        source["micro_batches"] = self._micro_batches
        source["warmup_steps"] = self._wanted.start
        if self._skipped:
            source["iterations_left_out_by_the_scaler"] = self._skipped
        self._writer.finish(
            workers=self._workers,
            iterations=self.iterations,
            second_moments=self._wanted.second_moments,
            moment_costs=self._moment_costs,
            source=source,
            ready_order=whole_order([*self._capture.arrived], len(self._parameters)),
            passes=self._times,
            buckets=_exchanged_buckets(self._called, [name for name, _ in self._parameters]),
        )


_TOKEN = ".shared"  # noqa: S105 - a file's name


class _Ranks:
    """The processes that record together: this one, or those of a `torch.distributed` group."""

    rank, count = 0, 1
    _group = _dist = _device = cast(Any, None)

    @classmethod
    def of(cls, model: nn.Module) -> _Ranks:
        """Return the group in which `model` exchanges gradients, or else this process alone."""
        import torch.distributed as dist

        own = cls()
        if not dist.is_available() or not dist.is_initialized():
            return own
        own._group = getattr(model, "process_group", None) if _is_ddp(model) else None
        own._dist, own.rank = dist, dist.get_rank(own._group)
        own.count = dist.get_world_size(own._group)
        on_gpu = dist.get_backend(own._group) == "nccl"
        own._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
        return own

    def _global(self, rank: int) -> int:
        return rank if self._group is None else self._dist.get_global_rank(self._group, rank)

    def share(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        box, to = [value], self._group
        if self.count > 1:
            self._dist.broadcast_object_list(box, self._global(0), to, device=self._device)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' values on every rank."""
        found = [value] * self.count
        if self.count > 1:
            self._dist.all_gather_object(found, value, group=self._group)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an `InputError` of rank 0 on all ranks."""
        problems: tuple[Problem, ...] = ()
        try:
            yield
        except InputError as error:
            problems = tuple(error.problems)
        if told := self.share(problems):
            raise InputError(told)

    def bring(self, tensors: Sequence[Tensor], absent: Sequence[int]) -> dict[int, list[Tensor]]:
        """Return on rank 0 the tensors of the ranks in `absent`; numbers and sizes are equal."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        device = self._device or torch.device("cpu")
        if self.rank in absent:
            self._dist.send(flat.to(device), dst=self._global(0), group=self._group)
        brought: dict[int, list[Tensor]] = {}
        if self.rank == 0:
            for rank in absent:
                box = torch.empty_like(flat, device=device)
                self._dist.recv(box, src=self._global(rank), group=self._group)
                pieces = torch.split(box.cpu(), [tensor.numel() for tensor in tensors])
                brought[rank] = [p.view(t.shape) for p, t in zip(pieces, tensors, strict=True)]
        return brought


def _exchanged_buckets(
    model: nn.Module, names: Sequence[str]
) -> tuple[tuple[str, ...], ...] | None:
    """Return DDP's buckets after its rebuild, as parameter names; None if there are none."""
    if not _is_ddp(model):
        return None
    try:
        told = model._get_ddp_logging_data()  # type: ignore[operator]
        text = str(told["rebuilt_per_bucket_param_indices"])
        found = tuple(
            tuple(names[int(number)] for number in bucket.split()) for bucket in text.split(",")
        )
    except (AttributeError, KeyError, ValueError, IndexError, RuntimeError):
        return None  # this version of torch does not tell, or DDP did not rebuild them
    return found if sorted(sum(found, ())) == sorted(names) else None


def _is_ddp(model: nn.Module) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


class _SharedFolder:
    """The ranks that can see rank 0's folder."""

    def __init__(self, ranks: _Ranks, folder: Path | None) -> None:
        word = secrets.token_hex(16)
        if folder is not None:
            (folder / _TOKEN).write_text(word, encoding="ascii")
        told, expected = ranks.share((str(folder), word))
        self.path = Path(told)
        seen = ranks.gather(_reads(self.path / _TOKEN, expected))
        self.absent = tuple(rank for rank, sees in enumerate(seen) if not sees)
        """Ranks that cannot."""


def _reads(path: Path, expected: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == expected
    except (OSError, ValueError):
        return False
