"""Make `traces/tasks/text.xz`: gcsim's own sources at a commit, which text tasks learn.

    python tests/benchmarks/frozen_text.py d17d639

The file is data: it does not follow the sources. Another text is another digest in
`traces/tasks/text.py`, and recordings, fits and pages that are made anew. Takes ten seconds.
"""

import hashlib
import io
import lzma
import subprocess
import sys
import tarfile

from gcsim.traces.tasks.text import FILE

ROOMS = ("analysis", "compressors", "gcsim", "scenarios", "simulator", "traces")


def frozen(commit: str) -> bytes:
    """The Python files of the rooms, one after the other, in the order of their paths."""
    archive = subprocess.run(
        ["git", "archive", commit, *ROOMS], check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = sorted(
            (member for member in files if member.isfile() and member.name.endswith(".py")),
            key=lambda member: member.name,
        )
        return b"".join(file.read() for member in members if (file := files.extractfile(member)))


if __name__ == "__main__":
    packed = lzma.compress(frozen(sys.argv[1]), preset=9 | lzma.PRESET_EXTREME)
    FILE.write_bytes(packed)
    print(f"{len(packed):,} bytes, SHA-256 {hashlib.sha256(packed).hexdigest()}")
