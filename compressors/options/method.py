"""A chosen method: a compressor with validated parameters and options.

    {kind: powersgd, rank: 2, dense_steps: 0.1, payload: fp16,
     dense_tensors: {below: 2048, names: ["*.bias"]}}
    {kind: topk, ratio: 0.001, warm_up: {steps: 200, from: 0.25}}

Options are written next to the method's own parameters, in scenarios and in `gcsim.ddp_hook`;
`optioned.py` implements them. Without options neither torch nor numba is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializationInfo,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from gcsim.compressors.base import Compressor, CompressorParameters, Ratio
from gcsim.compressors.dense import Dense
from gcsim.compressors.registry import REGISTRY, checked_parameters, compressor_class
from gcsim.errors import InputError, Problem, did_you_mean

HalfFormat = Literal["fp16", "bf16"]


def _steps(given: Any) -> Any:
    whole = isinstance(given, int) and not isinstance(given, bool) and given >= 1
    if not whole and not (isinstance(given, float) and 0 < given < 1):
        raise ValueError("write a number of steps, 1 or more, or a share of them, such as 0.1")
    return given


class Kept(CompressorParameters):
    names: tuple[str, ...] = Field((), description="patterns of tensor names, such as *.bias")
    below: int = Field(0, ge=0, description="tensors with fewer elements than this")

    @model_validator(mode="before")
    @classmethod
    def _said(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not (given.get("names") or given.get("below")):
            raise ValueError("write names: [PATTERN, ...], or below: ELEMENTS, or both")
        return given


_Steps = Annotated[int | float, BeforeValidator(_steps)]
SHARES = ("ratio", "proportion", "drop_rate")
"""Parameters for the share of a tensor to send; the last one is the share not sent."""


class WarmUp(CompressorParameters):
    """Steps in which the share sent falls exponentially to the method's own, as in DGC (Y. Lin et
    al., arXiv:1712.01887, section 3.3), but a little in each step."""

    steps: _Steps = Field(description="steps until the final share; below 1: a share of all steps")
    first: Ratio = Field(0.25, alias="from", description="share sent in the first step")

    def share(self, step: int, final: float) -> float:
        """Return the share at a step of the method, counted from 0."""
        if not isinstance(self.steps, int) or step >= self.steps:
            return final
        return float(self.first * (final / self.first) ** (step / self.steps))


class Options(CompressorParameters):
    """Options of any method, with the method's own parameters; serialised as one mapping."""

    dense_steps: _Steps | None = Field(
        None, description="dense steps before the method starts; below 1: a share of all steps"
    )
    payload: HalfFormat | None = Field(None, description="16-bit format for float32 all-reduces")
    dense_tensors: Kept | None = Field(
        None, description="tensors exchanged dense", examples=[{"names": ["*.bias"], "below": 2048}]
    )
    warm_up: WarmUp | None = Field(
        None, description="first steps with a larger share", examples=[{"steps": 200, "from": 0.25}]
    )
    _own: Method = PrivateAttr()

    @property
    def own(self) -> Method:
        return self._own

    @property
    def before(self) -> int:
        """Dense steps before the method starts; 0 if they are a share of an unknown total."""
        return self.dense_steps if isinstance(self.dense_steps, int) else 0

    @property
    def warming(self) -> int:
        """Steps of the method with a larger share; 0 if they are a share of an unknown total."""
        steps = self.warm_up.steps if self.warm_up else 0
        return steps if isinstance(steps, int) else 0

    def at(self, step: int) -> CompressorParameters:
        """Return the method's parameters at a step, counted from the method's start."""
        own = self._own.parameters
        if self.warm_up is None or step >= self.warming:
            return own
        name, final = share_of(own)
        share = self.warm_up.share(step, final)
        return own.model_copy(update={name: 1 - share if name == SHARES[-1] else share})

    def joined(self, own: Method) -> Self:
        copy = self.model_copy()
        copy._own = own
        return copy

    @model_serializer
    def _plain(self, info: SerializationInfo) -> dict[str, Any]:
        stated = {
            key: value.model_dump(mode=info.mode, by_alias=True)
            if isinstance(value, CompressorParameters)
            else value
            for key, value in self
            if value is not None
        }
        return {**self._own.parameters.model_dump(mode=info.mode), **stated}


