"""Keep freed memory for the next tensor, instead of returning it to the system each time.

glibc maps every block over 32 MB afresh and unmaps it when freed, so each temporary of a large
bucket pays for all its page faults: several times the arithmetic's cost. Two settings of malloc
turn that off. Kept memory has one compressor's and bucket's sizes and may not fit the next: in
between it is returned. No result changes.
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
