"""What do users get wrong? Compressors and models that are faulty, as the text of their modules.

`# HERE` marks the line that an error is to name; where none is marked, any line of the file will
do. What is in `HARMLESS` gives a result.
"""

import json
from pathlib import Path

HEAD = """
import numpy as np
import torch
from pydantic import Field
from gcsim.compressors.base import About, Compressor, CompressorParameters
from gcsim.compressors.coding.frames import pack_frame
from gcsim.compressors.requests import (
    AllGather, AllReduce, AllToAll, PushPull, TreeMerge, gather_variable)

ABOUT = About(title="Mine", family="sparsification", collective="any", bits="32", unbiased=True,
              state="none", paper="none")


class Base(Compressor):
    about = ABOUT

    def exchange(self, bucket, step):
        total = yield AllReduce(tensor=bucket.gradient.clone())
        return total / self.worker.count


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8)
"""

EXCHANGE = {
    # the body of `exchange`, and further methods behind an empty line
    "raises": 'yield AllReduce(tensor=g)\nraise ValueError("no")  # HERE',
    "fails inside torch": "yield AllReduce(tensor=g @ torch.ones(3, 3))  # HERE",
    "fails inside a function of torch's own Python code": (
        "yield AllReduce(tensor=torch.stft(g, n_fft='four'))  # HERE"
    ),
    "uses a coder of gcsim's wrongly": (
        "yield AllGather(payload=pack_frame(200, g, numel=1, nonzero=1))  # HERE"
    ),
    "gathers unequal payloads": (
        "yield AllGather(payload=as_bytes(g[: 1 + rank]))  # HERE\nreturn g"
    ),
    "gathers unequal payloads in a function": (
        "yield from self.gather(as_bytes(g[: 1 + rank]))\nreturn g\n\n"
        "def gather(self, payload):\n    yield AllGather(payload=payload)  # HERE"
    ),
    "gathers unequal payloads behind lengths": (
        "yield from gather_variable(as_bytes(g))\n"
        "yield AllGather(payload=as_bytes(g[rank:]))  # HERE\nreturn g"
    ),
    "reduces unequal shapes": "yield AllReduce(tensor=g[: 1 + rank])  # HERE\nreturn g",
    "reduces unequal dtypes": "yield AllReduce(tensor=g.half() if rank else g)  # HERE\nreturn g",
    "reduces what has no maximum": (
        'yield AllReduce(tensor=torch.complex(g, g), op="max")  # HERE\nreturn g'
    ),
    "asks for different things": (
        "if rank:\n    yield AllGather(payload=as_bytes(g))  # HERE\n"
        "else:\n    yield AllReduce(tensor=g)\nreturn g"
    ),
    "lets one worker finish": "if rank:\n    yield AllReduce(tensor=g)  # HERE\nreturn g",
    "yields a tensor": "yield g  # HERE\nreturn g",
    "yields nothing": "yield  # HERE\nreturn g",
    "sends an array of numpy's": "yield AllGather(payload=g.numpy())  # HERE\nreturn g",
    "reduces an array of numpy's": "yield AllReduce(tensor=g.numpy())  # HERE\nreturn g",
    "exchanges too few payloads": "yield AllToAll(payloads=[as_bytes(g)])  # HERE\nreturn g",
    "exchanges unequal payloads": (
        "yield AllToAll(payloads=[as_bytes(g[: 1 + i]) for i in range(self.worker.count)])  # HERE"
    ),
    "has a server that raises": (
        "yield PushPull(payload=as_bytes(g), server=self.serve)\nreturn g\n\n"
        'def serve(self, payloads):\n    raise KeyError("lost")  # HERE'
    ),
    "has a server that returns nothing": (
        "yield PushPull(payload=as_bytes(g), server=lambda payloads: None)\nreturn g"
    ),
    "has a merge that raises": (
        "yield TreeMerge(payload=as_bytes(g), merge=lambda a, b: a / {})  # HERE\nreturn g"
    ),
    "is divided by zero": "yield AllReduce(tensor=g)\nreturn g / 0.0  # HERE",
    "returns infinity": "yield AllReduce(tensor=g)\nreturn (g * 1e30) * 1e30  # HERE",
    "returns half precision": "yield AllReduce(tensor=g)\nreturn g.half()  # HERE",
    "returns half of it": "yield AllReduce(tensor=g)\nreturn g[: g.numel() // 2]  # HERE",
    "returns nothing": "yield AllReduce(tensor=g)  # HERE",
    "sends an empty payload that others do not": (
        "yield AllGather(payload=as_bytes(g[:rank]))  # HERE\nreturn g"
    ),
    "sends empty payloads": (
        "payloads = yield AllGather(payload=as_bytes(g[:0]))\n"
        "return torch.cat([as_bytes(p) for p in payloads]).view(torch.float32)[:5]  # HERE"
    ),
    "reduces nothing": "total = yield AllReduce(tensor=g[:0])\nreturn total  # HERE",
    "pushes to a server that stacks nothing": (
        "yield PushPull(payload=as_bytes(g[:0]), server=lambda p: torch.stack([*p])[9])  # HERE"
    ),
    "returns NaN": "yield AllReduce(tensor=g)\nreturn g * float('nan')  # HERE",
    "adds halves beyond their range": "yield AllReduce(tensor=(g * 0 + 6e4).half())  # HERE",
    "sends None": "yield AllGather(payload=None)  # HERE\nreturn g",
    "sends a list of payloads": "yield AllGather(payload=[as_bytes(g)])  # HERE\nreturn g",
    "asks for a mean": 'yield AllReduce(tensor=g, op="mean")  # HERE\nreturn g',
    "exchanges what is no list": "yield AllToAll(payloads=7)  # HERE\nreturn g",
    "has a merge that returns nothing": (
        "yield TreeMerge(payload=as_bytes(g), merge=lambda a, b: None)  # HERE\nreturn g"
    ),
    "pushes to nothing that can be called": (
        "yield PushPull(payload=as_bytes(g), server=3)  # HERE\nreturn g"
    ),
    "pushes unequal payloads": (
        "yield PushPull(payload=as_bytes(g[: 1 + rank]), server=lambda ps: next(iter(ps)))  # HERE"
    ),
    "stops an iteration": "yield AllReduce(tensor=g)\nraise StopIteration  # HERE",
    "recurses for ever": (
        "yield AllReduce(tensor=self.deeper(g))\n\ndef deeper(self, g):\n"
        "    return self.deeper(g)  # HERE"
    ),
    "asks for more memory than there is": "yield AllReduce(tensor=torch.empty(1 << 55))  # HERE",
    "leaves": "raise SystemExit(0)  # HERE",
    "closes itself": "yield AllReduce(tensor=g)\nraise GeneratorExit  # HERE",
    "raises what is no Exception": "yield AllReduce(tensor=g)\nraise BaseException('no')  # HERE",
    "returns its own gradient": "yield AllReduce(tensor=g)\nreturn g",
    "asks once less at the second step": (
        "if step < 1 or rank:\n    yield AllReduce(tensor=g)\nreturn g"
    ),
    "returns a sparse update": "yield AllReduce(tensor=g)\nreturn g.to_sparse()  # HERE",
    "returns an update on another device": (
        "yield AllReduce(tensor=g)\nreturn g.to('meta')  # HERE"
    ),
    "sends what lies on another device": "yield AllReduce(tensor=g.to('meta'))\nreturn g",
    "returns what needs a gradient": (
        "total = yield AllReduce(tensor=g)\nreturn total.clone().requires_grad_()"
    ),
    "sends floats": (
        "payloads = yield AllGather(payload=g)\nreturn sum(payloads) / self.worker.count"
    ),
    "prints": "print('hello')\ntotal = yield AllReduce(tensor=g)\nreturn total / 2",
    "sends nothing": "yield from ()\nreturn 0 * g",
}