OPTIONS = tuple(Options.model_fields)


def share_of(own: CompressorParameters) -> tuple[str, float]:
    """Return name and value of the share that is sent; "" if the method has no such parameter."""
    name = next((name for name in SHARES if name in type(own).model_fields), "")
    given = float(getattr(own, name, 1.0))
    return name, 1 - given if name == SHARES[-1] else given


class Method(NamedTuple):
    compressor: type[Compressor]
    parameters: CompressorParameters

    @property
    def first_settled(self) -> int:
        """First step after dense steps and any warm-up, from which a simulation measures."""
        return self.compressor.warmup_steps(self.parameters)

    def of_steps(self, steps: int | None) -> Method:
        """Return the method for a training of `steps`; `InputError` if a share needs them."""
        chosen = self.parameters
        if not isinstance(chosen, Options):
            return self
        warm_up, changed = chosen.warm_up, dict[str, Any]()
        shares = ("dense_steps", chosen.dense_steps), ("warm_up", warm_up and warm_up.steps)
        for key, share in shares:
            if not isinstance(share, float):
                continue
            if steps is None:
                message = f"{key} = {share} is a share of the training's steps"
                hint = "write a number of steps, or say training_steps=, how many there are"
                raise InputError(message, place=key, hint=hint)
            number = max(1, round(share * steps))
            whole = warm_up and warm_up.model_copy(update={"steps": number})
            changed[key] = number if key == "dense_steps" else whole
        return self._replace(parameters=chosen.model_copy(update=changed)) if changed else self

    def require_names(self, names: Iterable[str]) -> None:
        """Raise `InputError` if a pattern of dense tensors matches no tensor name of the model."""
        kept = self.parameters.dense_tensors if isinstance(self.parameters, Options) else None
        known = list(names)
        for pattern in kept.names if kept else ():
            if not any(fnmatchcase(name, pattern) for name in known):
                hint = did_you_mean(pattern, known) or f"names are like {known[0]!r}"
                message = f"{pattern!r} matches no tensor of the model"
                place = f"{self.compressor.__name__}.dense_tensors.names"
                raise InputError(message, place=place, hint=hint)


def method_of(kind: str, given: Mapping[str, Any]) -> Method:
    """Return the method of a scenario's entry, with checked parameters; raises as `checked`."""
    return checked(kind, compressor_class(kind), given)


def code_of(kind: str, given: Mapping[str, Any]) -> str | None:
    """Return module and class of an entry's code, as in the registry; None for a user's own."""
    fields = compressor_class(kind).Parameters.model_fields
    if any(key in OPTIONS and key not in fields for key in given):
        return "options.optioned:Optioned"
    return REGISTRY.get(kind)


def checked(name: str, cls: type[Compressor], given: Mapping[str, Any]) -> Method:
    """Return a method with validated parameters and options, with defaults; errors call it `name`.
    A parameter wins over an option of the same name. Raises `InputError` with one problem for each
    unknown or invalid parameter and each option that makes no sense for the method."""
    fields = cls.Parameters.model_fields
    if problems := [*_no_mappings(name, {**Options.model_fields, **fields}, given)]:
        raise InputError(problems)
    options = {  # misspelled names included
        key: value
        for key, value in given.items()
        if key not in fields
        and (key in OPTIONS or did_you_mean(key, OPTIONS).startswith("did you mean"))
    }
    own = checked_parameters(name, cls, {k: v for k, v in given.items() if k not in options})
    if not options:
        return Method(cls, own)
    from gcsim.compressors.options.optioned import Optioned, OptionedWithMoments

    stated = checked_parameters(name, Optioned, options)
    assert isinstance(stated, Options)
    if problems := [*_meaningless(name, cls, own, stated)]:
        raise InputError(problems)
    kind = OptionedWithMoments if cls.requires else Optioned
    return Method(kind, stated.joined(Method(cls, own)))


