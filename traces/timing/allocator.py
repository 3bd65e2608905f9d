"""Keep freed memory for the next tensor, instead of giving it back to the system each time.

glibc serves every block over 32 MB by a fresh mapping and unmaps it when it is freed, so each
temporary of a large bucket pays for all its page faults again: several times the cost of the
arithmetic. Two settings of malloc turn that off for this process. What is kept has the sizes that
one compressor needed for one bucket, though, and may not fit the next: in between it is given back.
None of it changes a result.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1  # from <malloc.h>
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask the C library to keep what is freed; False where it is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))


def give_back_freed_memory() -> bool:
    """Return what is free to the system now; False where the C library is not glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))
