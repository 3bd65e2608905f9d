"""Write docs/devices.md from the catalogue's tables or, with --fit, the layer model's coefficients.

python tests/benchmarks/device_table.py > docs/devices.md
python tests/benchmarks/device_table.py --fit      # writes scenarios/catalog/layer_times.yaml
"""

import math
import statistics
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gcsim.files import markdown_table, write_text
from gcsim.scenarios.catalog.rates import FOLDER, boards, measurements, sources
from gcsim.simulator.devices.ranges import Range
from gcsim.simulator.devices.training_rates import PRECISIONS, curve
from tests.benchmarks.layer_model_errors import (
    Error,
    Summary,
    backward_ratios,
    between,
    beyond,
    elsewhere,
    evenly,
    flops,
    known,
    single,
    strange,
    summary,
    unknown,
)
from tests.benchmarks.layer_model_fit import (
    FAMILIES,
    fit,
    fit_large,
    large_observations,
    large_ratios,
    observations,
    written,
)

COMMAND = "python tests/benchmarks/device_table.py > docs/devices.md"
PARTS = {"known": known, "single": single, "unknown": unknown, "flops": flops}


def main() -> None:
    """Write the page to stdout, or the coefficients to their file."""
    if sys.argv[1:] == ["--fit"]:
        write_text(FOLDER / "layer_times.yaml", fitted())
        return
    if sys.argv[1:]:
        sys.exit(f"usage: {__doc__}")
    sys.stdout.write("\n".join(page()) + "\n")


def fitted() -> str:
    """Return `layer_times.yaml`, fitted to the tables."""
    fits = {family: fit(observations(*family), *family) for family in FAMILIES}
    errors: dict[str, object] = {
        f"{processor} {precision} {kind}": _outward(
            summary(PARTS[kind](processor, precision)).range
        )
        for processor, precision in FAMILIES
        for kind in PARTS
    }
    errors["strange"] = _outward(evenly(strange()))
    errors["between"] = _outward(summary(between()).range)
    errors["beyond"] = _outward(summary(beyond()).range)
    errors["elsewhere"] = _outward(summary(elsewhere()).range)
    for kind, left_out in (("known", "model"), ("unknown", "board")):
        ratios = large_ratios(attrgetter(left_out))
        errors[f"large {kind}"] = _outward((min(ratios), max(ratios)))
    return written(fits, errors)


def _outward(range_: Range) -> list[float]:
    """Round a range outwards to two digits."""
    return [math.floor(range_[0] * 100) / 100, math.ceil(range_[1] * 100) / 100]


def page() -> Iterator[str]:
    """Yield the lines of docs/devices.md."""
    yield "# Devices: data, and errors of predicted training times"
    yield ""
    yield f"Written by `{COMMAND}` (`make devices`) from the tables in `scenarios/catalog`."
    yield ""
    yield from _validation()
    yield from _devices()
    yield from _curves()
    yield from _boards()
    yield from _citations()


