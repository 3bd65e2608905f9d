"""The README as a package index shows it; all else is said in `pyproject.toml`.

An index has the page alone. So what links to a file of the repository is its text there, and a
picture that lies in the repository is left out.
"""

import re
from pathlib import Path

from setuptools import setup

_TO_A_FILE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)[^)]*\)")

readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(
    long_description=_TO_A_FILE.sub(lambda link: "" if link[1] else link[2], readme),
    long_description_content_type="text/markdown",
)
