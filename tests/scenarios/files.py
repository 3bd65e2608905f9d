"""Scenario files of the tests: written and loaded, refused, read back from what they resolve to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gcsim.errors import InputError
from gcsim.scenarios.load import load_scenario
from gcsim.scenarios.reading.document import write
from gcsim.scenarios.scenario import Scenario


def load(folder: Path, text: str, *overrides: str) -> Scenario:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, overrides)


def told(folder: Path, loading: Callable[[], object]) -> list[str]:
    """Problems of what is loaded, places without the folder."""
    with pytest.raises(InputError) as caught:
        loading()
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    """Why it cannot be loaded, places without the folder."""
    return told(folder, lambda: load(folder, text, *overrides))


def check_mistake(folder: Path, text: str, expected: str) -> None:
    """The one problem holds this text, and begins with it where that is a place."""
    (found,) = problems(folder, text)
    assert expected in found
    if expected.startswith("a.yaml"):
        assert found.startswith(expected)


def reread(folder: Path, scenario: Scenario) -> Scenario:
    """What its resolved file loads to, in another place."""
    path = folder / "b.yaml"
    path.write_text(write(scenario.resolved), encoding="utf-8")
    return load_scenario(path)


def warnings(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().replace(f"{folder}/", "") for record in caplog.records]


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)
