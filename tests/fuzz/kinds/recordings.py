"""What `gcsim record` is asked to store; what it stores must be accepted as gradients."""

from random import Random

from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.mutation import as_yaml, tree
from tests.fuzz.small import small, written

_LIVE = {"source": "live", "workers": 2, "iterations": 1, "warmup_steps": 1}
_OPTIONS = (
    ("--dtype", "bfloat16"), ("--dtype", "float16"), ("--dtype", "float8"), ("--max-size", "1 MiB"),
    ("--max-size", "1 B"), ("--max-size", "nan"), ("--max-size", "1e30 GiB"), ("--iterations", "2"),
    ("--iterations", "0"), ("--workers", "3"), ("--workers", "-1"), ("--second-moments",),
    ("--times",),
)  # fmt: skip
_FOLDERS = ("a/b/trace", "s.yaml", "s.yaml/trace", ".", "/dev/null", "")


def _make(rng: Random, one: Try) -> None:
    gradients = tree(rng, _LIVE) if choose(rng, 0.4) else dict(_LIVE)
    if isinstance(gradients, dict):
        for key in _LIVE.keys() & gradients.keys() - {"source"}:
            if isinstance(gradients[key], int) and gradients[key] > 3:
                gradients[key] = 3  # as long as a try may take
    scenario = small(gradients=gradients, batch_size=4)
    as_meant = choose(rng, 0.8)
    scenario = scenario if as_meant else tree(rng, scenario)
    write(one.folder / "s.yaml", as_yaml(scenario))
    options = [word for option in rng.sample(_OPTIONS, rng.choice((0, 0, 1, 2))) for word in option]
    folder = rng.choice(_FOLDERS) if choose(rng, 0.3) else "trace"
    done = one.gcsim("record", "s.yaml", "-o", folder, "-q", *options)
    if done is not None and done.returncode == 0 and as_meant:
        written(one.folder, batch_size=4, gradients={"source": "recorded", "trace": folder})
        checked = one.gcsim("check", "s.yaml")
        if checked is not None and checked.returncode != 0:
            one.found.append(f"a recording is refused: {checked.stderr.splitlines()[-1][:200]}")


RECORD = Kind(name="record", make=_make)
