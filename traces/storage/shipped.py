"""Which recorded gradients come with gcsim? A folder each beside this file, found by its name.

Four workers with 32 samples each, one iteration, stored in half precision: early, in the middle
and late in a short training. `recording/make_shipped.py` made them.
"""

from __future__ import annotations

from pathlib import Path

from gcsim.traces.storage.manifest import MANIFEST

FOLDER = Path(__file__).parent.parent / "shipped"


def shipped_traces() -> dict[str, Path]:
    """The shipped traces' folders by name, sorted."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob(f"*/{MANIFEST}"))}
