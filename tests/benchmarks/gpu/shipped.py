"""Files for the repository, from those of `make gpu`, to be copied by hand. FOLDER/suite/*.csv are
for analysis/validation/suites/gpu_hook; FOLDER/device.yaml is the calibrated device's entry for
scenarios/catalog/devices_*.yaml.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gcsim.errors import InputError
from gcsim.scenarios import catalog
from gcsim.scenarios.catalog.devices import device_yaml
from gcsim.scenarios.catalog.this_machine import this_device
from tests.benchmarks.gpu.crew import read

CALIBRATED = "calibrated"
"""Name of the calibrated device and of its file."""
COLUMNS = {
    "stages": (
        "method", "phase", "data", "elements", "tensors", "stage", "total_us", "device_us",
        "launches", "triton_launches", "waits",
    ),
    "deployed": (
        "model", "batch", "hook", "parameters", "iteration_ms", "lowest_ms", "launches",
        "triton_launches", "waits",
    ),
}  # fmt: skip
"""Columns of the suite's tables."""
_COUNTS = {"launches", "triton_launches", "waits"}


def write(folder: Path) -> Iterator[Path]:
    """Write the files that the existing parts allow, and return them."""
    for part, columns in COLUMNS.items():
        if (folder / f"{part}.csv").is_file():
            conditions, rows = read(folder / f"{part}.csv")
            target = folder / "suite" / f"{part}.csv"
            target.parent.mkdir(exist_ok=True)
            with target.open("w", newline="", encoding="utf-8") as file:
                file.write(f"# Measured by `make gpu`: {conditions}\n")
                table = csv.DictWriter(file, columns, lineterminator="\n")
                table.writeheader()
                for row in rows:
                    if row["launches"] and not row["error"]:
                        counts = {key: f"{float(row[key]):.0f}" for key in _COUNTS}
                        table.writerow({key: counts.get(key, row[key]) for key in columns})
            yield target
    if (folder / f"{CALIBRATED}.yaml").is_file():
        (folder / "device.yaml").write_text(_entry(folder / f"{CALIBRATED}.yaml"), encoding="utf-8")
        yield folder / "device.yaml"


def _entry(path: Path) -> str:
    """Return the catalogue's entry, updated by the measurements; only these for a new device."""
    (measured,) = catalog.read_devices(path).values()
    try:
        shipped = catalog.device(this_device())
    except InputError:
        return device_yaml(measured, "Measured by `make gpu`; the catalogue has no such device.")
    found = replace(
        measured,
        name=shipped.name,
        title=shipped.title,
        bus=shipped.bus,
        kernels={**shipped.kernels, **measured.kernels},
        training={**shipped.training, **measured.training},
    )
    text = device_yaml(found, "Measured by `make gpu`.")
    board = catalog._shipped_entries()[shipped.name].get("board")
    head = f"  {shipped.name}:\n"
    return text.replace(head, f"{head}    board: {board}\n", 1) if board else text
