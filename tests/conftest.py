"""What do all tests share? Compiled loops, and the examples of property-based tests.

`make test` draws the same examples everywhere: whether a change is accepted must not depend on
luck. `make fuzz` draws other ones at each run, to find what nobody has thought of.
"""

from __future__ import annotations

import os

from hypothesis import settings

from gcsim.files import cache_folder

os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "loops"))

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("fuzz", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
