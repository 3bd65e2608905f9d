"""Recording gradients, and training with a compressor, in other people's training loops.

A file a framework, imported by nothing else: gcsim needs none of them.
"""

from __future__ import annotations

import weakref
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gcsim.compressors.ddp.hook import ddp_hook
from gcsim.traces.recording.loop import Recording
from gcsim.traces.recording.recording import record


def framework(*packages: str, extra: str) -> Any:
    """The first of these packages that is installed, imported.

    Raises `ModuleNotFoundError` that says what to install; `extra` is gcsim's.
    """
    for package in packages:
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            if error.name is None or not package.startswith(error.name):
                raise  # it is there, and lacks something itself
    raise ModuleNotFoundError(
        f"gcsim.integrations.{extra} needs {packages[0].partition('.')[0]}, which is not installed:"
        f" pip install 'gcsim[{extra}]'",
        name=packages[0],
    )


class Recorder:
    """A callback that records one training in a folder, as `gcsim.record` with `options`.

    A training that raises leaves nothing behind, and the next one is recorded in its place; once
    the trace is complete, further trainings are not recorded.
    """

    def __init__(self, folder: str | Path, options: dict[str, Any]) -> None:
        self.recording: Recording | None = None
        """From the first step on."""
        self._folder, self._options = folder, options
        self._open = False

    def begin(self, model: Any, scaler: Any) -> None:
        """Attach the hooks to `model`. Raises `InputError` as `gcsim.record` does."""
        self.end(RuntimeError("training has started again"))
        if self.recording is None:
            recording = record(model, self._folder, **{"scaler": scaler, **self._options})
            self.recording = recording.__enter__()
            self._open = True

    def step(self, loss: Any = None) -> bool:
        """End an iteration; True when enough of this training is recorded."""
        return self._open and self.recording is not None and self.recording.step(loss)

    def end(self, error: BaseException | None = None) -> None:
        """Detach the hooks. A training that was shorter gives a shorter trace, and one that has
        raised `error` none."""
        if not self._open or self.recording is None:
            return
        self._open, recording = False, self.recording
        try:
            trace = None if error is None else error.__traceback__
            recording.__exit__(None if error is None else type(error), error, trace)
        finally:
            if not recording.done:
                self.recording = None


class Deployer:
    """A callback that exchanges gradients by a compressor, as `gcsim.ddp_hook` with `options`."""

    def __init__(self, compressor: Any, options: dict[str, Any]) -> None:
        self._make = partial(ddp_hook, compressor, **options)
        self._model: weakref.ref[Any] | None = None
        self.hook = self._make()

    def register(self, model: Any, scaler: Any) -> None:
        """Register the hook on `model`, unless it serves it already; another model than before gets
        a hook of its own. To be called on every rank."""
        if self._model is not None:
            if self._model() is model:
                return
            self._model, self.hook = None, self._make()
        if self.hook.scaler is None:
            self.hook.scaler = scaler
        self.hook.register(model)
        self._model = weakref.ref(model)
