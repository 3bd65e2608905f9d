"""Trainings with overflows, and trainings that are saved and go on: each function runs on every
rank with one method, and returns what was wrong.

Good iterations have the gradients of `plan.gradients` with numbers 0, 1, ...; the first of a
training is exchanged uncompressed.
"""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gcsim
from gcsim.compressors.base import Compressor
from gcsim.compressors.bucket import Bucket
from gcsim.compressors.requests import AllReduce, Exchange
from gcsim.errors import InputError
from tests.compressors.ddp.plan import PROBE, SEED, end_groups, gradients, planned, same_bits

BAD = {
    # In the place of iteration 0, and after iterations 1 and 2: rank, tensor, and value of an
    # element. Tensor 0 is in the bucket that is exchanged last, tensor 7 in the first one.
    0: [(1, 0, float("inf"))],
    1: [(0, 7, float("nan"))],
    2: [(0, 0, float("-inf")), (1, 4, float("nan"))],
}
LAST = 4
SAVED = 2
"""The iteration after which a training is saved."""
Hook = Any
Make = Callable[[], Hook]


def gradients_of(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def wrong_bits(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[int]:
    """Numbers of the tensors that differ."""
    pairs = enumerate(zip(got, wanted, strict=True))
    return [number for number, (one, other) in pairs if not same_bits(one, other)]


def trained(
    model: DistributedDataParallel, rank: int, numbers: Sequence[int]
) -> list[list[Tensor]]:
    found = []
    for number in numbers:
        model.zero_grad()
        model(gradients(number, rank)).backward()
        found.append(gradients_of(model))
    return found


def bad_gradients(number: int, rank: int) -> list[Tensor]:
    """Those of iteration `number`, and what is not finite of this rank."""
    found = gradients(number, rank)
    for where, tensor, value in BAD[number]:
        if where == rank:
            found[tensor].view(-1)[number] = value
    return found


# --- overflows ---------------------------------------------------------------------------


def overflows(
    rank: int, make: Callable[..., Hook], wanted: Sequence[Sequence[Tensor]]
) -> Iterator[str]:
    """With a scaler: as if the bad iterations were not there; `wanted` are updates without them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    model = planned()
    hook = make(scaler=scaler).register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(LAST + 1):
        if number > 0:
            optimizer.zero_grad()
            scaler.scale(model(gradients(number, rank))).backward()
            scaler.unscale_(optimizer)
            if odd := wrong_bits(gradients_of(model), wanted[number]):
                yield f"after iteration {number}: tensors {odd} differ from a training without"
            scaler.update()
        if number not in BAD:
            continue
        step, scale = hook.step, scaler.get_scale()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(model(bad_gradients(number, rank))).backward()
        if not all(bool(one.isinf().all()) for one in gradients_of(model)):
            yield f"iteration after {number}: not all gradients are infinity"
        scaler.step(optimizer)
        scaler.update()
        if wrong_bits([p.detach() for p in model.parameters()], before):
            yield f"iteration after {number}: the optimiser has stepped"
        if scaler.get_scale() != scale / 2:
            yield f"iteration after {number}: scale {scale}, then {scaler.get_scale()}"
        if number > 0 and hook.step != step:
            yield f"iteration after {number}: step {step}, then {hook.step}"


def skips(
    rank: int, make: Callable[..., Hook], wanted: Sequence[Sequence[Tensor]], *, refuses: bool
) -> Iterator[str]:
    """A loop that catches the error, or looks at its gradients, and leaves bad iterations out."""
    model = planned()
    make(check_finite=refuses).register(model)
    for number in range(LAST + 1):
        if number > 0:
            (got,) = trained(model, rank, [number])
            if odd := wrong_bits(got, wanted[number]):
                yield f"after iteration {number}: tensors {odd} differ from a training without"
        if number not in BAD:
            continue
        model.zero_grad()
        said = ""
        try:
            model(bad_gradients(number, rank)).backward()
        except RuntimeError as error:
            said = str(error)
        guilty = [
            f"rank {where}, tensors.{tensor}: error: 1 of" for where, tensor, _ in BAD[number]
        ]
        if refuses and not all(each in said for each in guilty):
            yield f"iteration after {number}: not {guilty}, but {said!r}"
        elif not refuses and (said or not all(bool(g.isinf().all()) for g in gradients_of(model))):
            yield f"iteration after {number}: not infinity: {said}"


# --- states ------------------------------------------------------------------------------


def by_state_dict(model: DistributedDataParallel, hook: Hook, make: Make) -> Hook:
    file = io.BytesIO()
    torch.save(hook.state_dict(), file)
    file.seek(0)
    fresh = make()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return planned(), fresh


def by_state_dict_afterwards(model: DistributedDataParallel, hook: Hook, make: Make) -> Any:
    """Loaded into a hook that is registered already."""
    state = hook.state_dict()
    other, fresh = planned(), make()
    fresh.register(other)
    fresh.load_state_dict(state)
    return other, fresh


def by_pickle(model: DistributedDataParallel, hook: Hook, make: Make) -> Any:
    return planned(), pickle.loads(pickle.dumps(hook))  # noqa: S301 - the test's own


def with_the_model(model: DistributedDataParallel, hook: Hook, make: Make) -> Any:
    """The model and its hook in one file; the file is the test's own."""
    file = io.BytesIO()
    torch.save({"model": model, "hook": hook}, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    return found["model"], found["hook"]


def by_deepcopy(model: DistributedDataParallel, hook: Hook, make: Make) -> Any:
    memo: dict[int, Any] = {}
    return copy.deepcopy(model, memo), copy.deepcopy(hook, memo)


WAYS = (by_state_dict, by_state_dict_afterwards, by_pickle, with_the_model, by_deepcopy)


def saved(
    rank: int, make: Make, way: Callable[..., Any], wanted: list[list[Tensor]]
) -> Iterator[str]:
    """A training that is saved after iteration `SAVED`, in one way, and goes on to the same bits
    as the training itself, whose updates are put into `wanted`."""
    model = planned()
    hook = make().register(model)
    wanted += trained(model, rank, range(SAVED + 1))
    step, (other, fresh) = hook.step, way(model, hook, make)
    wanted += trained(model, rank, range(SAVED + 1, LAST + 1))
    if not fresh._slices:
        fresh.register(other)
    if fresh.step != step:
        yield f"{way.__name__}: step {step}, then {fresh.step}"
    for number, got in enumerate(trained(other, rank, range(SAVED + 1, LAST + 1)), SAVED + 1):
        if odd := wrong_bits(got, wanted[number]):
            yield f"{way.__name__}: iteration {number}: tensors {odd} differ"


# --- with one method each ----------------------------------------------------------------


class Holds(Compressor):
    """Keeps what can be neither copied nor saved."""

    about = PROBE

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock = threading.Lock()

    def exchange(self, bucket: Bucket, step: int) -> Exchange:
        mean: Tensor = yield AllReduce(tensor=bucket.gradient / self.worker.count)
        return mean


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (InputError, RuntimeError) as error:
        return str(error)
    return "nothing"


def states_of_others_are_refused(rank: int) -> Iterator[str]:
    model = planned()
    hook = gcsim.ddp_hook("topk", seed=SEED, ratio=0.1).register(model)
    trained(model, rank, range(3))
    state, count = hook.state_dict(), dist.get_world_size()
    other_rank = (rank + 1) % count
    first = state["buckets"][0]
    damaged = {**first, "state": [["tensor", "77"]]}
    for what, change, said in (
        ("workers", {"workers": count + 2}, f"is of {count + 2} ranks, now {count} train"),
        ("rank", {"rank": other_rank}, f"is of rank {other_rank}, this is rank {rank}"),
        (
            "rank 1's alone",
            {"rank": 0},
            f"is of rank 0, this is rank {rank}" if rank else "differs",
        ),
        ("seed", {"seed": 1}, "seed: error: the state has 1, the hook 11"),
        ("ratio", {"parameters": {}}, "parameters: error: the state has {}"),
        ("schema", {"schema": 1}, "is not a hook's state of schema 2"),
        ("model", {"buckets": {0: first}}, "the state is of another model: tensors."),
        ("tensors", {"buckets": {**state["buckets"], 0: damaged}}, "state: error: is damaged"),
    ):
        fresh = gcsim.ddp_hook("topk", seed=SEED, ratio=0.1)
        for target in (fresh, hook):  # one that is to be registered, one that is

            def take(target: Hook = target, change: Any = change) -> None:
                target.load_state_dict({**state, **change})
                target.register(planned())

            if said not in (told := refused(take)):
                yield f"{what}: {told}"
    fresh = gcsim.ddp_hook("topk", seed=SEED, ratio=0.1)
    if rank:
        fresh.load_state_dict(state)
    told = refused(lambda: fresh.register(planned()))
    if "state: error: differs between rank 0" not in told:
        yield f"a state on some ranks alone: {told}"
    (update,) = trained(model, rank, [3])
    other = planned()
    gcsim.ddp_hook("topk", seed=SEED, ratio=0.1).register(other)
    if wrong_bits(update, trained(other, rank, range(4))[3]):
        yield "a refused state has changed the hook"


def a_method_without_memory_goes_on_among_other_ranks(rank: int) -> Iterator[str]:
    model = planned()
    hook = gcsim.ddp_hook("qsgd", seed=SEED).register(model)
    trained(model, rank, range(3))
    state = {**hook.state_dict(), "workers": 64, "rank": 63}
    other = planned()
    fresh = gcsim.ddp_hook("qsgd", seed=SEED)
    fresh.load_state_dict(state)
    fresh.register(other)
    if wrong_bits(*trained(model, rank, [3]), *trained(other, rank, [3])):
        yield "other bits"


def goes_on_with(**options: Any) -> Callable[[int], Iterator[str]]:
    """With options of DDP's: saved after three iterations, and after an error that was caught."""

    def situation(rank: int) -> Iterator[str]:
        def make() -> Hook:
            return gcsim.ddp_hook("topk", seed=SEED, ratio=0.1)

        model, other = planned(**options), planned(**options)
        hook, fresh = make().register(model), make()
        trained(model, rank, range(3))
        fresh.load_state_dict(hook.state_dict())
        fresh.register(other)
        for number in range(3, 6):
            for each in (model, other):
                loss = each(bad_gradients(1, rank))
                told = refused(loss.backward)
                if "rank 0, tensors.7" not in told:
                    yield f"{number}: {told}"
            if wrong_bits(*trained(model, rank, [number]), *trained(other, rank, [number])):
                yield f"{number}: other bits"

    return situation


def sums_beyond_16_bits_are_an_overflow(rank: int) -> Iterator[str]:
    """Each rank's gradient fits into float16, and the sum of two does not."""
    for name in ("fp16", "torch_fp16"):
        model = planned()
        hook = gcsim.ddp_hook(name).register(model)
        for number in range(3):
            wide = gradients(number, rank)
            wide[3].view(-1)[2] = 6e4 if name == "fp16" else 6e4 * dist.get_world_size()
            loss = model(wide)
            told = refused(loss.backward)
            if (told == "nothing") != (number == 0):  # which is exchanged uncompressed
                yield f"{name}: {told}"
            if number and "lower the loss scale, or choose a method" not in told:
                yield f"{name}: {told}"
            if hook.step != -1:
                yield f"{name}: step {hook.step}"


def members_that_cannot_be_copied_or_saved_are_named(rank: int) -> Iterator[str]:
    model = planned()
    hook = gcsim.ddp_hook(Holds).register(model)
    trained(model, rank, range(2))
    if "Probe holds a _thread.lock, which a state cannot" not in (told := refused(hook.state_dict)):
        yield told
    if "Holds raised TypeError: cannot pickle '_thread.lock'" not in (
        told := refused(lambda: trained(model, rank, [2]))
    ):
        yield told


SITUATIONS = {
    "static graph": goes_on_with(static_graph=True),
    "views of buckets": goes_on_with(gradient_as_bucket_view=True),
    "unused parameters looked for": goes_on_with(find_unused_parameters=True),
    **{
        one.__name__.replace("_", " "): one
        for one in (
            states_of_others_are_refused,
            a_method_without_memory_goes_on_among_other_ranks,
            sums_beyond_16_bits_are_an_overflow,
            members_that_cannot_be_copied_or_saved_are_named,
        )
    },
}


def situations(rank: int) -> Iterator[Any]:
    """What was wrong in each."""
    for one in SITUATIONS.values():
        yield list(one(rank))
        end_groups()


# --- all of it ---------------------------------------------------------------------------


def trials(rank: int, cases: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[Any]:
    """Problems of each method: one by one, on a group that all share.

    The hook saves and leaves out alike for all, so that ways to save, and loops with a scaler, with
    an error to catch and without, take turns.
    """
    group = dist.new_group(backend="gloo")
    loops = (overflows, partial(skips, refuses=True), partial(skips, refuses=False))
    for number, (name, parameters) in enumerate(cases):

        def make(name: str = name, parameters: Any = parameters, **options: Any) -> Hook:
            return gcsim.ddp_hook(name, seed=SEED, process_group=group, **options, **parameters)

        wanted: list[list[Tensor]] = []
        found = [*saved(rank, make, WAYS[number % len(WAYS)], wanted)]
        found += loops[number % len(loops)](rank, make, wanted)
        end_groups(group)
        yield found
