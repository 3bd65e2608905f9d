"""Where do random numbers come from, so that a run can be repeated and workers can agree?

From counter-based generators whose key is a hash of everything that may tell two draws apart:
seed, step, tensor, purpose and, unless all workers must draw the same, the rank. No state is kept
between draws and no global generator is read or set.

Two kinds: `stream` is a numpy generator (Philox), for a few numbers of any distribution; a loop
over elements takes a `random_key` and calls `bits64(key, i)`, the i-th number of SplitMix64's
sequence from that key, in any order and on any thread. 64 bits serve several elements: four
fractions of 16 bits, where rounding at random asks for no more.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox);
G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014
(SplitMix64; passes BigCrush).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from gcsim.compressors.lazy_torch import torch
from gcsim.compressors.loops import inlined
from gcsim.compressors.meter import kernel
from gcsim.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_CHUNK = 1 << 20
"""Elements treated at a time on a CPU: the intermediate values stay in the cache."""


def stream(
    seed: int, step: int, tensor: int, purpose: str, rank: int | None = None
) -> np.random.Generator:
    """The generator of one purpose, at one step, for one tensor.

    Equal arguments give equal numbers in every process; any difference gives an independent
    stream. `rank=None` is the stream that all workers share.
    """
    key = _digest(16, _words(seed, step, tensor, purpose, rank))
    return np.random.Generator(np.random.Philox(key=key))


def random_key(
    seed: int, step: int, tensor: int, purpose: str, rank: int | None = None
) -> np.uint64:
    """What `bits64` needs to give the numbers of one purpose, step and tensor; see `stream`."""
    return np.uint64(_digest(8, _words(seed, step, tensor, purpose, rank)))


@inlined
def bits64(key: np.uint64, index: int) -> np.uint64:
    """Inside a loop: 64 random bits, number `index` (>= 0) of the sequence of `key`."""
    z = key + (np.uint64(index) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inlined
def fraction64(key: np.uint64, index: int) -> float:
    """Inside a loop: float64 uniform on [0, 1), number `index` of the sequence of `key`."""
    return float(bits64(key, index) >> np.uint64(11)) * 2.0**-53


def _words(seed: int, step: int, tensor: int, purpose: str, rank: int | None) -> str:
    return f"{seed}/{step}/{tensor}/{'shared' if rank is None else rank}/{purpose}"


def _digest(size: int, words: str) -> int:
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=size).digest(), "little")


@kernel("random")
def uniform(generator: np.random.Generator, n: int, device: torch.device | str = "cpu") -> Tensor:
    """`[n]` float32, uniform on [0, 1) in steps of 2^-24."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(generator.random(n, dtype=np.float32))
    return torch.rand(n, generator=_on_device(generator, device), device=device)


@kernel("random")
def random_bits16(
    generator: np.random.Generator, n: int, device: torch.device | str = "cpu"
) -> Tensor:
    """`[n]` int32, uniform on the integers 0 … 65535: two random bytes an element."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(raw_bits16(generator, n).astype(np.int32))
    return torch.randint(
        0, 1 << 16, (n,), generator=_on_device(generator, device), device=device, dtype=torch.int32
    )


def distinct_indices(
    generator: np.random.Generator, n: int, k: int, device: torch.device | str = "cpu"
) -> Tensor:
    """`[k]` int64, ascending: a uniformly random k-subset of 0 … n-1, in O(k) memory.

    Independent draws until k different values were met: the set is uniform because no value is
    preferred. Above one half the complement is drawn.
    """
    if not 0 <= k <= n:
        raise InternalError(f"cannot draw {k} distinct indices out of {n}")
    if 2 * k > n:
        kept = torch.ones(n, dtype=torch.bool)
        kept[_distinct(generator, n, n - k)] = False
        found = kept.nonzero().view(-1)
    else:
        found = _distinct(generator, n, k)
    return found.to(device)


@kernel("random")
def bernoulli_indices(generator: np.random.Generator, weight: Tensor, scale: float) -> Tensor:
    """Indices drawn independently, i with probability min(1, scale * weight_i): int64, ascending.

    The probabilities are exact although most elements cost two random bytes: with
    U = (b + v) / 65536, b the first 16 bits and v in [0, 1) the rest, U < p needs b < 65536 p;
    v is drawn for the few elements that pass this. `weight` is float32 `[n]`, non-negative.
    """
    threshold = 65536.0 * scale
    if weight.device.type != "cpu":
        return _bernoulli_on_device(generator, weight, threshold)
    weights = weight.numpy()
    # Lets through a little too much, which is refined below; finite, so that 0 * bound is 0.
    bound = np.float32(min(threshold * (1 + 2.0**-20), 3e38))
    drawn = []
    for start in range(0, weights.size, _CHUNK):
        piece = weights[start : start + _CHUNK]
        bits16 = raw_bits16(generator, piece.size)
        with np.errstate(over="ignore"):  # infinity passes, as it should
            passed16 = np.flatnonzero(bits16 < piece * bound)
        exact = piece[passed16].astype(np.float64) * threshold
        kept = bits16[passed16] + generator.random(passed16.size) < exact
        drawn.append(passed16[kept] + start)
    return torch.from_numpy(np.concatenate(drawn) if drawn else np.zeros(0, dtype=np.int64))


def raw_bits16(generator: np.random.Generator, n: int) -> NDArray[np.uint16]:
    """`[n]` uint16 straight from the bit generator."""
    words: NDArray[np.uint64] = generator.bit_generator.random_raw((n + 3) // 4)
    return words.view(np.uint16)[:n]


def _distinct(generator: np.random.Generator, n: int, k: int) -> Tensor:
    found = torch.zeros(0, dtype=torch.int64)
    while found.numel() < k:
        found = _ascending_without_repeats(found, _integers(generator, n, k - found.numel()))
    return found


@kernel("random")
def _integers(generator: np.random.Generator, n: int, count: int) -> Tensor:
    return torch.from_numpy(generator.integers(0, n, count, dtype=np.int64))


@kernel("sort")
def _ascending_without_repeats(found: Tensor, more: Tensor) -> Tensor:
    together = np.sort(np.concatenate((found.numpy(), more.numpy())))
    return torch.from_numpy(together[np.diff(together, prepend=-1) != 0])


def _bernoulli_on_device(
    generator: np.random.Generator, weight: Tensor, threshold: float
) -> Tensor:
    bits = random_bits16(generator, weight.numel(), weight.device)
    scaled = weight.double() * threshold
    passed = (bits < scaled).nonzero().view(-1)
    rest = torch.from_numpy(generator.random(passed.numel())).to(weight.device)
    return passed[bits[passed] + rest < scaled[passed]]


def _on_device(generator: np.random.Generator, device: torch.device | str) -> torch.Generator:
    own = torch.Generator(device=device)
    own.manual_seed(int(generator.integers(1 << 63)))
    return own
