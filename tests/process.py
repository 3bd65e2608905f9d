"""Interpreters of their own, for what must not be in this process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OVER_LOOPBACK: dict[str, Any] = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
"""Variables of a script whose ranks meet on this machine."""


def printed(
    *arguments: object, folder: Path | None = None, seconds: float = 900, **variables: str
) -> str:
    """What `python ARGUMENTS` prints, which ends well, in `folder`, with variables beside ours."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env={**os.environ, **variables},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
