"""The registry of compressors by name: a new one takes one file and one line here. A name of the
form `package.module:Class` is imported from the user's code."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Any

from pydantic import ValidationError

from gcsim.compressors import mistakes
from gcsim.compressors.base import About, Compressor, CompressorParameters, Properties, Worker
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.opened import noting

_LONGEST = 1_000_000
"""Most steps that a user's class may return for its schedule."""

REGISTRY: dict[str, str] = {
    # name: module within this package, and class
    "none": "dense:Dense",
    "randomk": "sparsification.by_chance.randomk:RandomK",
    "gradient_sampling": "sparsification.by_chance.gradient_sampling:GradientSampling",
    "gradient_sampling_bayes": "sparsification.by_chance.gradient_sampling:GradientSamplingBayes",
    "random_sampling_bayes": "sparsification.by_chance.gradient_sampling:RandomSamplingBayes",
    "tk_ccd": "sparsification.by_chance.tk_ccd:TkCcd",
    "variance_bounded": "sparsification.by_chance.variance_bounded:VarianceBounded",
    "topk": "sparsification.by_size.topk:TopK",
    "gtopk": "sparsification.by_size.gtopk:GlobalTopK",
    "ok_topk": "sparsification.by_size.ok_topk:OkTopK",
    "dgc": "sparsification.by_size.dgc:DeepGradientCompression",
    "threshold": "sparsification.by_threshold.threshold:Threshold",
    "gradient_dropping": "sparsification.by_threshold.gradient_dropping:GradientDropping",
    "sidco": "sparsification.by_threshold.sidco:Sidco",
    "strom": "sparsification.by_threshold.strom:Strom",
    "dryden": "sparsification.by_threshold.dryden:Dryden",
    "adacomp": "sparsification.by_threshold.adacomp:AdaComp",
    "deepreduce": "sparsification.by_size.deepreduce:DeepReduce",
    "omnireduce": "sparsification.by_size.omnireduce:OmniReduce",
    "variance": "sparsification.by_variance.variance:VarianceBased",
    "variance_hybrid": "sparsification.by_variance.variance_hybrid:VarianceHybrid",
    "ce_sgd": "sparsification.ce_sgd.ce_sgd:CeSgd",
    "fp16": "quantization.floats.half:HalfPrecision",
    "bf16": "quantization.floats.half:BrainFloat",
    "fp8": "quantization.floats.eight_bits:Fp8",
    "dynamic_8bit": "quantization.floats.eight_bits:Dynamic8Bit",
    "inceptionn": "quantization.floats.inceptionn:Inceptionn",
    "thc": "quantization.rounding.thc:Thc",
    "qsgd": "quantization.rounding.qsgd:Qsgd",
    "terngrad": "quantization.rounding.terngrad:TernGrad",
    "nuqsgd": "quantization.rounding.nuqsgd:Nuqsgd",
    "alq": "quantization.rounding.alq:Alq",
    "amq": "quantization.rounding.alq:Amq",
    "natural": "quantization.floats.natural:Natural",
    "orq": "quantization.rounding.orq:Orq",
    "linear": "quantization.rounding.orq:Linear",
    "bingrad_b": "quantization.one_bit.bingrad:BinGradB",
    "bingrad_pb": "quantization.one_bit.bingrad:BinGradPb",
    "onebit_sgd": "quantization.one_bit.onebit_sgd:OneBitSgd",
    "scaled_sign": "quantization.one_bit.scaled_sign:ScaledSign",
    "ef_signsgd": "quantization.one_bit.scaled_sign:EfSignSgd",
    "signsgd": "quantization.one_bit.signsgd:SignSgd",
    "signum": "quantization.one_bit.signsgd:Signum",
    "ef_block_sgdm": "quantization.one_bit.scaled_sign:EfBlockSgdm",
    "onebit_adam": "quantization.one_bit.onebit_adam:OneBitAdam",
    "powersgd": "low_rank.powersgd:PowerSgd",
    "count_sketch": "sketching.count_sketch:CountSketch",
    "local_sgd": "local_updates.local_sgd:LocalSgd",
    "diloco": "local_updates.local_sgd:Diloco",
    "qsparse_local_sgd": "local_updates.qsparse_local_sgd:QsparseLocalSgd",
    "cser": "local_updates.cser:Cser",
    "csea": "local_updates.cser:Csea",
    "cser_pl": "local_updates.cser:CserPl",
    "torch_fp16": "reference.casts:TorchFp16",
    "torch_bf16": "reference.casts:TorchBf16",
    "torch_powersgd": "reference.powersgd:TorchPowerSgd",
    "torch_post_local_sgd": "reference.post_local_sgd:TorchPostLocalSgd",
    "torch_quantization_pertensor": "reference.quantization:TorchQuantizationPerTensor",
    "torch_quantization_perchannel": "reference.quantization:TorchQuantizationPerChannel",
}


