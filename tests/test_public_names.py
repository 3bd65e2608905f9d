"""What a user imports: every public name is there, costs what it needs and no more."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from tests.process import printed

FACES = ("gcsim", "gcsim.compressors", "gcsim.simulator.collectives")


def typed_names(module: object) -> dict[str, tuple[str, str]]:
    """By name: where the imports under TYPE_CHECKING take it from, and what it is called there."""
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in blocks[-1].body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (str(one.module), alias.name)
        for one in imports
        for alias in one.names
    }


@pytest.mark.parametrize("face", FACES)
def test_a_type_checker_and_python_see_the_same_names(face: str) -> None:
    module = import_module(face)
    typed = typed_names(module)
    assert set(typed) == set(dir(module)) - {"__version__"}
    assert dir(module) == module.__all__
    for name, (there, original) in typed.items():
        assert getattr(module, name) is getattr(import_module(there), original), name


def test_dir_of_the_package_is_what_is_public() -> None:
    import gcsim

    assert dir(gcsim) == [
        "Advice", "Compressor", "GcsimError", "InputError", "Result", "SweepResult",
        "TrainingResult", "__version__", "advise", "ddp_hook", "load_scenario", "record",
        "record_scenario", "run", "sweep", "train",
    ]  # fmt: skip
    with pytest.raises(AttributeError, match="no attribute 'simulate'"):
        _ = gcsim.simulate


def test_a_compressor_is_defined_without_torch_and_without_compiling() -> None:
    code = (
        "import sys\n"
        "from gcsim.compressors import About, AllReduce, Compressor, Field, Parameters\n"
        "class Mine(Parameters):\n    ratio: float = Field(0.1)\n"
        "class Own(Compressor[Mine]):\n    def exchange(self, bucket, step): ...\n"
        "assert Own.Parameters is Mine\n"
        "class Inherits(Own): ...\n"
        "assert Inherits.Parameters is Mine\n"
        "print(sorted({'torch', 'numba', 'scipy', 'matplotlib'} & set(sys.modules)))\n"
    )
    assert printed("-c", code) == "[]\n"
