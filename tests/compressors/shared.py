"""Shared by tests of several methods: workers in lockstep, buckets, SplitMix64."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcsim.compressors.base import Compressor, Worker
from gcsim.compressors.bucket import Bucket, BucketLayout
from gcsim.compressors.coding.frames import as_bytes
from gcsim.compressors.coding.indices.index_coding import coded_positions, decoded_positions
from gcsim.compressors.coding.integers.digits import Form, fixed
from gcsim.compressors.coding.one_bit.bits import Stripes, add_levels, put_bits
from gcsim.compressors.coding.one_bit.signs import Norm, fold_signs, lost_by, nesterov
from gcsim.compressors.coding.rounding.level_words import coded_levels, decoded_levels
from gcsim.compressors.coding.rounding.levels import Levels, add_rounded, even, own, round_levels
from gcsim.compressors.coding.rounding.norms import Norm as LevelNorm
from gcsim.compressors.coding.rounding.norms import cell_norms
from gcsim.compressors.lockstep import CollectiveRecord, Observer, lockstep
from gcsim.compressors.participation import participate
from gcsim.compressors.registry import create
from gcsim.compressors.segments import ZERO, Cells, Column, Segments

MASK = (1 << 64) - 1
C = TypeVar("C", bound=Compressor[Any])


def members(cls: type[C], count: int, **parameters: Any) -> list[C]:
    """Workers of a method, seed 7."""
    chosen = cls.Parameters(**parameters)
    return [cls(Worker(rank=rank, count=count, seed=7), chosen) for rank in range(count)]


def layout_of_shapes(shapes: Iterable[tuple[int, ...]]) -> BucketLayout:
    """A bucket's layout: tensors t0, t1, … behind one another."""
    return BucketLayout.behind(0, ((f"t{n}", n, shape) for n, shape in enumerate(shapes)))


def layout_of(*sizes: int) -> BucketLayout:
    """The layout of vectors."""
    return layout_of_shapes((size,) for size in sizes)


def normal(n: int, seed: int = 0) -> Tensor:
    """A float32 N(0, 1) vector."""
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def bucket_of(*tensors: Tensor) -> Bucket:
    """A bucket that holds the given tensors."""
    layout = layout_of_shapes(tuple(tensor.shape) for tensor in tensors)
    return Bucket(layout=layout, gradient=torch.cat([t.reshape(-1) for t in tensors]))


def exchange(
    group: Sequence[Compressor[Any]],
    buckets: Sequence[Bucket],
    step: int = 0,
    meter: Observer | None = None,
) -> list[Tensor]:
    """The updates of workers that exchange one bucket each."""
    return lockstep([participate(w, b, step) for w, b in zip(group, buckets, strict=True)], meter)


def step_of(
    group: Sequence[Compressor[Any]],
    layout: BucketLayout,
    gradients: Sequence[Tensor],
    step: int = 0,
    meter: Observer | None = None,
) -> list[Tensor]:
    """As `exchange`, of gradients in one layout."""
    buckets = [Bucket(layout=layout, gradient=gradient) for gradient in gradients]
    return exchange(group, buckets, step, meter)


class Listener(Observer):
    """An observer that keeps the collectives and the payloads."""

    def __init__(self) -> None:
        self.collectives: list[CollectiveRecord] = []
        self.received: list[list[Tensor]] = []
        self.as_sent: list[list[Tensor]] = []
        """Copies of `received`, made before anybody decoded."""

    def payloads(self, received: list[Tensor], *, parts: bool = False) -> Iterable[Tensor]:
        if not parts and not any(received is seen for seen in self.received):
            self.received.append(received)
            self.as_sent.append([payload.clone() for payload in received])
        return received

    def collective(self, record: CollectiveRecord) -> None:
        self.collectives.append(record)