def _validation() -> Iterator[str]:
    yield "## Time of forward and backward"
    yield ""
    yield (
        "The first of these that is available gives the time:\n\n"
        "1. The model's times in the device's entry (`fixed`, `per_sample`).\n"
        "2. The median of the rates measured at this batch and precision, with their spread as "
        "the range.\n"
        "3. Between two measured batches, linear interpolation; beyond them, the nearest one, "
        "scaled by the layer model.\n"
        "4. The layer model: one coefficient each, shared by all devices, for 3 x 3 convolutions "
        "of stride 1, other products, outputs and tensors, times a factor of the device "
        "(`simulator/devices/training_rates.py`).\n"
        "5. Three times the forward FLOPs at the device's effective rate."
    )
    yield ""
    yield (
        "The coefficients (`python tests/benchmarks/device_table.py --fit` refits them; a test "
        "compares):"
    )
    yield ""
    yield from markdown_table(
        ("", "launch per tensor [us]", "3 x 3, stride 1", "other products", "outputs"),
        [
            (
                f"{processor} {precision}",
                f"{found.costs.launch * 1e6:.0f}",
                f"{found.costs.conv3x3:.2f}",
                f"{found.costs.other:.2f}",
                f"{found.costs.outputs:.1f}",
            )
            for processor, precision in FAMILIES
            for found in [fit(observations(processor, precision), processor, precision)]
        ],
        numbers=False,
    )
    yield ""
    yield (
        "A product takes the coefficient times its FLOPs over the matmul rate; an output costs "
        "that many copies. In single precision, 3 x 3 convolutions exceed the nominal rate "
        "(Winograd's algorithm); on tensor cores, products take nearly twice as long as the "
        "matmul rate predicts."
    )
    yield ""
    other, outputs = fit_large(large_observations())
    ratios = {key: large_ratios(attrgetter(key)) for key in ("model", "board")}
    yield (
        "Networks with large products only (2,500 or more forward FLOPs per output: language "
        "decoders) have separate coefficients in 16 bits on Ampere and later GPUs, "
        f"{other:.2f} and {outputs:.1f}, and no device factor, because their code is tuned and "
        f"fuses attention. The fit uses {len(ratios['model'])} runs of MPT on one node of A100 or "
        "H100 (`large_rates.csv`). Measured over predicted: "
        + "; ".join(
            f"{min(found):.2f} to {max(found):.2f} with the {key} left out"
            for key, found in ratios.items()
        )
        + ". The first range is used for these boards, the second for others."
    )
    yield ""
    yield "### Errors"
    yield ""
    yield (
        "Each time is predicted without the data that it is part of: without the model on all "
        "devices (*known*: the device's factor comes from its other models, or from one of them), "
        "or without the device (*unknown*: no factor). *FLOPs alone* is the estimate that the "
        "layer model replaces. Errors are (predicted - measured) / measured; 90 % of measured / "
        "predicted lie in the range, which reports use for intervals."
    )
    yield ""
    rows = []
    worst = []
    for processor, precision in FAMILIES:
        for kind, label in (
            ("known", "known device"),
            ("single", "device known by one model"),
            ("unknown", "unknown device"),
            ("flops", "FLOPs alone"),
        ):
            found = summary(PARTS[kind](processor, precision))
            rows.append(_errors(f"{processor} {precision}, {label}", found))
            if kind in ("known", "unknown"):
                worst.append(f"- {processor} {precision}, {label}: {_worst(found)}")
    for label, errors in (
        ("between two batches", between()),
        ("beyond one batch", beyond()),
        ("another source's", elsewhere()),
    ):
        found = summary(errors)
        rows.append(_errors(label, found))
        worst.append(f"- {label}: {_worst(found)}")
    strangers = strange()
    low, high = evenly(strangers)
    count = sum(map(len, strangers.values()))
    rows.append(
        (
            "GPU, neither device nor model measured",
            str(count),
            "",
            "",
            "",
            f"{low:.2f} to {high:.2f}",
        )
    )
    yield from markdown_table(
        ("", "points", "median", "90th percentile", "bias", "measured / predicted"),
        rows,
        numbers=False,
    )
    yield ""
    yield (
        "*Neither device nor model measured*: gpu fp32, leaving out a source with all boards and "
        f"models that it measured, {len(strangers)} sources of equal weight; median of measured / "
        "predicted: "
        + ", ".join(
            f"{name} {statistics.median(one.ratio for one in own):.2f}"
            for name, own in sorted(strangers.items())
        )
        + ". The last sources' rows come from `gcsim validate` (`_GIVEN` in "
        "tests/benchmarks/layer_model_errors.py)."
    )
    yield ""
    yield "Worst:"
    yield ""
    yield from worst
    yield ""
    yield (
        "Causes: frameworks differ on the same board (ResNet-50 on a V100: 310 to 398 images/s at "
        "batch 128 in single precision, 803 to 1473 at batch 256 in half), as do versions of "
        "cuDNN, fused kernels (XLA, NHWC) and workspace for fast algorithms (MXNet's AlexNet slows "
        "down from batch 512 on). The K80 takes 1.4 times as long as its estimated matmul rate "
        "predicts. Nominal rates of CPUs predict so little (*unknown device*) that a CPU without a "
        "factor uses its effective rate. Recurrent networks were measured only on one CPU thread, "
        "with a stated batch: LSTMs on GPUs count as other products, untested. Rates are of "
        "synthetic data and exclude input loading."
    )
    yield ""
    everything, own, ratio = backward_ratios()
    one, each = summary(everything), summary(own)
    yield (
        f"The median of backward over forward is {ratio:.2f} over boards and models with both "
        f"times (gcsim uses 2.033). The backward pass's share of a step, predicted from other "
        f"boards, is off by {one.median:.1%} (90th percentile {one.tenth:.1%}) with one ratio for "
        f"all models and by {each.median:.1%} ({each.tenth:.1%}) with one per model: one suffices."
    )
    yield ""


