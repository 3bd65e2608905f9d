"""Recording of gradients, and training with a compressor, in Lightning's `Trainer`.

record = RecordGradients("my_trace")                  # then: gcsim run
compress = CompressGradients("topk", ratio=0.01)      # strategy="ddp", several processes
Trainer(callbacks=[record]).fit(module, loader)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcsim.integrations import Deployer, Recorder, framework

_Callback: Any = framework("lightning.pytorch", "pytorch_lightning", extra="lightning").Callback


class RecordGradients(Recorder, _Callback):  # type: ignore[misc]  # Any to a type checker
    """Record the gradients of a training in the new folder `folder`, like `gcsim.record`.

    `network` names the part of the `LightningModule` that `training_step` calls, as in
    `self.network(inputs)`; "" is the module itself, as in `self(inputs)`. An iteration is an
    optimizer step with all its micro-batches. `options` are those of `gcsim.record`. With
    `then_stop` the training ends when the trace is complete. A training that raises leaves nothing;
    one after a complete trace is not recorded. Raises `InputError` as `gcsim.record`.
    """

    def __init__(
        self, folder: str | Path, *, network: str = "", then_stop: bool = False, **options: Any
    ) -> None:
        super().__init__(folder, options)
        self._network, self._then_stop = network, then_stop
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the hooks to the network."""
        self._steps = trainer.global_step
        self.begin(pl_module.get_submodule(self._network), _scaler_of(trainer))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count an optimizer step, unless micro-batches are still being accumulated."""
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.step(loss) and self._then_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the trace; a training that ends early gives a shorter one."""
        self.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Discard the unfinished trace."""
        self.end(exception)


class CompressGradients(Deployer, _Callback):  # type: ignore[misc]
    """Exchange the gradients of a training with a compressor, like `gcsim.ddp_hook`.

    Takes the arguments of `gcsim.ddp_hook` and raises `InputError` as it does, also if the strategy
    is not DDP or a single process exchanges nothing. The hook uses the trainer's `GradScaler`. Each
    `fit` wraps the module anew and starts without memory.
    """

    def __init__(self, compressor: Any, **options: Any) -> None:
        super().__init__(compressor, options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Register on every rank, before the first step."""
        self.register(trainer.strategy.model, _scaler_of(trainer))


def _scaler_of(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
