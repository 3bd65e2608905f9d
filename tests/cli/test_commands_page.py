"""docs/commands.md is what the program says of itself."""

from pathlib import Path

import typer.cli
from typer.testing import CliRunner

STORED = Path(__file__).resolve().parents[2] / "docs/commands.md"


def test_the_page_is_current_and_nothing_in_it_is_cut_off(tmp_path: Path) -> None:
    made = tmp_path / "commands.md"
    words = ["gcsim.cli.app", "utils", "docs", "--name", "gcsim", "--title", "Commands"]
    done = CliRunner().invoke(typer.cli.app, [*words, "--output", str(made)])
    assert done.exit_code == 0, done.output
    page = STORED.read_text(encoding="utf-8")
    assert page == made.read_text(encoding="utf-8"), "run: make commands"
    cut = [line for line in page.splitlines() if line.startswith("* `") and line.endswith("...")]
    assert not cut, "45 characters are room for the first sentence of a command's docstring"
