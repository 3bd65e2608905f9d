"""What if a frame lies, and its checksum agrees? It is refused or decoded; nothing else happens.

The checksum finds what the network changed; what is tested here are the checks behind it. Compiled
loops do not check indices: run this file with NUMBA_BOUNDSCHECK=1 (and a NUMBA_CACHE_DIR of its
own) to see every access outside an array as an IndexError.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gcsim.compressors.bucket import Bucket
from gcsim.compressors.coding.frames import Frame, pack_frame, read_frames
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.registry import REGISTRY
from gcsim.compressors.requests import AllReduce, Exchange, PushPull, TreeMerge
from gcsim.errors import InputError
from tests.compressors.shared import Team

Server = Callable[[Iterable[Tensor]], Tensor]
Merge = Callable[[Tensor, Tensor], Tensor]
Lie = Callable[[Tensor], Tensor]
SHAPES = [(40, 30), (501,), (0,), (7, 1, 3)]
TRIES = 8
EACH_STEP: dict[str, dict[str, Any]] = {
    "qsparse_local_sgd": {"interval": 1},
    "deepreduce": {"skip": 10},
    "gtopk": {"ratio": 0.02},
}
"""Parameters with which all of a method's message formats travel, each step."""


def lying(payload: Tensor, rng: random.Random) -> Tensor:
    """The payload with one of its frames changed; as it is when it is not made of frames."""
    try:
        frames = list(read_frames(payload))
    except InputError:
        return payload
    chosen = rng.randrange(len(frames))
    return torch.cat([_again(f, rng if i == chosen else None) for i, f in enumerate(frames)])


def _again(frame: Frame, rng: random.Random | None) -> Tensor:
    body, numel = frame.body.clone(), frame.numel
    nonzero, flags, params = frame.nonzero, frame.flags, frame.params
    if rng is not None:
        kind = rng.choice(["bytes", "bytes", "ones", "noise", "longer", "shorter", "count", "head"])
        length = body.numel()
        if kind == "bytes" and length:
            for _ in range(rng.choice([1, 4, 40])):
                body[rng.randrange(length)] = rng.randrange(256)
        elif kind == "ones" and length:
            at = rng.randrange(length)
            body[at : at + 8] = 255
        elif kind == "noise":
            body = torch.tensor(list(rng.randbytes(length)), dtype=torch.uint8)
        elif kind == "longer":
            more = list(rng.randbytes(rng.choice([1, 4, 100])))
            body = torch.cat((body, torch.tensor(more, dtype=torch.uint8)))
        elif kind == "shorter" and length:
            body = body[: rng.randrange(length)]
        elif kind == "count":
            nonzero = rng.choice([0, max(0, nonzero - 1), min(numel, nonzero + 1), numel])
        else:
            flags, params = rng.randrange(256), rng.choice([0, 1, 7, 65535])
    return pack_frame(frame.codec, body, numel=numel, nonzero=nonzero, flags=flags, params=params)


def deceived(server: Server, lie: Lie) -> Server:
    """The server, whose payloads lie."""
    return lambda payloads: server([lie(payload) for payload in payloads])


def half_deceived(merge: Merge, lie: Lie) -> Merge:
    """The merge, one of whose payloads lies."""
    return lambda own, received: merge(own, lie(received))


def among_liars(exchange: Exchange, rng: random.Random) -> Exchange:
    """The exchange, half of whose received payloads lie; so do those that its server receives."""

    def perhaps(payload: Tensor) -> Tensor:
        return lying(payload, rng) if rng.random() < 0.5 else payload

    reply: Any = None
    while True:
        try:
            request = exchange.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # an `Exchange` returns a tensor
        if isinstance(request, PushPull):
            request = replace(request, server=deceived(request.server, perhaps))
        elif isinstance(request, TreeMerge):
            request = replace(request, merge=half_deceived(request.merge, perhaps))
        reply = yield request
        if isinstance(reply, Tensor):
            reply = reply if isinstance(request, AllReduce) else perhaps(reply)
        else:
            reply = [perhaps(payload) for payload in reply]


@pytest.mark.parametrize("name", REGISTRY)
def test_a_frame_that_lies_is_refused_or_decoded(name: str) -> None:
    for trial in range(TRIES):
        rng = random.Random(f"{name} {trial}")
        generator = torch.Generator().manual_seed(trial)
        crew = Team(name, SHAPES, workers=2, **EACH_STEP.get(name, {}))
        n = crew.layout.numel
        try:
            for step in range(2):
                exchanges = []
                for worker in crew.workers:
                    gradient = torch.randn(n, generator=generator)
                    moment = 0.5 * gradient.square() if worker.requires else None
                    bucket = Bucket(layout=crew.layout, gradient=gradient, second_moment=moment)
                    exchanges.append(among_liars(worker.exchange(bucket, step), rng))
                for update in lockstep(exchanges):
                    assert update.shape == (n,)
        except InputError:
            continue
