"""A model as a table of layers: one row per parameter tensor, in forward order. Rows whose names
share a module prefix (`conv1.weight`, `conv1.bias`) form one layer, at the place of the first, with
the sum of their FLOPs. Any shipped model can be written as such a table, as a starting point."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from gcsim.traces.models.facts import kind_of_shape, outputs_of_shape
from gcsim.traces.models.registry import ModelEntry, TableLayer
from gcsim.traces.profile import Layer, ModelFacts

COLUMNS = ("name", "shape", "forward_flops")


def table_entry(name: str, layers: Iterable[TableLayer]) -> ModelEntry:
    """Return the model of a table: it cannot be built, and its input is unknown."""
    rows = tuple(layers)
    return ModelEntry(
        name=name,
        title=f"{name}, a table of layers",
        build=None,
        input_shape=(),
        classes=0,
        parameters=sum(math.prod(row.shape) for row in rows),
        paper="",
        table=rows,
    )


def table_parameters(entry: ModelEntry) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return names and shapes of a table's tensors, in forward order."""
    return tuple((row.name, row.shape) for row in entry.layers)


def table_facts(entry: ModelEntry, batch: int) -> ModelFacts:
    """Return the facts of a table; `batch`, the samples per worker, is only recorded."""
    members: dict[str, list[int]] = {}
    for number, row in enumerate(entry.layers):
        prefix = row.name.rpartition(".")[0] or row.name
        members.setdefault(prefix, []).append(number)
    network = entry.transformer
    known = {} if network is None else {name: out for name, _, _, out in network.tensors() if out}
    layers: list[Layer] = []
    for prefix, numbers in members.items():
        shape = max((entry.layers[n].shape for n in numbers), key=len)
        flops = sum(entry.layers[n].forward_flops for n in numbers)
        # a norm has as many outputs as the layer before it, which its shape does not tell
        before = layers[-1].outputs if layers and len(shape) < 2 else 0
        layers.append(
            Layer(
                name=prefix,
                parameters=tuple(numbers),
                forward_flops=flops,
                kind=kind_of_shape(shape),
                outputs=known.get(f"{prefix}.weight") or outputs_of_shape(shape, flops) or before,
            )
        )
    return ModelFacts(
        name=entry.name,
        parameters=sum(math.prod(row.shape) for row in entry.layers),
        layers=tuple(layers),
        samples_per_worker=batch,
        tokens=entry.input_shape[0] if entry.input == "tokens" and entry.input_shape else 0,
    )


def facts_and_parameters(
    entry: ModelEntry, batch: int
) -> tuple[ModelFacts, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Return facts, and names and shapes of the trained tensors, of a table or a model. A model is
    built on the meta device, without memory or arithmetic (recurrent layers also on the CPU, for
    the order of gradients). Raises `InputError` if that is impossible."""
    if entry.layers:
        return table_facts(entry, batch), table_parameters(entry)
    from gcsim.traces.models.building import build_model, trainable
    from gcsim.traces.models.facts import model_facts
    from gcsim.traces.models.ready_order import ready_order

    module = build_model(entry, seed=0, device="meta")
    shapes = tuple((name, tuple(p.shape)) for name, p in trainable(module))
    facts = model_facts(entry, module, batch)
    return replace(facts, ready_order=ready_order(entry, module)), shapes


def layer_table(entry: ModelEntry) -> tuple[TableLayer, ...]:
    """Return the table of a model, one row per trained tensor; a layer's FLOPs are at its first."""
    if entry.layers:
        return entry.layers
    facts, shapes = facts_and_parameters(entry, 1)
    # in the order of the model's parameters, on which DDP's buckets depend
    rows = [TableLayer(name=name, shape=shape, forward_flops=0) for name, shape in shapes]
    for layer in facts.layers:
        first = layer.parameters[0]
        rows[first] = replace(rows[first], forward_flops=layer.forward_flops)
    return tuple(rows)


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text like 64x3x11x11."""
    return "x".join(map(str, shape)) or "1"


def table_text(entry: ModelEntry) -> str:
    """Return the table as CSV, which a scenario reads with `model: {layers: FILE}`."""
    rows = layer_table(entry)
    lines = [
        f"# {entry.title}",
        "# A row a parameter tensor, in forward order. forward_flops: per sample, 2 per",
        "# multiply-add; those of a layer with several tensors may stand at any of them.",
        ",".join(COLUMNS),
        *(f"{row.name},{shape_text(row.shape)},{row.forward_flops}" for row in rows),
    ]
    return "\n".join(lines) + "\n"
