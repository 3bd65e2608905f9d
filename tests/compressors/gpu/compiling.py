"""Compiles the launches in a JSON file for a GPU that need not be there; prints PTX's instructions.

`python compiling.py LAUNCHES.json CAPABILITY`: a line of JSON a launch, [kernel, [instruction, …]].
The interpreter must be off, so this is a process of its own.
"""

import importlib
import json
import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

OPTIONS = {"enable_fp_fusion": False, "num_warps": 16}
"""Of four warps, as kernels are launched, each thread has four times the instructions to compile:
no others."""

for module, name, types, constants in json.loads(Path(sys.argv[1]).read_text()):
    known = {
        key: getattr(tl, value.removeprefix("tl.")) if isinstance(value, str) else value
        for key, value in constants.items()
    }
    source = ASTSource(
        getattr(importlib.import_module(module), name),
        signature={**types, **dict.fromkeys(known, "constexpr")},
        constexprs=known,
    )
    made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[2]), 32), options=OPTIONS)
    words = {line.split()[0] for line in made.asm["ptx"].splitlines() if line.startswith("\t")}
    print(json.dumps([name, sorted(words)]))