def _no_mappings(
    name: str, fields: Mapping[str, FieldInfo], given: Mapping[str, Any]
) -> Iterable[Problem]:
    """Yield a problem for each parameter that should be a mapping and is not."""
    for key, value in given.items():
        field = fields.get(key)
        if field is None or isinstance(value, Mapping):
            continue
        kinds = get_args(field.annotation) or (field.annotation,)
        own = next((kind for kind in kinds if _has_parameters(kind)), None)
        if own is None or (value is None and NoneType in kinds):
            continue
        keys = ", ".join(inner.alias or inner_key for inner_key, inner in own.model_fields.items())
        usual, examples = field.default, field.examples
        example = usual.model_dump() if isinstance(usual, own) else (examples or [{}])[0]
        like = ", ".join(f"{inner}: {_plain(value)}" for inner, value in example.items())
        yield Problem(
            message=f"{name}.{key} = {value!r:.40}: not a mapping of {keys}",
            place=key,
            hint=f"write it like {key}: {{{like}}}" if like else "",
        )


def _has_parameters(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, CompressorParameters)


def _plain(value: Any) -> str:
    """Return a value as YAML writes it in one line."""
    return value if isinstance(value, str) else json.dumps(value)


def _meaningless(
    name: str, cls: type[Compressor], own: CompressorParameters, stated: Options
) -> Iterable[Problem]:
    from gcsim.compressors.options.optioned import adds_up_floats

    asked = [key for key, value in stated if value is not None]
    if issubclass(cls, Dense):
        for key in asked:
            hint = "kind: fp16 is dense training in half precision" if key == "payload" else ""
            yield Problem(message=f"{name} is dense in all steps", place=key, hint=hint)
        return
    if stated.warm_up is not None:
        yield from _cold(name, cls, own, stated.warm_up)
    if cls.properties(own).scale_free:
        for key in ("dense_steps", "dense_tensors"):
            if key in asked:
                yield Problem(
                    message=f"updates of {name} do not tell how large the gradient is: "
                    "no learning rate serves them and dense ones",
                    place=key,
                    hint="choose a method whose update approximates the gradient",
                )
    if "payload" in asked and not adds_up_floats(cls, own.model_dump_json()):
        says = "its own parameter 'values' says how values travel"
        yield Problem(
            message=f"{name} adds up no float32 numbers: payload has nothing to halve",
            place="payload",
            hint=says if "values" in cls.Parameters.model_fields else "remove it",
        )


def _cold(
    name: str, cls: type[Compressor], own: CompressorParameters, asked: WarmUp
) -> Iterable[Problem]:
    """Yield a problem if the method has no use for a warm-up."""
    share, final = share_of(own)
    if not share:
        message = f"{name} has no share that could begin larger ({', '.join(SHARES)})"
        hint = "dense_steps: 0.1 starts it after dense steps"
    elif asked.first <= final:
        message = f"{name} begins with a share of {asked.first:g}, and ends with {final:g}"
        hint = f"write from: a share above {final:g}, or leave warm_up out"
    elif cls.period(own) != cls.period(own.model_copy(update={share: asked.first})):
        message = f"the interval of {name} follows from its {share}, which would change"
        hint = f"write a number: interval: {cls.period(own)}"
    elif cls.warmup_steps(own):
        message = f"{name} has a warm-up of its own, of {cls.warmup_steps(own)} steps"
        hint = "state one of the two"
    else:
        return
    yield Problem(message=message, place="warm_up", hint=hint)
