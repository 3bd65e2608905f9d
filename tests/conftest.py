"""Compiled loops are shared by all tests, also by those that give gcsim a cache of their own."""

from __future__ import annotations

import os

from gcsim.files import cache_folder

os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "loops"))
