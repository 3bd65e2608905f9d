"""Words of `gcsim advise` and `gcsim explain`, and the scenarios that they are about."""

import json
from random import Random

from gcsim.compressors.registry import REGISTRY
from tests.fuzz.case import Kind, Try, choose, write
from tests.fuzz.kinds.scenarios import drawn_compressor, option
from tests.fuzz.mutation import as_yaml, tree, value
from tests.fuzz.small import small

_DRAWS = ("--set", "uncertainty.draws=8")
_WORDS = {
    "--model": ("lenet", "lenet", "lenet", "cnn_digits"),
    "--device": ("v100", "a100_sxm_80gb", "cpu_2core", "h100_sxm"),
    "--network": ("25 Gbit/s", "1gbe", "100 Mbit/s", "nvlink4", "100 bit/s", "1e6 Gbit/s"),
    "--nodes": ("1", "2", "8", "3", "64"),
    "--gpus": ("1", "2", "8", "3"),
    "--batch-size": ("1", "32", "7", "100000"),
    "--cost-per-hour": ("3", "0.01", "1e9"),
}
_ODD = ("0", "-1", "2.5", "nan", "inf", "1e308", "100001", "65", "10 GB", "vgg99", "v1000", "")


def _advise(rng: Random, one: Try) -> None:
    source: list[object] = []
    words: list[object] = []
    if choose(rng, 0.4):
        scenario = small()
        write(one.folder / "s.yaml", as_yaml(tree(rng, scenario) if choose(rng, 0.4) else scenario))
        source = ["s.yaml"]
        if choose(rng, 0.3):
            words += ["--set", option(rng, scenario)]
    for name, known in _WORDS.items():
        if choose(rng, 0.2 if source else 0.8):
            odd = choose(rng, 0.04)
            words += [name, rng.choice(_ODD) if odd else _word(rng, known, 0.05)]
    if choose(rng, 0.1):
        words += ["--json"]
    if choose(rng, 0.1):
        words += ["--save", rng.choice(("mine.yaml", "no/such/folder/mine.yaml", "."))]
    one.gcsim("advise", *source, *words, *_DRAWS, "-q")


def _explain(rng: Random, one: Try) -> None:
    scenario = small()
    if choose(rng, 0.2):
        scenario = tree(rng, scenario)
    write(one.folder / "s.yaml", as_yaml(scenario))
    way = rng.random()
    if way < 0.3:
        method = _word(rng, ("top", "none", "topk", "topk_", "Top", "mine:Mine"))
    elif way < 0.6:
        method = rng.choice(sorted(REGISTRY))
    else:
        entry = drawn_compressor(rng)
        entry = tree(rng, entry) if choose(rng, 0.5) else entry
        method = json.dumps(entry) if choose(rng, 0.9) else str(entry)
    sets = ["--set", option(rng, small())] if choose(rng, 0.2) else []
    one.gcsim("explain", _plain(method), "--scenario", "s.yaml", "-q", *sets)


def _word(rng: Random, known: tuple[str, ...], odd: float = 0.2) -> str:
    word = rng.choice(known)
    return _plain(str(value(rng, word))) if choose(rng, odd) else word


def _plain(word: str) -> str:
    """Without what no command line can hold."""
    return word.replace("\0", "").encode("utf-8", "replace").decode()


ADVISE = Kind(name="advise", make=_advise)
EXPLAIN = Kind(name="explain", make=_explain)
