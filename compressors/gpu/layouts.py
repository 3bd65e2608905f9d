"""Lengths and begins of a bucket's tensors."""

from __future__ import annotations

from gcsim.compressors.bucket import BucketLayout


def tensors_of(layout: BucketLayout) -> tuple[list[int], list[int]]:
    """(elements of each; where it begins)."""
    return [p.numel for p in layout.slices], [p.offset for p in layout.slices]
