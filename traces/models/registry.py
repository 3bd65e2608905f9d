"""The models: shipped ones by name, a user's own as `package.module:build`.

`models.csv` has the shipped ones, `transformers.csv` those of 0.1 to 70 B parameters that are known
by formula only (`transformer.py`), `papers.csv` their citations: plain data, which `gcsim list
models` reads without torch. `models/building.py` builds an entry's model; `build` names
a function of `traces/networks/`.

A sample's length determines a language model's FLOPs, so it is the length at which the model is
usually trained and its rates are quoted: 35 steps for Zaremba's LSTMs, 128 tokens for BERT, GPT-2's
whole context of 1024. A training step of GPT-2 takes some 10 s a sample on one CPU core;
`gpt2_128`, the same network on 128 tokens, some 1.3 s, for live gradients without a GPU (positions
from 128 on then have a gradient of zero).

The weight of auxiliary classifiers' losses is 0.3 in GoogLeNet (arXiv:1409.4842, section 5), and
0.4 in Inception V3, from the authors' code (tensorflow/models, inception/inception_model.py), as in
tf_cnn_benchmarks (models/model.py); its paper states none.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.fields import Count, Limits, Text
from gcsim.traces.models.transformer import Transformer, read_transformers

InputKind = Literal["samples", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayer:
    """A row of a table of layers: one parameter tensor and its FLOPs."""

    name: Text
    shape: Annotated[tuple[Count, ...], Limits(least=1)]
    forward_flops: Annotated[int, Limits(least=0)] = 0
    """Per sample, 2 per multiply-add."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be built, with its inputs and outputs; or a table of its layers."""

    name: str
    title: str
    build: str | None
    """`package.module:callable` that returns an `nn.Module` without arguments. None for a table of
    layers, whose gradients are synthetic."""
    input_shape: tuple[int, ...]
    """Shape of one sample, without the batch; for tokens: `(length,)`."""
    classes: int
    """Number of classes: the output is `[batch, classes]`; for tokens the size of the vocabulary,
    with outputs `[batch, length, classes]` or `[batch, classes]`."""
    parameters: int | None
    """Number of trained scalar parameters; None for a user's model that is not built yet."""
    paper: str
    input: InputKind = "samples"
    """samples: float32 `[batch, *input_shape]`; tokens: int64 `[batch, length]` below `classes`."""
    task: str = "textures"
    """Default task; a name of `tasks.TASKS`."""
    auxiliary_weight: float = 0.0
    """Weight of auxiliary classifiers if the output in training mode is a tuple: the loss is the
    first output's plus this times that of each other."""
    loss: str = ""
    """`package.module:function` of output and labels that returns a batch's mean loss or each
    sample's, `[batch]`; "": cross-entropy."""
    saved: int = 0
    """Bytes of activations per sample that the backward pass needs, in float32 (`saved.py`); 0:
    unknown, or by formula."""
    table: tuple[TableLayer, ...] = ()
    """Rows of a user's table."""
    transformer: Transformer | None = None
    """Numbers from which the rows of the table follow by formula."""

    @property
    def layers(self) -> tuple[TableLayer, ...]:
        """Rows of the table in forward order; empty if the model is built."""
        return self.table if self.transformer is None else _by_formula(self.transformer)


@cache
def _by_formula(network: Transformer) -> tuple[TableLayer, ...]:
    tensors = network.tensors()
    return tuple(TableLayer(name=n, shape=shape, forward_flops=f) for n, shape, f, _ in tensors)


def _rows(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _shipped() -> dict[str, ModelEntry]:
    papers = {row["paper"]: row["citation"] for row in _rows("papers.csv")}
    return {
        row["name"]: ModelEntry(
            name=row["name"],
            title=row["title"],
            build=f"gcsim.traces.networks.{row['build']}",
            input_shape=tuple(map(int, row["input_shape"].split("x"))),
            classes=int(row["classes"]),
            parameters=int(row["parameters"]),
            paper=papers[row["paper"]],
            input="tokens" if row["input"] == "tokens" else "samples",
            task=row["task"],
            auxiliary_weight=float(row["auxiliary_weight"] or 0),
            saved=int(row["saved"]),
        )
        for row in _rows("models.csv")
    } | {
        row["name"]: ModelEntry(
            name=row["name"],
            title=f"{row['title']}, by formula",
            build=None,
            input_shape=(network.sequence,),
            classes=network.vocabulary,
            parameters=int(row["parameters"]),
            paper=papers[row["paper"]],
            input="tokens",
            task="words",
            transformer=network,
        )
        for row, network in read_transformers()
    }


def at_sequence(entry: ModelEntry, tokens: int) -> ModelEntry:
    """Return a model by formula with samples of `tokens` tokens."""
    assert entry.transformer is not None
    network = replace(entry.transformer, sequence=tokens)
    return replace(entry, input_shape=(tokens,), transformer=network)


MODELS = _shipped()


def is_shipped(entry: ModelEntry) -> bool:
    """Whether the model is shipped, with any sequence length."""
    known = MODELS.get(entry.name)
    if known is None or known.transformer is None or entry.transformer is None:
        return known is not None and (known.build, known.layers) == (entry.build, entry.layers)
    return replace(known.transformer, sequence=entry.transformer.sequence) == entry.transformer


_TASKS: dict[InputKind, str] = {"samples": "textures", "tokens": "characters"}


def shipped_model(name: str) -> ModelEntry:
    """Return a shipped model's entry. Raises `InputError` with a suggestion if unknown."""
    entry = MODELS.get(name)
    if entry is None:
        hint = f"{did_you_mean(name, MODELS)} Or package.module:build for your own"
        raise InputError(f"unknown model {name!r}", place="model", hint=hint)
    return entry


def own_model(
    build: str,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    input_kind: InputKind = "samples",
    auxiliary_weight: float = 0.0,
) -> ModelEntry:
    """Return an entry for a user's `package.module:build`, without importing it. Raises
    `InputError` for an invalid sample shape or number of classes."""
    problems = []
    if not input_shape or min(input_shape) < 1 or (input_kind == "tokens" and len(input_shape) > 1):
        what = "of one sample" if input_kind == "samples" else "[length] of one sequence"
        problems.append(
            Problem(
                message=f"model {build!r} needs the shape {what}, got {list(input_shape)}",
                place="input_shape",
                hint="positive sizes without the batch, e.g. "
                + ("[3, 224, 224]" if input_kind == "samples" else "[128]"),
            )
        )
    if classes < 2:
        problems.append(
            Problem(
                message=f"model {build!r} needs its number of classes (2 or more), got {classes}",
                place="classes",
                hint="the size of the model's output, e.g. 1000",
            )
        )
    if problems:
        raise InputError(problems)
    return ModelEntry(
        name=build,
        title=build,
        build=build,
        input_shape=input_shape,
        classes=classes,
        parameters=None,
        paper="",
        input=input_kind,
        task=_TASKS[input_kind],
        auxiliary_weight=auxiliary_weight,
    )


def trained_on(entry: ModelEntry, task: str | None) -> ModelEntry:
    """Return the entry with another task, if one is given."""
    return entry if task is None else replace(entry, task=task)