CLASS = {
    # the body of the class
    "has a constructor that raises": (
        "def __init__(self, worker, parameters):\n"
        "    super().__init__(worker, parameters)\n    self.k = parameters.ratio  # HERE"
    ),
    "returns no generator": "def exchange(self, bucket, step):  # HERE\n    return bucket.gradient",
    "writes into the gradient": (
        "def exchange(self, bucket, step):  # HERE\n"
        "    total = yield AllReduce(tensor=bucket.gradient.mul_(0.5))\n    return total"
    ),
    "has properties that raise": (
        "@classmethod\ndef properties(cls, parameters):\n"
        "    return Properties(unbiased=True)  # HERE"
    ),
    "has a period of nothing": (
        "@classmethod\ndef period(cls, parameters):\n    return 0\n"
        "def exchange(self, bucket, step):  # HERE\n    yield AllReduce(tensor=bucket.gradient)"
    ),
    "takes no parameters": "def __init__(self, worker):  # HERE\n    pass",
    "forgets its base's constructor": "def __init__(self, worker, parameters):\n    pass",
    "is not a generator's class": "exchange = 3",
    "takes too little": "def exchange(self, bucket):  # HERE\n    yield",
    "does not say what it is": "about = None",
    "says what it is in a word": "about = 'mine'",
    "has a window of a half": ("@classmethod\ndef window(cls, parameters):\n    return 2.5"),
    "starts before the start": ("@classmethod\ndef warmup_steps(cls, parameters):\n    return -1"),
    "has phases that are no text": (
        "@classmethod\ndef phase(cls, parameters, step):\n    return step"
    ),
    "has a momentum that is not a pair": (
        "@classmethod\ndef momentum(cls, parameters):\n    return 0.9"
    ),
    "has phases that raise later": (
        "@classmethod\ndef period(cls, parameters):\n    return 3\n"
        "@classmethod\ndef phase(cls, parameters, step):\n    return ['a', 'b'][step]  # HERE"
    ),
    "has parameters that raise": (
        "class Parameters(CompressorParameters):\n    @property\n    def k(self):\n"
        "        return 1 / 0  # HERE\n"
        "def exchange(self, bucket, step):\n"
        "    yield AllReduce(tensor=bucket.gradient[:self.parameters.k])"
    ),
    "has a period of an age": ("@classmethod\ndef period(cls, parameters):\n    return 10**12"),
    "has a window of an age": ("@classmethod\ndef window(cls, parameters):\n    return 10**12"),
    "is undefined": "about = undefined  # HERE",
    "is abstract": "exchange = Compressor.exchange",
}

