"""How do other people's training loops record gradients, or train with a compressor?

A file a framework, imported by nothing else: gcsim needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def framework(*packages: str, extra: str) -> Any:
    """The first of these packages that is installed, imported.

    Raises `ModuleNotFoundError` that says what to install; `extra` is gcsim's.
    """
    for package in packages:
        try:
            return import_module(package)
        except ModuleNotFoundError as error:
            if error.name is None or not package.startswith(error.name):
                raise  # it is there, and lacks something itself
    raise ModuleNotFoundError(
        f"gcsim.integrations.{extra} needs {packages[0].partition('.')[0]}, which is not installed:"
        f" pip install 'gcsim[{extra}]'",
        name=packages[0],
    )
