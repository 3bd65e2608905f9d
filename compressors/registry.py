"""The compressors by name: adding one is one file and one line here.

A name outside this table of the form `package.module:Class` is imported from the user's code.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gcsim.compressors.base import About, Compressor, CompressorParameters, Worker
from gcsim.compressors.laws import Laws
from gcsim.compressors.mistakes import is_users, new_member, own_mistakes, place_of_class
from gcsim.errors import InputError, Problem, did_you_mean

REGISTRY: dict[str, str] = {
    # name: module within this package, and class
    "none": "dense:Dense",
    "randomk": "sparsification.randomk:RandomK",
    "gradient_sampling": "sparsification.gradient_sampling:GradientSampling",
    "gradient_sampling_bayes": "sparsification.gradient_sampling:GradientSamplingBayes",
    "random_sampling_bayes": "sparsification.gradient_sampling:RandomSamplingBayes",
    "tk_ccd": "sparsification.tk_ccd:TkCcd",
    "variance_bounded": "sparsification.variance_bounded:VarianceBounded",
    "topk": "sparsification.topk:TopK",
    "gtopk": "sparsification.gtopk:GlobalTopK",
    "ok_topk": "sparsification.ok_topk:OkTopK",
    "dgc": "sparsification.dgc:DeepGradientCompression",
    "threshold": "sparsification.threshold:Threshold",
    "gradient_dropping": "sparsification.gradient_dropping:GradientDropping",
    "sidco": "sparsification.sidco:Sidco",
    "strom": "sparsification.strom:Strom",
    "dryden": "sparsification.dryden:Dryden",
    "adacomp": "sparsification.adacomp:AdaComp",
    "deepreduce": "sparsification.deepreduce:DeepReduce",
    "omnireduce": "sparsification.omnireduce:OmniReduce",
    "variance": "sparsification.variance:VarianceBased",
    "variance_hybrid": "sparsification.variance_hybrid:VarianceHybrid",
    "ce_sgd": "sparsification.ce_sgd:CeSgd",
    "fp16": "quantization.half:HalfPrecision",
    "bf16": "quantization.half:BrainFloat",
    "fp8": "quantization.fp8:Fp8",
    "dynamic_8bit": "quantization.dynamic_8bit:Dynamic8Bit",
    "inceptionn": "quantization.inceptionn:Inceptionn",
    "thc": "quantization.thc:Thc",
    "qsgd": "quantization.qsgd:Qsgd",
    "terngrad": "quantization.terngrad:TernGrad",
    "nuqsgd": "quantization.nuqsgd:Nuqsgd",
    "alq": "quantization.alq:Alq",
    "amq": "quantization.amq:Amq",
    "natural": "quantization.natural:Natural",
    "orq": "quantization.orq:Orq",
    "linear": "quantization.linear:Linear",
    "bingrad_b": "quantization.bingrad_b:BinGradB",
    "bingrad_pb": "quantization.bingrad_pb:BinGradPb",
    "onebit_sgd": "quantization.onebit_sgd:OneBitSgd",
    "scaled_sign": "quantization.scaled_sign:ScaledSign",
    "ef_signsgd": "quantization.scaled_sign:EfSignSgd",
    "signsgd": "quantization.signsgd:SignSgd",
    "signum": "quantization.signsgd:Signum",
    "ef_block_sgdm": "quantization.ef_block_sgdm:EfBlockSgdm",
    "onebit_adam": "quantization.onebit_adam:OneBitAdam",
    "powersgd": "low_rank.powersgd:PowerSgd",
    "count_sketch": "sketching.count_sketch:CountSketch",
    "qsparse_local_sgd": "local_updates.qsparse_local_sgd:QsparseLocalSgd",
    "cser": "local_updates.cser:Cser",
    "csea": "local_updates.cser:Csea",
    "cser_pl": "local_updates.cser:CserPl",
    "accordion": "controllers.accordion:Accordion",
    "l_greco": "controllers.l_greco:LGreco",
    "torch_fp16": "reference.torch_casts:TorchFp16",
    "torch_bf16": "reference.torch_casts:TorchBf16",
    "torch_powersgd": "reference.torch_powersgd:TorchPowerSgd",
    "torch_post_local_sgd": "reference.torch_post_local_sgd:TorchPostLocalSgd",
    "torch_quantization_pertensor": "reference.torch_quantization:TorchQuantizationPerTensor",
    "torch_quantization_perchannel": "reference.torch_quantization:TorchQuantizationPerChannel",
}


def compressor_class(name: str) -> type[Compressor]:
    """The class behind a registered name or a `package.module:Class` path.

    Raises `InputError` when the name is unknown, does not import, or is no `Compressor`.
    """
    if name in REGISTRY:
        target = f"{__package__}.{REGISTRY[name]}"
    elif ":" in name:
        target = name
    else:
        raise InputError(
            Problem(message=f"unknown compressor {name!r}", hint=did_you_mean(name, REGISTRY))
        )
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        raise InputError(
            Problem(
                message=f"cannot import compressor {name!r}: {_said(error)}",
                hint="write package.module:Class, importable from here",
            )
        ) from error
    if not (isinstance(found, type) and issubclass(found, Compressor)):
        raise InputError(f"{name!r} is not a subclass of gcsim.Compressor")
    if not isinstance(getattr(found, "about", None), About):
        raise InputError(
            Problem(
                message=f"{name!r} does not say what it is",
                place=place_of_class(found),
                hint="give it `about = About(...)`",
            )
        )
    return found


def _said(error: BaseException) -> str:
    """What the user's module raised, and where in it."""
    place = ""
    if not isinstance(error, SyntaxError):  # which says where by itself
        frames = traceback.extract_tb(error.__traceback__)
        own = [
            f for f in frames if not f.filename.startswith("<") and "importlib" not in f.filename
        ]
        place = f" ({own[-1].filename}:{own[-1].lineno})" if len(own) > 1 else ""
    return f"{type(error).__name__}: {error}{place}"