class Team:
    """Workers of one compressor that keep their state from step to step."""

    def __init__(
        self,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        *,
        workers: int = 2,
        seed: int = 7,
        **parameters: Any,
    ) -> None:
        self.layout = layout_of_shapes(shapes)
        self.workers: list[Any] = [
            create(name, Worker(rank=rank, count=workers, seed=seed), parameters)
            for rank in range(workers)
        ]
        self.listener = Listener()

    def step(self, gradients: Sequence[Tensor], number: int = 0) -> list[Tensor]:
        """The workers' updates; `listener` holds what happened in this step."""
        self.listener = Listener()
        exchanges = []
        for worker, gradient in zip(self.workers, gradients, strict=True):
            # noise-dominated samples: the sum of (g_z / B)^2 is twice the squared mean
            moment = 2 * gradient.square() if worker.requires else None
            bucket = Bucket(layout=self.layout, gradient=gradient, second_moment=moment)
            exchanges.append(participate(worker, bucket, number))
        return lockstep(exchanges, self.listener)

    @property
    def sent(self) -> list[tuple[int, ...]]:
        """Bytes by collective and rank in the last step."""
        return [record.sent for record in self.listener.collectives]


def bucket_norms(values: Tensor, size: int, norm: LevelNorm) -> Tensor:
    """`cell_norms` of a tensor alone."""
    return cell_norms(values, Segments.alone(values.numel()).cells(size), norm)


def encode_levels(
    values: Tensor, norms: Tensor, key: np.uint64, *, size: int, steps: int, bits: int,
    bound: float = np.inf,
) -> Tensor:  # fmt: skip
    """Codes of even levels of a tensor alone: uint8 `[ceil(n bits / 8)]`."""
    levels = even(cells_of(values, size), norms, steps)
    return rounded(values, levels, key, fixed(bits), torch.full_like(norms, bound))


def rounded(
    values: Tensor, levels: Levels, key: np.uint64, form: Form, bounds: Any = None
) -> Tensor:
    """The codes that `round_levels` writes of a tensor alone: uint8."""
    out = torch.zeros(int(levels.moved(form)[1][0]), dtype=torch.uint8)
    keys = np.array([key], dtype=np.uint64)
    round_levels(values, levels, keys, out, ZERO, form, bounds)
    return out


def add_packed_levels(
    out: Tensor, packed: Tensor, norms: Tensor, *, size: int, steps: int, bits: int, weight: float
) -> None:
    """Undo `encode_levels`."""
    add_rounded(out, even(cells_of(out, size), norms, steps), packed, ZERO, fixed(bits), weight)


