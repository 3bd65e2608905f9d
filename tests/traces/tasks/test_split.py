"""What a task holds out is never learned, and both parts fit the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from gcsim.traces.models.registry import MODELS
from gcsim.traces.tasks.registry import TASKS, make_split
from gcsim.traces.tasks.split import DatasetSamples, Samples, Split, TensorSamples


def split(name: str, seed: int = 4) -> Split:
    small = "lenet" if TASKS[name].input == "samples" else "transformer_small"
    return make_split(replace(MODELS[small], task=name), seed)


def rows(samples: Samples, numbers: range) -> set[bytes]:
    inputs, _ = samples.taken(np.array(numbers))
    return {row.numpy().tobytes() for row in inputs}


@pytest.mark.parametrize("name", TASKS)
def test_both_parts_have_the_models_shape_and_labels_below_its_classes(name: str) -> None:
    small = MODELS["lenet" if TASKS[name].input == "samples" else "transformer_small"]
    for part in (split(name).train, split(name).test):
        inputs, labels = part.taken(np.array([0, len(part) - 1, 0]))
        assert inputs.shape == (3, *small.input_shape)
        assert torch.equal(inputs[0], inputs[2])
        assert labels.dtype == torch.int64
        assert int(labels.max()) < small.classes
        if part.labels is not None:
            assert int(labels[1]) == part.labels[-1]


@pytest.mark.parametrize("name", TASKS)
def test_nothing_that_is_held_out_is_learned(name: str) -> None:
    """No image is in both; of a text, no token (the last of a sample included)."""
    found = split(name)
    if TASKS[name].input == "samples":
        learned = rows(found.train, range(len(found.train)))
        held_out = rows(found.test, range(len(found.test)))
        assert not learned & held_out
        assert len(held_out) > 300
    else:
        _, last = found.train.taken(np.array([len(found.train) - 1]))
        first, _ = found.test.taken(np.array([0]))
        tokens = found.train._tokens  # type: ignore[attr-defined]
        places = found.test._places  # type: ignore[attr-defined]
        end = len(found.train) - 1 + last.shape[1]  # of the last label that is learned
        assert int(last[0, -1]) == tokens[end]
        assert end < places[0]
        assert int(first[0, 0]) == tokens[places[0]]
        assert len(found.test) == 512


@pytest.mark.parametrize("name", ["digits", "textures"])
def test_a_split_is_a_function_of_the_seed(name: str) -> None:
    numbers = range(50)
    assert rows(split(name).test, numbers) == rows(split(name).test, numbers)
    assert rows(split(name).test, numbers) != rows(split(name, 5).test, numbers)


def test_a_dataset_of_torch_is_read_as_tensors_are() -> None:
    inputs, labels = torch.randn(9, 2), torch.arange(9) % 3
    ours, theirs = TensorSamples(inputs, labels), DatasetSamples(TensorDataset(inputs, labels))
    chosen = np.array([3, 1, 8])
    assert len(ours) == len(theirs) == 9
    for one, other in zip(ours.taken(chosen), theirs.taken(chosen), strict=True):
        assert torch.equal(one, other)
    assert theirs.labels is None
