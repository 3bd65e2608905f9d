"""Settings of malloc that keep freed memory for the next tensor, not returning it to the system.

glibc maps every block over 32 MB anew and unmaps it when freed, so each temporary of a large bucket
causes page faults that cost several times its arithmetic. Two settings turn that off. The kept
memory has the sizes of one compressor and bucket and may not fit the next, so it is returned in
between. Results do not change.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1  # from <malloc.h>
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory; return False if it is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT))


def give_back_freed_memory() -> bool:
    """Return free memory to the system now; return False if the C library is not glibc."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))
