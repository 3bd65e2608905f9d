"""Compressors and models of users: faulty ones (`tests/mistakes.py`), and more faults in them."""

from random import Random

from tests.fuzz.case import Kind, Try, choose
from tests.fuzz.mutation import lines
from tests.mistakes import COMPRESSORS, MODELS, write


def _make(rng: Random, one: Try) -> None:
    model = choose(rng, 0.3)
    text = rng.choice(sorted((MODELS if model else COMPRESSORS).values()))
    for _ in range(rng.randrange(3)):
        head, mark, body = text.partition("class Mine")
        text = head + mark + lines(rng, body)
    write(one.folder, "mine", text, model=model)
    if not model and choose(rng, 0.3):
        one.process("check", "mine:Mine")
        return
    done = one.process("run", "s.yaml", "-q", "--no-cache", "-o", "out")
    if done is not None and done.returncode == 0:
        one.look_at(one.folder / "out")


USER_CODE = Kind(name="user_code", make=_make, one_in=100)
