"""Recording of gradients, and training with a compressor, in Hugging Face's `Trainer`.

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.add_callback(RecordGradients(trainer, "my_trace"))           # then: gcsim run
    trainer.add_callback(CompressGradients(trainer, "topk", ratio=0.01)) # with several processes
    trainer.train()

Your own loop around `Accelerator` needs neither: `gcsim.record` and `gcsim.ddp_hook` accept the
result of `accelerator.prepare` (docs/integrations.md).
"""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

from gcsim.integrations import Deployer, Recorder, framework

_Callback: Any = framework("transformers", extra="huggingface").TrainerCallback


class RecordGradients(Recorder, _Callback):  # type: ignore[misc]  # Any to a type checker
    """Record the gradients of `trainer`'s training in the new folder `folder`, like `gcsim.record`.

    An iteration is an optimizer step with all micro-batches of `gradient_accumulation_steps`.
    Gradients are recorded before clipping, and without losses, as callbacks do not receive them.
    `options` are those of `gcsim.record`. With `then_stop` the training ends when the trace is
    complete. A training that raises leaves nothing; one after a complete trace is not recorded.
    Raises `InputError` as `gcsim.record` does.
    """

    def __init__(
        self, trainer: Any, folder: str | Path, *, then_stop: bool = False, **options: Any
    ) -> None:
        super().__init__(folder, options)
        self._trainer, self._then_stop = trainer, then_stop
        train = trainer.train

        @wraps(train)
        def recorded(*given: Any, **named: Any) -> Any:
            try:
                return train(*given, **named)
            except BaseException as error:  # callbacks do not receive exceptions
                self.end(error)
                raise

        trainer.train = recorded

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Attach the hooks to the model as the training loop calls it."""
        self.begin(self._trainer.model_wrapped, _scaler_of(self._trainer))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the optimizer step."""
        if self.step() and self._then_stop:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the trace; a training that ends early gives a shorter one."""
        self.end()


class CompressGradients(Deployer, _Callback):  # type: ignore[misc]
    """Exchange the gradients of `trainer`'s training with a compressor, like `gcsim.ddp_hook`.

    Takes the arguments of `gcsim.ddp_hook` and raises `InputError` as it does, also for a single
    process, which exchanges nothing. The hook uses the trainer's `GradScaler`. Another training of
    the same model continues with its memory.
    """

    def __init__(self, trainer: Any, compressor: Any, **options: Any) -> None:
        super().__init__(compressor, options)
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Register on every rank, before the first step."""
        self.register(self._trainer.model_wrapped, _scaler_of(self._trainer))


def _scaler_of(trainer: Any) -> Any:
    return getattr(trainer.accelerator, "scaler", None)