def compressor_class(name: str) -> type[Compressor]:
    """Return the class of a registered name or of a `package.module:Class` path. Raises
    `InputError` if it is unknown, cannot be imported or is not a `Compressor`."""
    if name in REGISTRY:
        target = f"{__package__}.{REGISTRY[name]}"
    elif ":" in name:
        target = name
    else:
        raise InputError(f"unknown compressor {name!r}", hint=did_you_mean(name, REGISTRY))
    module, _, attribute = target.partition(":")
    try:
        with noting(module) if name not in REGISTRY else nullcontext():
            imported = importlib.import_module(module)
    except Exception as error:  # the user's module may raise anything
        raise _not_imported(
            name, f"{type(error).__name__}: {error}", mistakes.users_line(error)
        ) from error
    if not hasattr(imported, attribute):
        raise _not_imported(name, f"{module} has no {attribute!r}", "")
    found = getattr(imported, attribute)
    if not (isinstance(found, type) and issubclass(found, Compressor)):
        place = mistakes.location_of(found) or f"{getattr(imported, '__file__', None) or module}:1"
        raise InputError(f"{name!r} is not a subclass of gcsim.Compressor", place=place)
    if not isinstance(getattr(found, "about", None), About):
        message = f"{name!r} does not say what it is"
        hint = "give it `about = About(...)`"
        raise InputError(message, place=mistakes.location_of_class(found), hint=hint)
    return found


def _not_imported(name: str, why: str, place: str) -> InputError:
    hint = "write package.module:Class, importable from here"
    return InputError(f"cannot import compressor {name!r}: {why}", place=place, hint=hint)


def check_parameters(name: str, given: Mapping[str, Any]) -> CompressorParameters:
    """Return validated parameters of the named compressor, with defaults. Raises `InputError` with
    one problem per unknown or invalid parameter; `place` is the parameter's name."""
    return checked_parameters(name, compressor_class(name), given)


def checked_parameters(
    name: str, cls: type[Compressor], given: Mapping[str, Any]
) -> CompressorParameters:
    """Do what `check_parameters` does for a class, which errors call `name`."""
    try:
        checked = cls.Parameters(**given)
    except ValidationError as error:
        problems = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "extra_forbidden":
                message = f"{name} has no parameter {key!r}"
                if not (hint := cls.Parameters.instead.get(key, "")):
                    hint = did_you_mean(key, cls.Parameters.model_fields)
                    if owners := _owners(key):
                        hint = f"{hint}; {key!r} belongs to {', '.join(owners)}"
            else:
                said = fault["msg"].removeprefix("Value error, ")
                said = said[:1].lower() + said[1:]
                value = f".{key} = {fault.get('input')!r}" if key else ""
                message = f"{name}{value}: {said}"
                text = fault["input"] if fault["type"] in {"int_type", "float_type"} else ""
                quoted = isinstance(text, str) and text.replace(".", "", 1).isdecimal()
                shows = f"gcsim list compressors {name} shows what it accepts"
                hint = f"write {text}, without quotes" if quoted else shows
            problems.append(Problem(message=message, place=key, hint=hint))
        raise InputError(problems) from error
    except Exception:
        with mistakes.own_mistakes(cls):
            raise
    if mistakes.is_users(cls):
        _check_schedule(cls, checked)
    return checked


def _owners(key: str) -> list[str]:
    """Return up to four registered methods that have a parameter of this name."""
    found = (name for name in REGISTRY if key in compressor_class(name).Parameters.model_fields)
    return list(islice(found, 4))


def _check_schedule(cls: type[Compressor], parameters: CompressorParameters) -> None:
    """Raise `InputError` with file and line if a user's class declares an invalid schedule."""
    with mistakes.own_mistakes(cls):
        for name, least in (("period", 1), ("window", 1), ("warmup_steps", 0)):
            value = getattr(cls, name)(parameters)
            if not isinstance(value, int) or not least <= value <= _LONGEST:
                raise InputError(
                    f"{name}() is {value!r}, not a whole number, {least} to {_LONGEST}"
                )
        phase = cls.phase(parameters, cls.warmup_steps(parameters))
        properties, momentum = cls.properties(parameters), cls.momentum(parameters)
        for name, value, kind in (
            ("phase", phase, str),
            ("memory", cls.memory(parameters), str),
            ("properties", properties, Properties),
            ("momentum", momentum, tuple),
        ):
            if not isinstance(value, kind):
                raise InputError(f"{name}() is {value!r}, not a {kind.__name__}")


def create(name: str, worker: Worker, given: Mapping[str, Any] | None = None) -> Compressor:
    """Create one worker's instance of the named compressor."""
    return mistakes.new_member(compressor_class(name), worker, check_parameters(name, given or {}))