def check_parameters(name: str, given: Mapping[str, Any]) -> CompressorParameters:
    """Parameters of the named compressor, defaults filled in.

    Raises `InputError` with one problem for each unknown or impossible parameter; a problem's
    `place` is the parameter's name.
    """
    return checked_parameters(name, compressor_class(name), given)


def checked_parameters(
    name: str, cls: type[Compressor], given: Mapping[str, Any]
) -> CompressorParameters:
    """`check_parameters` for a class; `name` is what errors call it."""
    try:
        checked = cls.Parameters(**given)
    except ValidationError as error:
        problems = []
        for fault in error.errors():
            key = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "extra_forbidden":
                message = f"{name} has no parameter {key!r}"
                hint = did_you_mean(key, cls.Parameters.model_fields)
            else:
                said = fault["msg"].removeprefix("Value error, ")
                said = said[:1].lower() + said[1:]
                value = f".{key} = {fault.get('input')!r}" if key else ""
                message = f"{name}{value}: {said}"
                hint = ""
            problems.append(Problem(message=message, place=key, hint=hint))
        raise InputError(problems) from error
    except Exception:
        with own_mistakes(cls):
            raise
    if is_users(cls):
        _check_schedule(cls, checked)
    return checked


def _check_schedule(cls: type[Compressor], parameters: CompressorParameters) -> None:
    """Raise `InputError` with file and line where a user's class says impossible things of itself,
    so that nobody meets them later."""
    with own_mistakes(cls):
        for name, least in (("period", 1), ("window", 1), ("settled", 0)):
            value = getattr(cls, name)(parameters)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name}() is {value!r}, not a whole number from {least} up")
        phase = cls.phase(parameters, cls.settled(parameters))
        laws, momentum = cls.laws(parameters), cls.momentum(parameters)
        for name, value, kind in (
            ("phase", phase, str),
            ("memory", cls.memory(parameters), str),
            ("laws", laws, Laws),
            ("momentum", momentum, tuple),
        ):
            if not isinstance(value, kind):
                raise InputError(f"{name}() is {value!r}, not a {kind.__name__}")


def create(name: str, worker: Worker, given: Mapping[str, Any] | None = None) -> Compressor:
    """One worker's instance of the named compressor."""
    return new_member(compressor_class(name), worker, check_parameters(name, given or {}))
