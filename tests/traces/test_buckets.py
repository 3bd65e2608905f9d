"""Buckets: torch's own rule, over any model."""

import torch.distributed
from hypothesis import given
from hypothesis import strategies as st

from gcsim.traces.buckets import bucket_layouts

MIB = 1024 * 1024


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    first=st.integers(1, 8000),
    cap=st.integers(1, 20_000),
)
def test_layouts_are_those_of_ddp(sizes: list[int], first: int, cap: int) -> None:
    ready = list(reversed(range(len(sizes))))
    tensors = [torch.empty(sizes[index], device="meta") for index in ready]
    # oracle: what DDP calls after the first iteration, tensors in the order they became ready
    assign = torch.distributed._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
    expected, _ = assign(tensors, [first, cap], [], ready)
    layouts = bucket_layouts([(f"p{i}", (n,)) for i, n in enumerate(sizes)], first=first, cap=cap)
    assert [[piece.index for piece in layout.slices] for layout in layouts] == expected


def test_slices_tile_their_bucket() -> None:
    layouts = bucket_layouts([("a", (10, 3)), ("b", (5,)), ("c", (2, 2, 2))], first=40, cap=80)
    for number, layout in enumerate(layouts):
        assert layout.index == number
        end = 0
        for piece in layout.slices:
            assert piece.offset == end
            end += piece.numel
        assert layout.numel == end


def test_alexnet_has_four_buckets() -> None:
    # By hand, backwards: 1000 + 4,096,000 elements pass 1 MiB at once; 4096 + 16,777,216 elements
    # pass 25 MiB; so do 4096 + 37,748,736; the convolutions' 2,469,696 are the rest.
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("conv", (2_469_696,)),
        ("fc6.weight", (4096, 9216)),
        ("fc6.bias", (4096,)),
        ("fc7.weight", (4096, 4096)),
        ("fc7.bias", (4096,)),
        ("fc8.weight", (1000, 4096)),
        ("fc8.bias", (1000,)),
    ]
    layouts = bucket_layouts(shapes, first=MIB, cap=25 * MIB)
    assert [layout.numel for layout in layouts] == [4_097_000, 16_781_312, 37_752_832, 2_469_696]
