"""Compressors on synthetic and on recorded gradients: writes `docs/synthetic-gradients.md`.

    python tests/benchmarks/synthetic_table.py > docs/synthetic-gradients.md

Each compressor runs on a recording, on a second recording with another seed (the difference due to
chance), on gradients drawn from a fit of the first recording, and on gradients drawn from the
default fit without this model, by kind and size of its tensors. Takes about twenty minutes on one
core.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from gcsim.analysis.report.numbers import significant
from gcsim.compressors.registry import check_parameters, compressor_class
from gcsim.files import markdown_table
from gcsim.traces.buckets import bucket_layouts
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1.measure import Gradients, Subject, measure
from gcsim.traces.synthetic.fit_file import ModelFit, default_fits
from gcsim.traces.synthetic.fitting import fit_trace
from gcsim.traces.synthetic.gradients import SyntheticTrace
from tests.benchmarks.default_fit import RECORDINGS, recorded

METHODS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("random-k 1 %", "randomk", {}),
    ("top-k 1 %", "topk", {"ratio": 0.01}),
    ("top-k 1 %, no memory", "topk", {"ratio": 0.01, "error_feedback": False}),
    ("DGC 1 %", "dgc", {"ratio": 0.01}),
    ("SIDCo 1 %", "sidco", {"ratio": 0.01}),
    ("threshold 0.001", "threshold", {"threshold": 0.001}),
    ("AdaComp", "adacomp", {}),
    ("Gradient Dropping", "gradient_dropping", {}),
    ("DeepReduce", "deepreduce", {}),
    ("QSGD 4 bit", "qsgd", {}),
    ("QSGD, Elias coded", "qsgd", {"steps": 1, "norm": "l2", "coding": "elias_sparse"}),
    ("TernGrad", "terngrad", {}),
    ("natural", "natural", {}),
    ("scaled sign", "scaled_sign", {}),
    ("signSGD, majority", "signsgd", {}),
    ("1-bit SGD", "onebit_sgd", {}),
    ("PowerSGD rank 1", "powersgd", {"rank": 1}),
    ("PowerSGD rank 4", "powersgd", {"rank": 4}),
    ("INCEPTIONN", "inceptionn", {}),
    ("THC", "thc", {}),
)
MODELS = ("lenet", "resnet20_cifar10", "transformer_small")
# ruff: noqa: E501 - a paragraph of the page is a line
HEAD = """\
# Synthetic and recorded gradients

Written by `python tests/benchmarks/synthetic_table.py > docs/synthetic-gradients.md`. [scenarios.md](scenarios.md#a-table-of-layers-and-synthetic-gradients) lists the properties that a fit keeps and loses.

Each compressor runs on four sets of gradients of one model: recorded; recorded again with another seed (the difference due to chance); drawn from a fit of the first recording (`gcsim fit`); and drawn from the default fit without this model (by kind and size of its tensors, as for a table of an unknown model). NMSE is relative to the mean of the workers' gradients, averaged over the steps, starting from empty memory; for scale-free methods it is replaced by the cosine similarity, marked c. Bytes are a worker's input to its collectives per step.
"""


def subjects() -> list[Subject]:
    """Return the methods, in order."""
    return [
        Subject(kind=kind, compressor=compressor_class(kind), parameters=check_parameters(kind, p))
        for _, kind, p in METHODS
    ]


def sources(model: str, folder: Path) -> dict[str, Gradients]:
    """Return the gradients to compare, by column heading."""
    first = recorded(model, folder / model)
    again = recorded(model, folder / f"{model} again", seed=1)
    how = RECORDINGS[model]

    def drawn(fits: Sequence[ModelFit], title: str) -> SyntheticTrace:
        return SyntheticTrace(
            first.facts,
            first.parameters,
            fits,
            workers=int(how["workers"]),
            iterations=int(how["iterations"]),
            seed=0,
            title=title,
        )

    others = [fit for fit in default_fits() if fit.model != model]
    return {
        "recorded": first,
        "again": again,
        "fitted": drawn([fit_trace(first)], "own fit"),
        "by kind": drawn(others, "default fit"),
    }


def _error(profile: TrafficProfile) -> str:
    properties = compressor_class(profile.compressor).properties(
        check_parameters(profile.compressor, profile.parameters)
    )
    if properties.scale_free:
        return f"{profile.quality.cosine_similarity:.3f} c"
    return significant(profile.quality.nmse)


def main() -> None:
    torch.set_num_threads(1)
    print(HEAD)
    for model in MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            print(model, file=sys.stderr)
            gradients = sources(model, Path(temporary))
            how = RECORDINGS[model]
            found = {}
            for heading, source in gradients.items():
                found[heading] = measure(
                    subjects(),
                    source,
                    bucket_layouts(source.parameters),  # type: ignore[attr-defined]
                    workers=int(how["workers"]),
                    seed=0,
                    provenance={},
                )
        print(
            f"## {model}\n\n{how['workers']} workers, {how['batch_size']} samples each, "
            f"{how['iterations']} iterations after {how['warmup_steps']} steps of training.\n"
        )
        headings = [f"NMSE {name}" for name in found] + [f"kB {name}" for name in found]
        rows = []
        for number, (label, _, _) in enumerate(METHODS):
            profiles = [column[number] for column in found.values()]
            cells = [_error(profile) for profile in profiles]
            cells += [significant(profile.wire_bytes_per_worker / 1e3) for profile in profiles]
            rows.append([label, *cells])
        print(*markdown_table(["method", *headings], rows), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
