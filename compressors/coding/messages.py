"""Does a message fit the bucket that it is decoded into?

A message is one frame a tensor, in the order of the bucket's layout. A receiver knows the layout
and nothing else of the sender: a frame too many, too few, of another codec or of another length
is a damaged or misrouted message (`InputError`), never a wrong number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator

from gcsim.compressors.bucket import BucketLayout, TensorSlice
from gcsim.compressors.coding.frame import Frame, read_frames
from gcsim.compressors.lazy_torch import Tensor
from gcsim.errors import InputError


def frames_of(
    message: Tensor, layout: BucketLayout, codec: int | Collection[int]
) -> Iterator[tuple[TensorSlice, Frame]]:
    """Each tensor of the layout with its frame.

    Raises `InputError` when the frames are not those of this layout.
    """
    frames = read_frames(message, expected=codec, most=len(layout.slices))
    for piece in layout.slices:
        frame = next(frames, None)
        if frame is None:
            raise InputError(f"the message ends before the frame of {piece.name}")
        if frame.numel != piece.numel:
            raise InputError(f"{piece.name} has {piece.numel} elements, its frame {frame.numel}")
        yield piece, frame
    if next(frames, None) is not None:
        raise InputError(f"the message holds more frames than bucket {layout.index} has tensors")


def decoder(codec: int | Collection[int]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `add(frame, part, weight, **known)` of one tensor into that of a message.

    The result is `add(message, layout, out, weight, **known)`: out += weight * decoded message, in
    place; `out` is float32 `[layout.numel]`. Raises `InputError` when the message is damaged or of
    another layout.
    """

    def decorate(add: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(add)
        def of_message(
            message: Tensor, layout: BucketLayout, out: Tensor, weight: float, **known: object
        ) -> None:
            for piece, frame in frames_of(message, layout, codec):
                add(frame, piece.of(out), weight, **known)

        del of_message.__wrapped__  # whose parameters are others
        return of_message

    return decorate


def split_body(frame: Frame, head_bytes: int, tail_bytes: int) -> tuple[Tensor, Tensor]:
    """A frame's body in two parts of known length; `InputError` when it is not that long."""
    if frame.body.numel() != head_bytes + tail_bytes:
        raise InputError(
            f"damaged payload: body of {frame.body.numel()} bytes, "
            f"its header asks for {head_bytes} + {tail_bytes}"
        )
    return frame.body[:head_bytes], frame.body[head_bytes:]


def only_frame(message: Tensor, codec: int, numel: int | None = None) -> Frame:
    """The one frame of a message, of `numel` elements if given; `InputError` when it is not so."""
    frames = list(read_frames(message, expected=codec))
    if len(frames) != 1 or numel not in (None, frames[0].numel):
        found = [frame.numel for frame in frames]
        wanted = "elements" if numel is None else f"{numel} elements"
        raise InputError(f"damaged payload: frames of {found} elements, not one frame of {wanted}")
    return frames[0]
