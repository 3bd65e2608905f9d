"""Where are a bucket's tensors, and what is in the frames of a message, on a GPU?"""

from __future__ import annotations

from collections.abc import Collection

from gcsim.compressors.bucket import BucketLayout
from gcsim.compressors.coding.frame import Frame
from gcsim.compressors.coding.messages import frames_of
from gcsim.compressors.gpu.words import there
from gcsim.compressors.lazy_torch import Tensor, torch


def tensors_of(layout: BucketLayout) -> tuple[list[int], list[int]]:
    """(elements of each; where it begins)."""
    return [p.numel for p in layout.slices], [p.offset for p in layout.slices]


def alike(message: Tensor, layout: BucketLayout, codec: int | Collection[int]) -> list[Frame]:
    """The frames of a message if they agree on codec and flags, else none."""
    frames = [frame for _, frame in frames_of(message, layout, codec)]
    return frames if len({(frame.codec, frame.flags) for frame in frames}) == 1 else []


def as_long(frames: list[Frame], lengths: list[int]) -> bool:
    """Whether bodies have so many bytes."""
    return [frame.body.numel() for frame in frames] == lengths


def unpadded(message: Tensor, frames: list[Frame]) -> bool:
    """Whether zeros follow the bit of a tensor's last element, with which a body ends: one wait."""
    lengths = [frame.body.numel() for frame in frames]
    ends = zip(places_in(message, frames, lengths), frames, strict=True)
    at = [(end - 1, frame.numel % 8) for end, frame in ends if frame.numel % 8]
    if not at:
        return True
    last, behind = there(at, message.device).T
    return not bool((message[last] >> behind).any())


def places_in(message: Tensor, frames: list[Frame], heads: list[int] | None = None) -> list[int]:
    """Where bodies begin in a message, or what is behind their heads."""
    first = int(message.storage_offset())
    places = [int(frame.body.storage_offset()) - first for frame in frames]
    return sums(places, heads) if heads else places


def floats_in(frames: list[Frame], heads: list[int]) -> Tensor:
    """The float32 numbers that bodies begin with, one frame's after the other."""
    some = [frame.body[:head] for frame, head in zip(frames, heads, strict=True)]
    return torch.cat(some).view(torch.float32)


def sums(first: list[int], second: list[int]) -> list[int]:
    """One by one."""
    return [a + b for a, b in zip(first, second, strict=True)]