MODULE = {
    # all of a compressor's file
    "is empty": "",
    "does not parse": "class Mine(:  # HERE\n    pass\n",
    "imports what is not there": "import nothing_of_this_name  # HERE\n",
    "raises when imported": "raise RuntimeError('not now')  # HERE\n",
    "leaves when imported": "import sys\nsys.exit()  # HERE\n",
    "is a function": "def Mine(worker, parameters):\n    return None\n",
    "is no compressor": "class Mine:\n    pass\n",
}

NET = """
import sys
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(12, 4)
        self.calls = 0

    def forward(self, x):
        return self.fc(x.flatten(1))


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("no way back")


def build():
    return Mine()


class Mine(Net):
"""

FORWARD = {
    # the body of a model's `forward`
    "runs without gradients": "with torch.no_grad():\n    return super().forward(x)",
    "is detached": "return super().forward(x).detach()",
    "raises": "raise ValueError('no')  # HERE",
    "raises later": (
        "self.calls += 1\nif self.calls > 3:\n    raise ValueError('no')  # HERE\n"
        "return super().forward(x)"
    ),
    "overwrites what backward needs": "y = super().forward(x).sigmoid()\ny.add_(1)\nreturn y",
    "has no way back": "return Refuses.apply(super().forward(x))",
    "gives NaN": "return super().forward(x) * float('nan')",
    "gives infinity": "return super().forward(x) / 0",
    "gives a dict": "return {'logits': super().forward(x)}",
    "gives nothing": "super().forward(x)",
    "gives an array of numpy's": "return super().forward(x).detach().numpy()",
    "gives other classes": "return super().forward(x)[:, :2]",
    "gives a mean": "return super().forward(x).mean(0)",
    "gives too few samples": "return super().forward(x)[:2]",
    "gives whole numbers": "return super().forward(x).long()",
    "gives complex numbers": "return super().forward(x) * 1j",
    "gives half precision": "return super().forward(x).half()",
    "forgets its bias": "return x.flatten(1) @ self.fc.weight.T",
    "freezes itself": "self.fc.requires_grad_(False)\nreturn super().forward(x)",
    "loses a parameter": "y = super().forward(x)\nself.fc.bias = None\nreturn y",
    "changes its weights": (
        "with torch.no_grad():\n    self.fc.weight.mul_(0.5)\nreturn super().forward(x)"
    ),
    "leaves": "sys.exit(0)  # HERE",
    "recurses for ever": "return self.forward(x)  # HERE",
    "prints": "print('hello')\nreturn super().forward(x)",
}

