"""What is sum_z g_z^2 for the layers that sequences pass: embeddings and layer normalisation?

Linear layers over sequences are in `moments/layers.py`. Here, with the gradient delta at the
layer's output:

- Embedding: sample z adds delta at each of its places to the row of the token that stands there,
  so g_z has at most as many rows as the sample has places. Rows are summed for each pair of sample
  and token, squared, and added up over the samples; never more than one row a place exists.
- Layer and root-mean-square normalisation: scale and shift have g_z = sum over the places of
  delta_z times the normalised input, and of delta_z.
"""

from __future__ import annotations

from gcsim.compressors.lazy_torch import Tensor, nn, torch


def is_sequence_layer(layer: nn.Module) -> bool:
    """Whether this file knows the layer's samples apart.

    An embedding that changes its weight on the way (`max_norm`), or whose gradient is scaled over
    the whole batch or sparse, is left to the slow way.
    """
    if type(layer) is torch.nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    return _is_norm(layer)


def places_are_inside(layer: nn.Module, given: Tensor) -> bool:
    """Whether the first axis of the layer's input is the batch alone, not what is normalised."""
    if not _is_norm(layer):
        return True
    assert isinstance(layer.normalized_shape, tuple)
    return given.dim() > len(layer.normalized_shape)


def sequence_moment(layer: nn.Module, role: str, given: Tensor, gradient: Tensor) -> Tensor:
    """The second moment of weight or bias (`role`), in the parameter's shape.

    `given` and `gradient` have the batch first; an embedding's input `[B, …]` is int64.
    """
    if isinstance(layer, torch.nn.Embedding):
        return _embedding_moment(layer, given, gradient)
    return _samples(layer, role, given, gradient).square().sum(0)


def sequence_sum(
    layer: nn.Module, role: str, given: Tensor, gradient: Tensor
) -> tuple[Tensor, float]:
    """What the samples' gradients add up to, and the largest factor of delta in it.

    Of an embedding, summed over each row: `[classes]`.
    """
    if isinstance(layer, torch.nn.Embedding):
        sums = gradient.new_zeros(layer.num_embeddings)
        sums.index_add_(0, given.flatten(), gradient.sum(-1).flatten())
        if layer.padding_idx is not None:
            sums[layer.padding_idx] = 0
        return sums, 1.0
    largest = float(_normalised(layer, given).abs().max()) if role == "weight" else 1.0
    return _samples(layer, role, given, gradient).sum(0), largest


def _embedding_moment(layer: nn.Embedding, tokens: Tensor, gradient: Tensor) -> Tensor:
    """`[classes, width]` from tokens `[B, …]` and the output's gradient `[B, …, width]`."""
    classes, width = layer.weight.shape
    sample = torch.arange(len(tokens), device=tokens.device)[:, None]
    numbers = (sample * classes + tokens.flatten(1)).flatten()
    pairs, pair = torch.unique(numbers, return_inverse=True)
    rows = gradient.new_zeros(len(pairs), width)
    rows.index_add_(0, pair, gradient.reshape(-1, width))
    result = gradient.new_zeros(classes, width)
    result.index_add_(0, pairs % classes, rows.square_())
    if layer.padding_idx is not None:
        result[layer.padding_idx] = 0
    return result


def _samples(layer: nn.Module, role: str, given: Tensor, gradient: Tensor) -> Tensor:
    """Each sample's gradient of a normalisation's weight or bias, `[B, *normalized_shape]`."""
    terms = gradient * _normalised(layer, given) if role == "weight" else gradient
    places = terms.dim() - 1 - layer.get_parameter(role).dim()
    return terms.flatten(1, places).sum(1) if places else terms


def _normalised(layer: nn.Module, given: Tensor) -> Tensor:
    """What the layer scales and shifts."""
    if isinstance(layer, torch.nn.LayerNorm):
        shape = list(layer.normalized_shape)
        return torch.nn.functional.layer_norm(given, shape, eps=layer.eps)
    assert isinstance(layer, torch.nn.RMSNorm)
    return torch.nn.functional.rms_norm(given, list(layer.normalized_shape), eps=layer.eps)


def _is_norm(layer: nn.Module) -> bool:
    root_mean_square = getattr(torch.nn, "RMSNorm", None)  # torch 2.4
    return type(layer) in {torch.nn.LayerNorm, root_mean_square}
