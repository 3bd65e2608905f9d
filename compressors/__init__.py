"""Compression methods, their payloads and the collectives that they request.

Everything that a compressor of your own needs is here:

    from gcsim.compressors import About, AllReduce, Compressor, Field, Parameters
"""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING

from gcsim.lazy import offered

if TYPE_CHECKING:
    from pydantic import Field

    from gcsim.compressors.base import About, Compressor, ErrorFeedback, Properties, Ratio, Worker
    from gcsim.compressors.base import CompressorParameters as Parameters
    from gcsim.compressors.bucket import Bucket, BucketLayout, TensorSlice, bucket_state
    from gcsim.compressors.coding.frames import (
        Frame,
        as_bytes,
        decoder,
        frames_of,
        from_bytes,
        pack_frame,
        split_body,
    )
    from gcsim.compressors.coding.integers.packing import pack_bits, packed_bytes, unpack_bits
    from gcsim.compressors.coding.one_bit.signs import pack_signs, unpack_signs
    from gcsim.compressors.conformance import check
    from gcsim.compressors.lazy_torch import Tensor, torch
    from gcsim.compressors.loops import (
        array,
        in_parallel,
        inlined,
        loop,
        partial_sums,
        summing_loop,
        tensor,
        written_back,
    )
    from gcsim.compressors.meter import batched, count_random, kernel, unpriced
    from gcsim.compressors.random import bits64, fraction64, random_key, stream
    from gcsim.compressors.requests import (
        AllGather,
        AllReduce,
        AllToAll,
        Exchange,
        PushPull,
        Request,
        TreeMerge,
        gather_variable,
    )
    from gcsim.compressors.sharing import fill_once, once
    from gcsim.errors import InputError

_MODULES = {
    "pydantic": "Field",
    "gcsim.compressors.base": "About Compressor CompressorParameters>Parameters ErrorFeedback "
    "Properties Ratio Worker",
    "gcsim.compressors.bucket": "Bucket BucketLayout TensorSlice bucket_state",
    "gcsim.compressors.coding.frames": "Frame as_bytes decoder frames_of from_bytes pack_frame "
    "split_body",
    "gcsim.compressors.coding.integers.packing": "pack_bits packed_bytes unpack_bits",
    "gcsim.compressors.coding.one_bit.signs": "pack_signs unpack_signs",
    "gcsim.compressors.conformance": "check",
    "gcsim.compressors.lazy_torch": "Tensor torch",
    "gcsim.compressors.loops": "array in_parallel inlined loop partial_sums summing_loop tensor "
    "written_back",
    "gcsim.compressors.meter": "batched count_random kernel unpriced",
    "gcsim.compressors.random": "bits64 fraction64 random_key stream",
    "gcsim.compressors.requests": "AllGather AllReduce AllToAll Exchange PushPull Request "
    "TreeMerge gather_variable",
    "gcsim.compressors.sharing": "fill_once once",
    "gcsim.errors": "InputError",
}

__getattr__, __dir__, __all__ = offered(__name__, _MODULES)
