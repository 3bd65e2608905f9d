"""`gcsim list tasks`: what live training can learn, read without torch."""

import json

import pytest

from gcsim.cli.list import Kind, details, entries
from gcsim.errors import InputError
from gcsim.traces.models.registry import MODELS
from gcsim.traces.tasks.registry import TASKS
from tests.command import invoked


@pytest.mark.parametrize("columns", ["80", "120"])
def test_every_task_is_listed_with_its_input_and_within_the_width(columns: str) -> None:
    shown = invoked(["list", "tasks"], env={"COLUMNS": columns}).stdout
    for task in TASKS.values():
        assert task.name in shown
        assert f"input: {task.input}" in shown
    assert max(map(len, shown.splitlines())) <= int(columns)


def test_each_model_is_the_default_of_one_task() -> None:
    named = [model for entry in entries(Kind.tasks) for model in entry["default_of"]]
    assert sorted(named) == sorted(MODELS)


def test_a_task_is_shown_alone_and_as_json() -> None:
    shown = invoked(["list", "tasks", "words", "--json"])
    assert json.loads(shown.stdout) == details(Kind.tasks, "words")
    assert "input: tokens; default of " in invoked(["list", "tasks", "words"]).stdout


def test_a_mistyped_task_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'words'"):
        details(Kind.tasks, "wrods")
