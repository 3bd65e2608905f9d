"""Tables of a model's layers: CSV with other words."""

from functools import cache
from random import Random

from gcsim.traces.models.registry import shipped_model
from gcsim.traces.models.table import table_text
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import pick
from tests.fuzz.small import written

_RUN = 0.2


def _make(rng: Random, one: Try) -> None:
    write(one.folder / "net.csv", pick(rng, _texts()))
    written(one.folder, model={"layers": "net.csv"})
    done = one.gcsim("check", "s.yaml")
    if done is not None and done.returncode == 0 and choose(rng, _RUN):
        one.run("s.yaml")


@cache
def _texts() -> tuple[str, ...]:
    short = "name,shape,forward_flops\nfc.weight,40x30,2400\nfc.bias,40,0\n"
    return short, table_text(shipped_model("lenet"))


LAYERS = Kind(name="layers", make=_make)