BUILD = {
    # all of a model's file behind `NET`
    "builds nothing": "    pass\n\ndef build():  # HERE\n    return None\n",
    "builds a class": "    pass\n\ndef build():  # HERE\n    return Mine\n",
    "raises when built": "    pass\n\ndef build():\n    raise ValueError('no')  # HERE\n",
    "wants to know more": "    pass\n\ndef build(size):  # HERE\n    return Mine()\n",
    "is no function": "    pass\n\nbuild = 3\n",
    "has another name": "    pass\n\ndel build\n",
    "has nothing to train": "    pass\n\ndef build():  # HERE\n    return nn.Flatten()\n",
    "is frozen": "    pass\n\ndef build():  # HERE\n    return Mine().requires_grad_(False)\n",
    "is in double precision": "    pass\n\ndef build():  # HERE\n    return Mine().double()\n",
    "is lazy": (
        "    pass\n\ndef build():  # HERE\n"
        "    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4))\n"
    ),
    "leaves when imported": "    sys.exit()  # HERE\n",
    "does not parse": "    def (:  # HERE\n",
}

HARMLESS = {
    "prints",
    "sends nothing",
    "sends floats",
    "returns what needs a gradient",
    "changes its weights",
    "loses a parameter",
    "is lazy",
}


def indented(text: str, by: int) -> str:
    """Each line that is not empty, further to the right."""
    return "\n".join(" " * by + line if line else "" for line in text.splitlines())


def _exchange(text: str) -> str:
    body, _, methods = text.partition("\n\n")
    setup = "    g, rank = bucket.gradient.clone(), self.worker.rank\n"
    head = "def exchange(self, bucket, step):\n"
    return head + setup + indented(body, 4) + "\n" + methods


def _class(body: str) -> str:
    return HEAD + "\n\nclass Mine(Base):\n" + indented(body, 4) + "\n"


COMPRESSORS: dict[str, str] = {
    **{name: _class(_exchange(text)) for name, text in EXCHANGE.items()},
    **{name: _class(text) for name, text in CLASS.items()},
    **MODULE,
}
"""Modules with a compressor `Mine`."""

MODELS: dict[str, str] = {
    **{
        name: NET + "    def forward(self, x):\n" + indented(text, 8) + "\n"
        for name, text in FORWARD.items()
    },
    **{name: NET + text for name, text in BUILD.items()},
}
"""Modules with a function `build` that returns a model of 3 x 2 x 2 inputs and 4 classes."""


def write(folder: Path, module: str, text: str, *, model: bool) -> Path:
    """The file of a faulty module, and `s.yaml` beside it that uses it as model or compressor."""
    path = folder / f"{module}.py"
    path.write_text(text)
    scenario = {
        "batch_size": 4,
        "cluster": {
            "nodes": [2], "devices_per_node": 1, "device": "v100", "network": "10gbe",
        },
        "compute": {"forward": "1 ms", "backward": "2 ms"},
    }  # fmt: skip
    if model:
        scenario |= {
            "model": {"build": f"{module}:build", "input_shape": [3, 2, 2], "classes": 4},
            "gradients": {"source": "live", "workers": 2, "iterations": 2, "warmup_steps": 1},
            "compressors": ["none"],
        }
    else:
        (folder / "net.csv").write_text(
            "name,shape,forward_flops\nfc.weight,40x30,2400\nfc.bias,40,0\n"
        )
        scenario |= {
            "model": {"layers": "net.csv"},
            "gradients": {"source": "synthetic", "workers": 2, "iterations": 2},
            "compressors": ["none", {"kind": f"{module}:Mine"}],
        }
    (folder / "s.yaml").write_text(json.dumps(scenario))
    return path