def _errors(label: str, found: Summary) -> tuple[str, ...]:
    return (
        label,
        str(found.count),
        f"{found.median:.1%}",
        f"{found.tenth:.1%}",
        f"{found.bias:+.1%}",
        f"{found.range[0]:.2f} to {found.range[1]:.2f}",
    )


def _worst(found: Summary) -> str:
    def shown(error: Error) -> str:
        return f"{error.name} {error.relative:+.0%}"

    return "; ".join(map(shown, found.worst))


def _devices() -> Iterator[str]:
    from gcsim.scenarios.catalog import devices

    yield "## Kernel rates"
    yield ""
    yield (
        "GB/s of bytes read plus written (range), and microseconds per launch; `~` marks figures "
        "not measured on that device. Sources: `gcsim list devices NAME`."
    )
    yield ""
    classes = list(next(iter(devices().values())).kernels)
    rows = []
    for device in devices().values():
        cells = [f"`{device.name}`"]
        for kind in classes:
            rate = device.kernels[kind]
            mark = "~" if rate.estimate else ""
            parts = []
            if rate.bandwidth is not None:
                parts.append(f"{mark}{_span(rate.bandwidth, rate.bandwidth_range, 1e9)}")
            if rate.flop_rate is not None:
                parts.append(f"{_span(rate.flop_rate, rate.flop_rate_range, 1e12)} TFLOP/s")
            parts.append(f"{_span(rate.launch, rate.launch_range, 1e-6)} us")
            cells.append(", ".join(parts))
        rows.append(tuple(cells))
    yield from markdown_table(("device", *classes), rows, numbers=False)
    yield ""


def _span(value: float, range_: Range | None, unit: float) -> str:
    shown = f"{value / unit:.4g}"
    if range_ is None:
        return shown
    return f"{shown} ({range_[0] / unit:.3g}-{range_[1] / unit:.3g})"


def _curves() -> Iterator[str]:
    yield "## Measured training rates"
    yield ""
    yield (
        "Median samples per second by batch; `x` precedes the number of measurements. Single rows "
        "with framework and source: `scenarios/catalog/training_rates.csv`."
    )
    yield ""
    groups: dict[tuple[str, str, int, str], list[tuple[int, float]]] = {}
    for row in measurements():
        key = (row.board, row.model, row.tokens, row.precision)
        groups.setdefault(key, []).append((row.batch, row.seconds))
    rows = []
    for (board, model, tokens, precision), found in groups.items():
        steps, left_out = curve([(batch, seconds, "") for batch, seconds in found])
        counts = {batch: sum(1 for b, _ in found if b == batch) for batch, _ in found}
        shown = ", ".join(
            f"{step.batch}: {step.batch / step.seconds:.4g}"
            + (f" x{counts[step.batch]}" if counts[step.batch] > 1 else "")
            for step in steps
        )
        if left_out:
            slow = ", ".join(map(str, sorted(left_out)))
            shown += f" (left out, slower than a larger batch: {slow})"
        length = f", {tokens} tokens" if tokens else ""
        rows.append((f"`{board}`", f"{model}{length}", precision, shown))
    yield from markdown_table(
        ("board", "model", "precision", "batch: samples per second"), rows, numbers=False
    )
    yield ""


def _boards() -> Iterator[str]:
    yield "## Boards in the layer model"
    yield ""
    yield "Rates of a copy and of large matrix products; `~` marks an estimate."
    yield ""
    yield from markdown_table(
        ("board", "copy [GB/s]", *(f"{p} [TFLOP/s]" for p in PRECISIONS), "source"),
        [
            (
                f"{'~' if board.estimate else ''}`{name}`",
                f"{board.bandwidth / 1e9:.4g}",
                *(
                    f"{board.flop_rates[p] / 1e12:.4g}" if p in board.flop_rates else ""
                    for p in PRECISIONS
                ),
                board.source,
            )
            for name, board in boards().items()
        ],
        numbers=False,
    )
    yield ""


def _citations() -> Iterator[str]:
    yield "## Sources of the training rates"
    yield ""
    for name, citation in sources().items():
        yield f"- `{name}`: {citation}"


if __name__ == "__main__":
    main()
