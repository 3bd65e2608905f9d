"""Checks that only payloads pass between workers, and that damaged ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from gcsim.compressors import requests
from gcsim.compressors.conformance.subject import STEPS, Heard, N, Subject, gradients
from gcsim.compressors.lazy_torch import Tensor, torch
from gcsim.compressors.lockstep import lockstep
from gcsim.compressors.mistakes import passed_on
from gcsim.errors import InputError

Tamper = Callable[["Tensor"], "Tensor"]


def only_what_travelled_is_used(subject: Subject) -> None:
    """The last worker, rerun in a new object with copies of its replies, sends and applies the
    same. (The first worker's object also holds a parameter server's state.)"""
    crew = subject.crew(workers=3)
    heard = [crew.heard(gradients(N, 3, t), subject.first + t, share=True) for t in range(STEPS)]
    disturbing = subject.crew(workers=3)  # disturbs whatever workers share besides collectives
    for t in range(STEPS):
        disturbing.step(gradients(N, 3, 300 + t), subject.first + t)
    alone = subject.crew(workers=3)
    for t, (updates, logs) in enumerate(heard):
        exchange = alone.exchanges(gradients(N, 3, t), subject.first + t)[-1]
        update = _replayed(exchange, logs[-1], t).cpu()
        assert torch.equal(update, updates[-1]), (
            f"step {t}: the update depends on more than the replies"
        )


def payloads_are_bytes(subject: Subject) -> None:
    """Gathered, pushed and merged payloads are uint8 `[n]`, and receivers do not change them."""
    crew = subject.crew()
    for t in range(STEPS):
        _, logs = crew.heard(gradients(N, 2, t), subject.first + t)
        for payload in _payloads(logs[0]):
            assert payload.dtype == torch.uint8, f"a payload of {payload.dtype}"
            assert payload.dim() == 1, f"a payload of shape {tuple(payload.shape)}"


def _payloads(log: list[Heard]) -> list[Tensor]:
    """Return the tensors that a worker sent, except in all-reduces."""
    return [sent for heard in log if heard.kind is not requests.AllReduce for sent in heard.sent]


def damaged_payloads_are_refused(subject: Subject) -> None:
    """A cut, lengthened, emptied or altered message raises `InputError`."""
    for name, tamper in _TAMPERS.items():
        for phase_step in _one_of_each_phase(subject):
            _expect_refusal(subject, name, tamper, phase_step)


def payloads_of_another_tensor_are_refused(subject: Subject) -> None:
    """A message of a bucket with other tensors raises `InputError`."""
    other = [(9, 5), (3,)]
    for step in _one_of_each_phase(subject):
        crew = subject.crew(other)
        list(crew.updates(step - subject.first))
        _, logs = crew.heard(gradients(crew.layout.numel, 2, step), step)
        if strange := _payloads(logs[0]):
            tamper = partial(_replaced, max(strange, key=len))
            _expect_refusal(subject, "of another bucket", tamper, step)


def _replaced(other: Tensor, _: Tensor) -> Tensor:
    return other


def _flipped(where: float) -> Tamper:
    def flip(payload: Tensor) -> Tensor:
        changed = payload.clone()
        if changed.numel():
            changed[min(changed.numel() - 1, int(where * changed.numel()))] ^= 4
        return changed

    return flip


_TAMPERS: dict[str, Tamper] = {
    "cut": lambda p: p[:-1],
    "lengthened": lambda p: torch.cat((p, p.new_zeros(1))),
    "emptied": lambda p: p[:0],
    "with its first byte changed": _flipped(0.0),
    "with a byte of the header changed": lambda p: _flipped(5 / max(1, p.numel()))(p),
    "with a byte in the middle changed": _flipped(0.5),
    "with its last byte changed": _flipped(1.0),
}


def _expect_refusal(subject: Subject, how: str, tamper: Tamper, step: int) -> None:
    """Give worker 0 the payload of worker 1 (or the server) after `tamper`, at `step`."""
    *_, (_, expected) = subject.crew().updates(step + 1 - subject.first)
    faulty = subject.crew()
    list(faulty.updates(step - subject.first))
    first, second = faulty.exchanges(gradients(N, 2, step), step)
    touched: list[bool] = []
    try:
        with torch.no_grad():
            updates = lockstep([_tampered(first, tamper, touched), second])
    except InputError as error:
        title = subject.title
        if title not in str(error):
            raise AssertionError(f"the error does not name {title!r}: {error}") from error
        return
    if touched:  # the change may have had no effect, e.g. on a length
        given = updates[0].cpu()
        assert torch.equal(given, expected[0]), f"a payload {how} gave another update"


def _tampered(
    exchange: requests.Exchange, tamper: Tamper, touched: list[bool]
) -> requests.Exchange:
    def second_of(payloads: Iterable[Tensor]) -> list[Tensor]:
        first, second, *others = payloads
        return [first, tamper(second), *others]

    def ask(request: requests.Request) -> Generator[requests.Request, Any, Any]:
        if isinstance(request, requests.PushPull):
            server = request.server
            request = replace(request, server=lambda payloads: server(second_of(payloads)))
        reply = yield request
        if not isinstance(request, requests.AllReduce):
            touched.append(True)
        if isinstance(request, requests.AllGather | requests.AllToAll):
            return second_of(reply)
        return tamper(reply) if isinstance(request, requests.TreeMerge) else reply

    return passed_on(exchange, ask)


def _one_of_each_phase(subject: Subject) -> list[int]:
    """Return a step of each phase among the first few."""
    cls, parameters = subject.compressor, subject.parameters
    found: dict[str, int] = {}
    for step in range(subject.first, subject.first + max(STEPS, cls.window(parameters))):
        found.setdefault(cls.phase(parameters, step), step)
    return list(found.values())


def _replayed(exchange: requests.Exchange, log: list[Heard], step: int) -> Tensor:
    reply: Any = None
    with torch.no_grad():
        for heard in log:
            request = exchange.send(reply)
            for now, before in zip(requests.tensors_sent(request), heard.sent, strict=True):
                same = now.shape == before.shape and torch.equal(now, before)
                assert same, f"step {step}: what a worker sends depends on the other workers"
            reply = heard.reply
        try:
            exchange.send(reply)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # an `Exchange` returns a tensor
    raise AssertionError(f"step {step}: alone, a worker asks for more collectives")


CHECKS = (
    only_what_travelled_is_used,
    payloads_are_bytes,
    damaged_payloads_are_refused,
    payloads_of_another_tensor_are_refused,
)
