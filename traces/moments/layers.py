"""Sums over samples of g_z^2 for a layer's weight and bias.

a: the layer's input, delta: the gradient at its output; both with the batch first. The
per-sample gradients of a convolution exist for some samples at a time, within `_LIMIT` bytes.
Batch normalisation: g_z is what the sample's own places add to the gradient of scale and shift.

Source: I. Goodfellow, "Efficient per-example gradient computations", arXiv:1510.01799 (rank-one
case); the others form g_z = delta_z a_z^T and square it.

Layers that sequences pass, with the gradient delta at the layer's output:

Linear layers over sequences are in `moments/layers.py`. Here, with the gradient delta at the
layer's output:

- Embedding: sample z adds delta at each of its places to the row of the token that stands there,
  so g_z has at most as many rows as the sample has places. Rows are summed for each pair of sample
  and token, squared, and added up over the samples; never more than one row a place exists.
- Layer and root-mean-square normalisation: scale and shift have g_z = sum over the places of
  delta_z times the normalised input, and of delta_z.
"""

from __future__ import annotations

from collections.abc import Iterator

from gcsim.compressors.lazy_torch import Tensor, nn, torch

_LIMIT = 64 * 1024 * 1024
"""Bytes of per-sample intermediates alive at once."""


def has_closed_form(layer: nn.Module) -> bool:
    """Whether a call of `layer` is exactly torch's Linear, Conv2d, batch normalisation (of one
    process), or a layer of `moments/layers.py`, on its own weight and bias."""
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    if "weight" not in own or not own <= {"weight", "bias"}:  # weight norm, parametrisations
        return False
    if type(layer) is torch.nn.Conv2d:
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is torch.nn.Linear or is_batch_norm(layer) or _is_sequence_layer(layer)


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether samples meet in this layer, in a way that is understood here."""
    return type(layer) in {torch.nn.BatchNorm1d, torch.nn.BatchNorm2d}


def moment(layer: nn.Module, role: str, given: Tensor, gradient: Tensor | None) -> Tensor:
    """The second moment of the layer's weight or bias (`role`), in the parameter's shape."""
    if gradient is None:  # the loss does not depend on this layer's output
        return torch.zeros_like(layer.get_parameter(role))
    if _is_sequence_layer(layer):
        return _sequence_moment(layer, role, given, gradient)
    if role == "bias":
        return bias_moment(_channels_last(layer, gradient))
    if isinstance(layer, torch.nn.Conv2d):
        return conv2d_moment(layer, given, gradient)
    if is_batch_norm(layer):
        return bias_moment(_channels_last(layer, gradient * _normalised(layer, given)))
    return linear_moment(given, gradient)


def adds_up(layer: nn.Module, role: str, given: Tensor, gradient: Tensor, found: Tensor) -> bool:
    """Whether the samples' gradients at this layer add up to the parameter's gradient `found`.

    Compared as sums over the outputs (of a group), which cost one output instead of all.
    """
    from torch.nn.grad import conv2d_weight

    scale = float(gradient.abs().sum())
    if _is_sequence_layer(layer):
        expected, largest = _sequence_sum(layer, role, given, gradient)
        found = found.sum(1) if isinstance(layer, torch.nn.Embedding) else found
        scale *= largest
    elif role == "bias":
        expected = _channels_last(layer, gradient).flatten(0, -2).sum(0)
    elif isinstance(layer, torch.nn.Conv2d):
        batch, outputs, *places = gradient.shape
        summed = gradient.view(batch, layer.groups, outputs // layer.groups, *places).sum(2)
        expected = conv2d_weight(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            given,
            (layer.groups, *layer.weight.shape[1:]),
            summed,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
        found = found.view(layer.groups, -1, *layer.weight.shape[1:]).sum(1)
        scale *= float(given.abs().max())
    elif is_batch_norm(layer):
        normalised = _normalised(layer, given)
        expected = _channels_last(layer, gradient * normalised).flatten(0, -2).sum(0)
        scale *= float(normalised.abs().max())
    else:
        expected = gradient.flatten(0, -2).sum(1) @ given.flatten(0, -2)
        found = found.sum(0)
        scale *= float(given.abs().max())
    return float((expected - found).abs().max()) <= 1e-5 * scale


def _channels_last(layer: nn.Module, gradient: Tensor) -> Tensor:
    """`[B, …, out]`."""
    second = isinstance(layer, torch.nn.Conv2d) or is_batch_norm(layer)
    return gradient.movedim(1, -1) if second else gradient


def _normalised(layer: nn.Module, given: Tensor) -> Tensor:
    """What the layer scales and shifts: its input, normalised over this batch, or, in a frozen
    layer, by the statistics that it keeps."""
    assert isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d)
    frozen = not layer.training and layer.running_mean is not None
    mean, variance = (layer.running_mean, layer.running_var) if frozen else (None, None)
    return torch.nn.functional.batch_norm(given, mean, variance, training=not frozen, eps=layer.eps)


def linear_moment(given: Tensor, gradient: Tensor) -> Tensor:
    """`[out, in]` from input `[B, …, in]` and output gradient `[B, …, out]`."""
    if given.dim() == 2:
        return gradient.square().t() @ given.square()
    given, gradient = given.flatten(1, -2), gradient.flatten(1, -2)  # [B, places, features]
    elements = given.shape[-1] * gradient.shape[-1]
    result = given.new_zeros(gradient.shape[-1], given.shape[-1])
    for some in _portions(len(given), elements):
        per_sample = gradient[some].transpose(1, 2) @ given[some]  # [b, out, in]
        result += per_sample.square_().sum(0)
    return result


def bias_moment(gradient: Tensor) -> Tensor:
    """`[out]` from the output gradient `[B, …, out]`."""
    if gradient.dim() > 2:
        gradient = gradient.flatten(1, -2).sum(1)
    return gradient.square().sum(0)


def conv2d_moment(layer: nn.Conv2d, given: Tensor, gradient: Tensor) -> Tensor:
    """`[out, in/groups, h, w]` from input `[B, in, H, W]` and output gradient `[B, out, H', W']`.

    A convolution is the product of its weight with the unfolded input, so a sample's gradient is
    delta_z `[out/groups, places]` times unfold(a_z)^T `[places, in/groups * h * w]`, group by
    group.
    """
    weight, groups, padding = layer.weight, layer.groups, layer.padding
    assert not isinstance(padding, str)  # `has_closed_form` lets no such layer pass
    columns = weight[0].numel()
    places = gradient[0, 0].numel()
    result = weight.new_zeros(groups, weight.shape[0] // groups, columns)
    for some in _portions(len(given), groups * columns * places + weight.numel()):
        unfolded = torch.nn.functional.unfold(
            given[some],
            kernel_size=layer.kernel_size,
            dilation=layer.dilation,
            padding=padding,
            stride=layer.stride,
        )  # [b, in*h*w, places]
        unfolded = unfolded.view(-1, groups, columns, places)
        delta = gradient[some].reshape(-1, groups, weight.shape[0] // groups, places)
        per_sample = delta @ unfolded.transpose(2, 3)  # [b, groups, out/groups, columns]
        result += per_sample.square_().sum(0)
    return result.view(weight.shape)


def _portions(batch: int, elements: int) -> Iterator[slice]:
    """Slices of the batch whose intermediates (`elements` float32 a sample) stay in the limit."""
    length = max(1, _LIMIT // (4 * elements))
    for start in range(0, batch, length):
        yield slice(start, start + length)


def _is_sequence_layer(layer: nn.Module) -> bool:
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


def _sequence_moment(layer: nn.Module, role: str, given: Tensor, gradient: Tensor) -> Tensor:
    """The second moment of weight or bias (`role`), in the parameter's shape.

    `given` and `gradient` have the batch first; an embedding's input `[B, …]` is int64.
    """
    if isinstance(layer, torch.nn.Embedding):
        return _embedding_moment(layer, given, gradient)
    return _samples(layer, role, given, gradient).square().sum(0)


def _sequence_sum(
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
    largest = float(_sequence_normalised(layer, given).abs().max()) if role == "weight" else 1.0
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
    terms = gradient * _sequence_normalised(layer, given) if role == "weight" else gradient
    places = terms.dim() - 1 - layer.get_parameter(role).dim()
    return terms.flatten(1, places).sum(1) if places else terms


def _sequence_normalised(layer: nn.Module, given: Tensor) -> Tensor:
    """What the layer scales and shifts."""
    if isinstance(layer, torch.nn.LayerNorm):
        shape = list(layer.normalized_shape)
        return torch.nn.functional.layer_norm(given, shape, eps=layer.eps)
    assert isinstance(layer, torch.nn.RMSNorm)
    return torch.nn.functional.rms_norm(given, list(layer.normalized_shape), eps=layer.eps)


def _is_norm(layer: nn.Module) -> bool:
    root_mean_square = getattr(torch.nn, "RMSNorm", None)  # torch 2.4
    return type(layer) in {torch.nn.LayerNorm, root_mean_square}