def batch(layout: BucketLayout, seed: int, samples: int = 8, bias: float = 0.3) -> Bucket:
    """The mean and the second moment of real per-sample gradients."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.standard_normal(layout.numel))
    each = (rng.standard_normal((samples, layout.numel)) + bias) * scale / samples
    return Bucket(
        layout=layout,
        gradient=torch.from_numpy(each.sum(0).astype(np.float32)),
        second_moment=torch.from_numpy((each**2).sum(0).astype(np.float32)),
    )


def split_mix(key: int, index: int) -> int:
    """Number `index` of SplitMix64 (Steele et al. 2014)."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def random16(key: int, n: int) -> NDArray[np.uint64]:
    """The 16 random bits of each of n elements: four to a number, the lowest first."""
    words = [split_mix(int(key), index) for index in range(-(-n // 4))]
    parts = np.array(words, dtype=np.uint64)[:, None] >> np.array([0, 16, 32, 48], dtype=np.uint64)
    return (parts & np.uint64(0xFFFF)).reshape(-1)[:n]


def uniform(key: int, i: int) -> float:
    """u of element i: (its 16 random bits + 1/2) / 65536."""
    return ((split_mix(key, i // 4) >> 16 * (i % 4)) % 65536 + 0.5) / 65536


def buckets_of_three(step: int) -> list[Bucket]:
    """A bucket of 163 elements in three tensors of each of three workers, one tensor all zero."""
    return [
        bucket_of(normal(150, 10 * step + r).view(3, 50), torch.zeros(4), normal(9, 90 + r))
        for r in range(3)
    ]


def naive_mean(given: list[Bucket], naive: Callable[..., Any], **known: Any) -> NDArray[np.float64]:
    """Mean over workers of what `naive` makes of each tensor."""
    total = np.zeros(given[0].layout.numel)
    for rank, bucket in enumerate(given):
        for piece, values in bucket.layout.views(bucket.gradient):
            own = naive(values, tensor=piece.index, rank=rank, **known)
            total[piece.offset : piece.offset + piece.numel] += own
    return total / len(given)


def encode_indices(indices: Tensor, n: int, coder: int) -> Tensor:
    """The body of `coded_positions` of a tensor alone."""
    k, coders = np.array([[indices.numel()], [int(coder)]])
    return coded_positions(indices, Segments.alone(n), k, coders)[0]


def decode_indices(body: Tensor, n: int, k: int, coder: int) -> Tensor:
    """Undo `encode_indices`."""
    sizes, many, coders = np.array([[body.numel()], [k], [int(coder)]])
    return decoded_positions(body, Segments.alone(n), sizes, many, coders)


def code_alone(codes: Tensor, steps: int) -> tuple[Tensor, int]:
    """(the body of a tensor alone, elements that travel); see `coded_levels`."""
    body, _, sent = coded_levels(codes, Segments.alone(len(codes)), steps)
    return body, int(sent[0])


def decode_alone(body: Tensor, n: int, sent: int, steps: int) -> Tensor:
    """Undo `code_alone`."""
    sizes = np.array([len(body)])
    return decoded_levels(body, sizes, Segments.alone(n), np.array([sent]), steps)


def round_alone(values: Tensor, tables: Tensor, *, size: int, key: np.uint64) -> Tensor:
    """Codes of a tensor alone between the levels of its cells, `tables`."""
    return rounded(values, own(cells_of(values, size), tables, tables.shape[1]), key, fixed(8))


def fold(
    values: Tensor, length: int, norm: Norm = "mean_abs", **memory: Any
) -> tuple[Tensor, Tensor]:
    """(bits, scales) of `fold_signs` of a tensor alone, in blocks of `length` elements."""
    n = values.numel()
    bits, cells = torch.zeros(-(-n // 8), dtype=torch.uint8), Segments.alone(n).cells(length)
    return bits, fold_signs(values, cells, bits, ZERO, norm=norm, **memory)


def fold_nesterov(
    values: Tensor, momentum: Tensor, coded: Tensor, scales: Tensor, length: int, *, decay: float
) -> tuple[Tensor, Tensor]:
    """`fold` of Nesterov's direction."""
    memory: dict[str, Any] = {
        "coded": coded, "scales": scales, "mixed": momentum, "keep": True,
    }  # fmt: skip
    return fold(values, length, factors=nesterov(decay), **memory)


def fold_average(
    values: Tensor, average: Tensor, coded: Tensor, scales: Tensor, *, decay: float
) -> tuple[Tensor, Tensor]:
    """`fold` of decay average + (1 - decay) values in one block, root mean square."""
    factors = decay, 1.0 - decay, 0.0, 1.0
    memory: dict[str, Any] = {
        "coded": coded,
        "scales": scales,
        "mixed": average,
        "factors": factors,
    }
    return fold(values, max(1, values.numel()), "rms", **memory)


def add_signs(
    out: Tensor, bits: Tensor, scales: Tensor, length: int, weight: float, overwrite: bool = False
) -> None:
    """`add_levels` of signs to a tensor alone, in blocks of `length` elements."""
    cells, levels = Segments.alone(out.numel()).cells(length), as_bytes(scales)
    given = Stripes.of(cells), bits, ZERO, levels, (4 * cells.first,) * 2, (weight, -weight)
    add_levels(out, *given, overwrite=overwrite, scales=True)


def error_of(coded: Tensor, scales: Tensor) -> Tensor:
    """`lost_by` of a tensor alone that is one block."""
    return lost_by(coded, scales, Segments.alone(coded.numel()).cells(None))


def cells_of(values: Tensor, size: int) -> Cells:
    """Cells of `size` elements of a tensor alone."""
    return Segments.alone(values.numel()).cells(size)


def packed_by(values: Tensor, size: int, lines: Tensor, **given: Any) -> Tensor:
    """Bits that `put_bits` writes of a tensor alone, in cells of `size` with a line each."""
    bits = torch.zeros(-(-values.numel() // 8), dtype=torch.uint8)
    put_bits(values, Stripes.of(cells_of(values, size)), lines[None], bits, ZERO, **given)
    return bits


def add_chosen(
    out: Tensor, stripes: Stripes, bits: Tensor, at: Column, levels: Tensor, weight: float
) -> None:
    """`add_levels` of lower and upper levels, float32 `[2, lines]`, by stripe."""
    places = 4 * stripes.begins, 4 * (stripes.begins + levels.shape[1])
    data = levels.contiguous().view(-1).view(torch.uint8)
    add_levels(out, stripes, bits, at, data, places, (weight, weight))
