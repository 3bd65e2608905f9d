"""What does a message of selected elements look like? For each tensor values, then indices.

The frame's body holds the values (float32 or float16) and then the coded indices; its flags say
how: the low four bits are the index coder, bit 4 is set for float16 values.

Values that float16 cannot hold saturate at 65504; senders with error feedback keep the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Codec, Frame, as_bytes, from_bytes, pack_frame
from gcsim.compressors.coding.index_coding import Coder, decode_indices, encode_indices
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.coding.selection import scatter_add
from gcsim.compressors.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor

ValueFormat = Literal["fp32", "fp16"]
_HALF = 1 << 4
_HALF_MAX = 65504.0


def travelling(values: Tensor, values_as: ValueFormat) -> Tensor:
    """The values in the format that they travel in."""
    if values_as == "fp16":
        return values.clamp(-_HALF_MAX, _HALF_MAX).half()
    return values


def pack_sparse(values: Tensor, indices: Tensor, numel: int, coder: Coder) -> Tensor:
    """One frame: `values` `[k]` float32 or float16 at ascending `indices` int64 `[k]`."""
    body = torch.cat((as_bytes(values), encode_indices(indices, numel, coder)))
    flags = int(coder) | (_HALF if values.dtype == torch.float16 else 0)
    return pack_frame(Codec.SPARSE, body, numel=numel, nonzero=indices.numel(), flags=flags)


def unpack_sparse(frame: Frame) -> tuple[Tensor, Tensor]:
    """(indices int64 `[k]`, values float32 `[k]`) of a frame; `InputError` when damaged."""
    k = frame.nonzero
    dtype = torch.float16 if frame.flags & _HALF else torch.float32
    cut = k * dtype.itemsize
    values = from_bytes(frame.body[:cut], dtype, k).float()
    indices = decode_indices(frame.body[cut:], frame.numel, k, frame.flags & 0xF)
    return indices, values


def add_message(update: Tensor, layout: BucketLayout, message: Tensor, scale: float) -> None:
    """update += scale * message, in place; one frame for each tensor of the layout, in order.

    `update` is the float32 vector that the layout's offsets refer to. Raises `InputError` when
    the message is damaged or holds other tensors than the layout.
    """
    for piece, frame in frames_of(message, layout, Codec.SPARSE):
        indices, values = unpack_sparse(frame)
        part = update[piece.offset : piece.offset + piece.numel]
        scatter_add(part, indices, values * scale)
