"""Deployed hooks with drawn methods, parameters, models and gradients, on one rank of Gloo."""

import math
import warnings
from random import Random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gcsim import ddp_hook
from gcsim.errors import InputError
from tests.fuzz.case import Kind, Try, choose
from tests.fuzz.kinds.scenarios import drawn_compressor
from tests.fuzz.mutation import tree

_STEPS = 5
_USUAL = (1.0, 1.0, 1.0, 0.0, 1e-3, 1e-20, 1e3)
_EXTREME = (1e-45, 1e30, 3e38, math.inf, math.nan)


def _make(rng: Random, one: Try) -> None:
    entry = drawn_compressor(rng)
    entry = tree(rng, entry) if choose(rng, 0.3) else entry
    seed = rng.choice((0, 1, 2**31, 2**62))
    try:
        hook = ddp_hook(entry, seed=seed, check_finite=choose(rng, 0.8))
    except InputError:
        one.ends.append("hook refused")
        return
    dist.init_process_group("gloo", init_method=f"file://{one.folder}/met", rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.ends.append(_trained(rng, one, hook))
    finally:
        dist.destroy_process_group()


def _trained(rng: Random, one: Try, hook: object) -> str:
    torch.manual_seed(rng.randrange(1000))
    wide = rng.choice((1, 3, 16, 70))
    layers = [nn.Linear(3, wide), *([nn.ReLU()] if choose(rng, 0.5) else []), nn.Linear(wide, 2)]
    net = nn.Sequential(*layers).to(rng.choice((torch.float32,) * 3 + (torch.bfloat16,)))
    if choose(rng, 0.2):
        next(iter(net.parameters())).requires_grad_(False)
    dtype = next(iter(net.parameters())).dtype
    model = DistributedDataParallel(net, bucket_cap_mb=rng.choice((25, 0.0001)))
    try:
        hook.register(model)  # type: ignore[attr-defined]
    except InputError:
        return "hook not registered"
    usual = True
    for _ in range(_STEPS):
        scale = rng.choice(_USUAL if choose(rng, 0.9) else _EXTREME)
        usual = usual and scale in _USUAL
        model.zero_grad()
        loss = (model(torch.randn(4, 3, dtype=dtype)) ** 2).mean()
        hook.loss = float(loss.detach())  # type: ignore[attr-defined]
        try:
            (scale * loss).backward()
        except RuntimeError as error:
            if usual or "error" not in str(error).lower():
                one.found.append(f"hook: {str(error).splitlines()[0][:200]}")
            return "hook failed"
        wrong = any(p.grad is not None and not p.grad.isfinite().all() for p in net.parameters())
        if usual and wrong:
            one.found.append("hook: a finite gradient becomes an update that is not")
            return "hook failed"
    hook.measured().write(one.folder / "hook.json")  # type: ignore[attr-defined]
    return "hook trained"


HOOK = Kind(name="hook", make=_make)
