"""What does training minimise? Cross-entropy, sample by sample; imports torch when called."""

from __future__ import annotations

from typing import Any

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.traces.models.entry import ModelEntry


def heads(output: Any) -> tuple[Tensor, ...]:
    """The classifiers' logits, the main one first: a tensor, or a tuple where there are several."""
    return tuple(output) if isinstance(output, tuple) else (output,)


def sample_losses(entry: ModelEntry, output: Any, labels: Tensor) -> Tensor:
    """Each sample's loss, float32 `[batch]`.

    `output` are logits `[batch, classes]` with int64 labels `[batch]`, or `[batch, length,
    classes]` with labels `[batch, length]`, whose losses are averaged over the sequence. A model
    with one output a sequence is asked for the last label, the token behind the sequence. Further
    classifiers of a tuple count `entry.auxiliary_weight` times each (C. Szegedy et al., "Going
    deeper with convolutions", arXiv:1409.4842, section 5: 0.3).
    """
    main, *others = heads(output)
    losses = _cross_entropy(main, labels)
    for logits in others:
        losses = losses + entry.auxiliary_weight * _cross_entropy(logits, labels)
    return losses


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.dim() == 2:
        labels = labels if labels.dim() == 1 else labels[:, -1]
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return losses.mean(1)
