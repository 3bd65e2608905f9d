"""Make `traces/synthetic/default_fit.json`: record shipped models here, fit them, write one file.

    python tests/benchmarks/default_fit.py

Takes about five minutes on one core and 4 GB of disk for a while. Four recordings cover the kinds
of layers: convolutions with and without normalisation, linear layers small and large, biases,
embeddings, layer normalisation.
"""

import sys
import tempfile
from pathlib import Path

import torch

from gcsim.traces.models.registry import shipped_model
from gcsim.traces.recording.model_traces import record_live
from gcsim.traces.storage.store import Trace
from gcsim.traces.synthetic.fit_file import DEFAULT, write_fits
from gcsim.traces.synthetic.fitting import fit_trace

RECORDINGS = {
    "lenet": {"batch_size": 32, "workers": 4, "warmup_steps": 60, "iterations": 8, "rate": 0.01},
    "resnet20_cifar10": {
        "batch_size": 64, "workers": 4, "warmup_steps": 60, "iterations": 8, "rate": 0.02,
    },
    "alexnet": {"batch_size": 32, "workers": 3, "warmup_steps": 20, "iterations": 4, "rate": 0.002},
    "transformer_small": {
        "batch_size": 32, "workers": 4, "warmup_steps": 60, "iterations": 8, "rate": 0.1,
    },
}  # fmt: skip
"""By model: how it is recorded."""


def recorded(model: str, folder: Path, seed: int = 0) -> Trace:
    """A recording of the model as the default fit has it, but for the seed."""
    how = RECORDINGS[model]
    record_live(
        model=shipped_model(model),
        batch_size=int(how["batch_size"]),
        workers=int(how["workers"]),
        warmup_steps=int(how["warmup_steps"]),
        iterations=int(how["iterations"]),
        learning_rate=float(how["rate"]),
        momentum=0.9,
        device="cpu",
        seed=seed,
        folder=folder,
    )
    return Trace.open(folder, verify=False)


def main() -> None:
    torch.set_num_threads(1)
    fits = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in RECORDINGS:
            print(model, file=sys.stderr)
            fits.append(fit_trace(recorded(model, Path(temporary) / model)))
    write_fits(DEFAULT, tuple(fits))


if __name__ == "__main__":
    main()
