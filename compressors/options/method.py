"""A chosen method: a compressor with its parameters and options, checked.

    {kind: powersgd, rank: 2, dense_steps: 0.1, payload: fp16,
     dense_tensors: {below: 2048, names: ["*.bias"]}}

Options stand beside the method's own parameters, in scenarios and in `gcsim.ddp_hook`;
`optioned.py` carries them out. Without options neither torch nor a loop's compiler is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializationInfo,
    model_serializer,
    model_validator,
)

from gcsim.compressors.base import Compressor, CompressorParameters
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
    names: tuple[str, ...] = Field((), description="patterns of names, such as *.bias")
    below: int = Field(0, ge=0, description="tensors of fewer elements than this")

    @model_validator(mode="before")
    @classmethod
    def _said(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not (given.get("names") or given.get("below")):
            raise ValueError("write names: [PATTERN, ...], or below: ELEMENTS, or both")
        return given


class Options(CompressorParameters):
    """Options of any method, and the method's own parameters; one mapping in plain form."""

    dense_steps: Annotated[int | float | None, BeforeValidator(_steps)] = Field(
        None, description="steps that are dense before the method starts; below 1: their share"
    )
    payload: HalfFormat | None = Field(None, description="float32 sums travel in this format")
    dense_tensors: Kept | None = Field(None, description="tensors that stay dense")
    _own: Method = PrivateAttr()

    @property
    def own(self) -> Method:
        return self._own

    @property
    def before(self) -> int:
        """Dense steps before the method starts; 0 for a share of an unknown number."""
        return self.dense_steps if isinstance(self.dense_steps, int) else 0

    def joined(self, own: Method) -> Self:
        copy = self.model_copy()
        copy._own = own
        return copy

    @model_serializer
    def _plain(self, info: SerializationInfo) -> dict[str, Any]:
        stated = {
            key: value.model_dump(mode=info.mode) if isinstance(value, Kept) else value
            for key, value in self
            if value is not None
        }
        return {**self._own.parameters.model_dump(mode=info.mode), **stated}


OPTIONS = tuple(Options.model_fields)


class Method(NamedTuple):
    compressor: type[Compressor]
    parameters: CompressorParameters

    @property
    def dense_steps(self) -> int:
        return self.parameters.before if isinstance(self.parameters, Options) else 0

    def of_steps(self, steps: int | None) -> Method:
        """The method in a training of `steps`; `InputError` for a share of an unknown number."""
        share = self.parameters.dense_steps if isinstance(self.parameters, Options) else None
        if not isinstance(share, float):
            return self
        if steps is None:
            message = f"dense_steps = {share} is a share of the training's steps"
            hint = "write a number of steps, or say training_steps=, how many there are"
            raise InputError(message, place="dense_steps", hint=hint)
        number = max(1, round(share * steps))
        return self._replace(parameters=self.parameters.model_copy(update={"dense_steps": number}))

    def require_names(self, names: Iterable[str]) -> None:
        """Raise `InputError` where a pattern of dense tensors matches no name of the model's."""
        kept = self.parameters.dense_tensors if isinstance(self.parameters, Options) else None
        known = list(names)
        for pattern in kept.names if kept else ():
            if not any(fnmatchcase(name, pattern) for name in known):
                hint = did_you_mean(pattern, known) or f"names are like {known[0]!r}"
                message = f"{pattern!r} matches no tensor of the model"
                place = f"{self.compressor.__name__}.dense_tensors.names"
                raise InputError(message, place=place, hint=hint)


def method_of(kind: str, given: Mapping[str, Any]) -> Method:
    """Compressor and checked parameters of a scenario's entry; raises as `checked`."""
    return checked(kind, compressor_class(kind), given)


def code_of(kind: str, given: Mapping[str, Any]) -> str | None:
    """Module and class whose code an entry runs, as in the registry; None for a user's own."""
    fields = compressor_class(kind).Parameters.model_fields
    if any(key in OPTIONS and key not in fields for key in given):
        return "options.optioned:Optioned"
    return REGISTRY.get(kind)


def checked(name: str, cls: type[Compressor], given: Mapping[str, Any]) -> Method:
    """A method with its parameters and options, defaults filled in; `name` is its name in errors. A
    parameter wins over an option of its name. Raises `InputError` with one problem for each unknown
    or impossible parameter and each option without meaning for the method."""
    fields = cls.Parameters.model_fields
    options = {  # with slips of the pen from their names
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
