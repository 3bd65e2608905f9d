"""Tensor files whose checksum needs no second read: the safetensors format
(https://github.com/huggingface/safetensors: eight bytes of header length, a JSON header padded with
spaces, then the tensors' bytes, little endian), hashed while written.

`safetensors.torch.save_file` is not used, so that the length is known before writing, one pass
makes file and SHA-256, and a full disk raises `OSError`. gcsim reads with the safetensors library.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.files import open_file
from gcsim.traces.storage.manifest import StoredFile

Shapes = Sequence[tuple[str, tuple[int, ...]]]

_CODES = {"float32": ("F32", 4), "float16": ("F16", 2)}
_CHUNK = 1 << 20
"""Bytes to hash and write at a time, still in the cache when written."""


def file_length(shapes: Shapes, dtype: str) -> int:
    """Return the bytes of a file with a tensor per name and shape; dtype "float32" or "float16"."""
    elements = sum(math.prod(shape) for _, shape in shapes)
    return len(_header(shapes, dtype)) + elements * _CODES[dtype][1]


def all_finite(tensor: Tensor) -> bool:
    """Return whether no element is NaN or infinite: min and max are finite (NaN propagates)."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def write_tensors(path: Path, shapes: Shapes, dtype: str, tensors: Sequence[Tensor]) -> StoredFile:
    """Write CPU tensors of that dtype in the order of `shapes`; raises `OSError`."""
    digest = hashlib.sha256()
    nbytes = 0
    with path.open("wb", buffering=0) as file:
        header = memoryview(_header(shapes, dtype))
        for block in (header, *(_bytes(tensor) for tensor in tensors)):
            for start in range(0, len(block), _CHUNK):
                piece = block[start : start + _CHUNK]
                digest.update(piece)
                written = 0
                while written < len(piece):
                    written += file.write(piece[written:]) or 0
            nbytes += len(block)
    return StoredFile(nbytes=nbytes, sha256=digest.hexdigest())


def measure_file(path: Path) -> StoredFile:
    """Return length and SHA-256 of an existing file; raises `OSError`."""
    with open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(nbytes=path.stat().st_size, sha256=digest)


def _header(shapes: Shapes, dtype: str) -> bytes:
    code, width = _CODES[dtype]
    entries = {}
    begin = 0
    for name, shape in shapes:
        end = begin + width * math.prod(shape)
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().view(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]  # a buffer it is
