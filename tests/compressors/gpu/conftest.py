"""How do tests run kernels without a GPU? Triton's interpreter runs them on tensors of the host."""

import copy
import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from gcsim.compressors import on_device
from gcsim.compressors.coding.frames import as_bytes

pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from triton import language
from triton.language import standard
from triton.runtime import interpreter

from gcsim.compressors import gpu
from gcsim.compressors.gpu import frames

ON_HOST = 8 * 9 * 8 + 8 * 8
"""Bytes of the longest thing that may come to the host: fields of eight frames, as two workers send
of four tensors, and eight numbers, which are checked together."""
Outcome = tuple[object, list[Tensor]]


_table = cache(interpreter._get_np_dtype)


def _numpys(dtype: language.dtype) -> np.dtype[Any]:
    """As `interpreter._get_np_dtype`, which makes its table at every call."""
    of = dtype.element_ty if isinstance(dtype, language.block_type) else dtype
    return np.dtype(np.uint64) if isinstance(of, language.pointer_type) else _table(of)


@contextmanager
def kernels() -> Iterator[None]:
    """Inside, calls with tensors in host memory are handed over to kernels."""
    on_device.interpreted = True
    # Triton's language and its core are made numpy's once, not again at every call within a kernel.
    numpys = [interpreter._patch_lang(each.fn) for each in (frames._hash, standard.sum)]
    # Sums of integers are made a second time in 64 bits, to be compared where debug is set: never.
    once = interpreter.InterpreterOptions(sanitize_overflow=False)
    try:
        with (
            np.errstate(all="ignore"),  # the interpreter's numpy; overflow is no error on a device
            mock.patch.object(interpreter, "_patch_lang", return_value=mock.Mock()),
            mock.patch.object(interpreter.interpreter_builder, "options", once),
            mock.patch.object(interpreter, "_get_np_dtype", _numpys),
        ):
            yield
    finally:
        for each in reversed(numpys):
            each.restore()
        on_device.interpreted = False


@contextmanager
def whole_methods() -> Iterator[None]:
    """`kernels`, but hashlib makes the checksums of frames: the interpreter takes 0.1 s for each.

    That the kernel makes the same is what `test_frames_and_their_checksums` shows.
    """
    with kernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcsim.compressors.gpu.frames._hash", _Hash())
        yield


class _Hash:
    """In the place of `frames._hash`."""

    fn = staticmethod(frames._hash.fn)

    def __getitem__(self, _: tuple[int]) -> Callable[..., None]:
        return self.run

    def run(
        self, message: Tensor, table: Tensor, _: Tensor, __: Tensor, right: Tensor,
        heads: Tensor, frames: int, total: int, **constants: Any,
    ) -> None:  # fmt: skip
        data, columns = np.from_dlpack(message), np.from_dlpack(table)
        for frame in range(frames):
            begin, size = columns[0, frame], columns[1, frame]
            good = 20 <= begin <= total - size
            if good:
                end = begin + size // 8 * 8
                words, rest = (
                    data[begin:end].copy().view(np.uint64),
                    data[end : begin + size].tobytes(),
                )
                odd = 2 * np.arange(words.size, dtype=np.uint64) + np.uint64(1)
                weighed = (words * odd).sum(dtype=np.uint64).tobytes()
                given = data[begin - 20 : begin - 4].tobytes() + rest.ljust(8, b"\0") + weighed
                found = hashlib.blake2b(given, digest_size=4).digest()
                stored = data[begin - 4 : begin]
                if not constants["CHECK"]:
                    stored[:] = np.frombuffer(found, dtype=np.uint8)
                    continue
                good = stored.tobytes() == found
                if constants["KNOWN"]:
                    known = np.from_dlpack(heads)[frame].tobytes()
                    good &= data[begin - 20 : begin - 4].tobytes() == known
            np.from_dlpack(right)[frame] = good


def wrap_launches(
    patch: pytest.MonkeyPatch, wrap: Callable[[Callable[..., None]], Callable[..., None]]
) -> None:
    """Put `wrap(launch)` in the place of `launch` in all files that launch kernels."""
    for module in pkgutil.walk_packages(gpu.__path__, f"{gpu.__name__}."):
        loaded = importlib.import_module(module.name)
        if hasattr(loaded, "launch"):
            patch.setattr(loaded, "launch", wrap(loaded.launch))


@contextmanager
def host_copies(seen: list[int] | None = None) -> Iterator[list[int]]:
    """Inside, the bytes of each tensor that Python reads are noted: on a GPU, a copy and a wait."""
    seen = [] if seen is None else seen
    with pytest.MonkeyPatch.context() as patch:
        for name in ("numpy", "tolist", "item", "__int__", "__float__", "__bool__"):
            patch.setattr(Tensor, name, _noting(getattr(Tensor, name), seen))
        yield seen


def _noting(read: Callable[..., Any], seen: list[int]) -> Callable[..., Any]:
    def reading(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(self.nbytes)
        return read(self, *args, **kwargs)

    return reading


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    """(what comes out, or the error; the arguments' tensors afterwards), of copies of them."""
    given = copy.deepcopy((args, kwargs))
    result: object
    try:
        result = function(*given[0], **given[1])
    except Exception as error:  # to be compared
        result = type(error), str(error)
    return result, [each for each in given[0] if isinstance(each, Tensor)]


def equal(first: object, second: object) -> bool:
    """Whether two outcomes are the same to the bit."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and torch.equal(bits_of(first), bits_of(second))
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(equal(one, two) for one, two in pairs)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, float) and isinstance(second, float):
        return np.float64(first).tobytes() == np.float64(second).tobytes()
    return first == second


def bits_of(values: Tensor) -> Tensor:
    """The bytes of a tensor: -0 is not 0, and a NaN is itself."""
    return as_bytes(values.contiguous().view(-1))


def demand_same(
    function: Callable[..., Any], *args: Any, on_host: int = ON_HOST, **kwargs: Any
) -> Any:
    """What the loop gives, after a check that the kernels give it too, and copy no more bytes than
    `on_host` at a time."""
    expected = outcome(function, *args, **kwargs)
    with kernels(), host_copies() as seen:
        found = outcome(function, *args, **kwargs)
    assert equal(found, expected), f"kernels: {found}\nloop: {expected}"
    assert max(seen, default=0) <= on_host
    return expected[0]
