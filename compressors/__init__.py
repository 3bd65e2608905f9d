"""What goes on the wire? Compression methods, and the collectives that they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcsim.compressors.conformance import check as check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name == "check":
        from gcsim.compressors.conformance import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
