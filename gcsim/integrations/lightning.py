"""How does Lightning's `Trainer` record gradients, or train with a compressor?

record = RecordGradients("my_trace")                  # then: gcsim run
compress = CompressGradients("topk", ratio=0.01)      # strategy="ddp", several processes
Trainer(callbacks=[record]).fit(module, loader)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcsim.compressors.ddp.hook import ddp_hook
from gcsim.integrations import framework
from gcsim.traces.recording.recording import record

_Callback: Any = framework("lightning.pytorch", "pytorch_lightning", extra="lightning").Callback


class RecordGradients(_Callback):  # type: ignore[misc]  # Any to a type checker
    """Record the gradients of a training in `folder`, a new folder, as `gcsim.record`.

    `network` names the part of the `LightningModule` that `training_step` calls, as in
    `self.network(inputs)`; "" is the module itself, as in `self(inputs)`. An iteration is a step
    of the optimiser, with all of its micro-batches. `options` are those of `gcsim.record`. With
    `then_stop` the training ends when the trace is complete. Raises `InputError` as `gcsim.record`.
    """

    def __init__(
        self, folder: str | Path, *, network: str = "", then_stop: bool = False, **options: Any
    ) -> None:
        self.recording: Any = None
        """The `Recording`, from the first step on."""
        self._folder, self._network = folder, network
        self._then_stop, self._options = then_stop, options
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the hooks to the network."""
        options = {"scaler": getattr(trainer.precision_plugin, "scaler", None), **self._options}
        self._steps = trainer.global_step
        self.recording = record(pl_module.get_submodule(self._network), self._folder, **options)
        self.recording.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The optimiser may have stepped, or micro-batches are added up still."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.recording.step(loss) and self._then_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A training that was shorter gives a shorter trace."""
        self.recording.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Nothing half-written stays."""
        if self.recording is not None:
            self.recording.__exit__(type(exception), exception, exception.__traceback__)


class CompressGradients(_Callback):  # type: ignore[misc]
    """Exchange the gradients of a training by a compressor, as `gcsim.ddp_hook`.

    Takes the arguments of `gcsim.ddp_hook` and raises `InputError` as it does, also where the
    strategy is not DDP, or there is one process and nothing is exchanged.
    """

    def __init__(self, compressor: Any, **options: Any) -> None:
        self.hook = ddp_hook(compressor, **options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register on every rank, before the first step."""
        self.hook.register(trainer.strategy.model)
