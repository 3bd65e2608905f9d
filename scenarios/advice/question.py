"""Scenario for which advice is wanted, from a few words, a recorded trace or a file.

A word is a setting of a scenario file and checked as such; errors name the user's word. Defaults
are the most common: NCCL between GPUs, Gloo between CPUs, the board's bus, a batch of 32. Without a
file the methods are those that are deployed, or offered by frameworks and well-known papers, with
one setting each: the default, or the one that its paper and `docs/compressors.md` use most.

Traffic profiles are shipped, or measured as for a run. A shipped profile (`setting`: gradients
drawn from gcsim's fit, with fixed numbers of workers, iterations and samples) is used for the same
model with any batch size, sample length and seed: traffic depends on the tensors' shapes, and for
the few methods that depend on values, on the distribution of these.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from gcsim.compressors.registry import REGISTRY
from gcsim.errors import InputError, Problem, did_you_mean
from gcsim.scenarios import catalog, load
from gcsim.scenarios.catalog.loops import loop_named
from gcsim.scenarios.catalog.this_machine import device_named
from gcsim.scenarios.checks.fits import DoesNotFitError
from gcsim.scenarios.load import read_scenario, scenario_of
from gcsim.scenarios.reading.document import Document, read
from gcsim.scenarios.reading.overrides import apply
from gcsim.scenarios.scenario import CompressorChoice, DdpBuckets, Scenario
from gcsim.scenarios.sections.file import RECORDED
from gcsim.scenarios.sections.groups import bring_to_form
from gcsim.scenarios.sections.recorded import micro_batches
from gcsim.traces.models.registry import MODELS, ModelEntry, is_shipped
from gcsim.traces.models.table import table_facts
from gcsim.traces.profile import TrafficProfile
from gcsim.traces.stage1 import shipped
from gcsim.traces.storage.manifest import MANIFEST, read_manifest
from gcsim.traces.storage.store import shipped_traces
from gcsim.traces.synthetic.fit_file import DEFAULT

NAME = "advice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Options that replace a file; None: not given."""

    model: str | None = None
    device: str | None = None
    gpus: int | None = None
    """GPUs of a node."""
    nodes: int | None = None
    """1 where only `gpus` is given."""
    nics: int | None = None
    """NICs of a node."""
    group: Sequence[str] | None = None
    """Groups of different nodes: "4 x 8 a100 @ 100gbe"; replaces device, gpus and nodes."""
    parameters: str | None = None
    """Size of the model instead of its name: "110M"."""
    network: str | Mapping[str, Any] | None = None
    """Link of the catalogue, file, link as in a scenario, or rate alone."""
    batch_size: int | None = None
    """Samples per GPU."""
    precision: str | None = None
    sequence: int | None = None
    """Tokens per sample of a model by formula."""
    checkpointing: str | None = None
    loop: str | None = None
    """Framework that trains: ddp, horovod, paddle, deepspeed, own."""
    limited: bool | None = None
    """Whether `tc` or a provider limits the network's rate, not the NIC."""
    cost_per_hour: float | None = None
    """Cost of a node."""


_KEYS: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "device": ("cluster", "device"),
    "gpus": ("cluster", "devices_per_node"),
    "nodes": ("cluster", "nodes"),
    "nics": ("cluster", "nics_per_node"),
    "group": ("cluster", "groups"),
    "network": ("cluster", "network"),
    "batch_size": ("batch_size",),
    "precision": ("training", "precision"),
    "sequence": ("training", "sequence"),
    "checkpointing": ("training", "checkpointing"),
    "loop": ("training", "loop"),
    "cost_per_hour": ("cost", "per_hour"),
}
SUPPOSED_LOOP = "training.loop=ddp"
"""Training loop that is assumed without a scenario file: that of the hook that advice deploys."""
SUPPOSED_HALF = "training.precision=fp16"
_NAMED: dict[str, Callable[[str], str]] = {
    "model": lambda word: catalog.model(word).name,
    "device": device_named,
    "loop": loop_named,
}
_NEEDED = {
    "model": "resnet50, from `gcsim list models`",
    "device": "v100, from `gcsim list devices`",
    "nodes": "8",
    "network": '"25 Gbit/s", or 25gbe, from `gcsim list links`',
}
_STAND_INS: dict[str, Any] = {
    "model": "lenet", "device": "v100", "nodes": 2, "network": "10gbe",
    "group": [{"nodes": 2, "device": "v100", "network": "10gbe"}],
}  # fmt: skip
"""Stand-ins for missing or wrong words while the others are checked."""
_GROUP = re.compile(
    r"\s*(?P<nodes>\d+)\s*x\s*(?:(?P<gpus>\d+)\s+)?(?P<device>[^@]*[^@\s])"
    r"(?:\s*@\s*(?:(?P<nics>\d+)\s*x\s*)?(?P<network>.+))?"
)
"""Nodes, GPUs per node, device, NICs and network of a group, as answers write a cluster."""
_GROUP_EXAMPLE = "4 x 8 a100 @ 100gbe"
_OF_ALIKE = ("nodes", "device", "devices_per_node", "nics_per_node", "nics", "intra_node")
"""Settings of a file's cluster that groups replace."""
_COUNT = re.compile(
    r"(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*(?:([KMBT])(?:r?illion)?)?", re.IGNORECASE | re.ASCII
)
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """A scenario for which advice is wanted, and changes to it."""

    document: Document
    path: Path
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    fitting: bool = True
    """Whether methods that do not fit in the devices' memory are left out."""
    supposed: tuple[str, ...] = ()
    """Overrides that are assumed because the user states nothing."""

    @cached_property
    def scenario(self) -> Scenario:
        """Scenario with only its largest size; raises as `load_scenario`."""
        found = self._loaded((), warn=True)
        return replace(found, node_counts=found.node_counts[-1:])

    def states_setting(self, *keys: str) -> bool:
        """Whether the file, a word or an override states a setting."""
        return self.stated(*keys) is not None

    def stated(self, *keys: str) -> Any:
        """Return a setting that the file, a word or an override states; None if none does."""
        document = deepcopy(self.document)
        apply(document, self.overrides)
        held: Any = document.data
        for key in keys:
            held = held.get(key) if isinstance(held, Mapping) else None
        return held

    @property
    def states_loop(self) -> bool:
        """Whether the training loop or its overlap is stated."""
        return any(self.states_setting("training", key) for key in ("loop", "framework", "overlap"))

    def changed(self, overrides: Sequence[str]) -> Scenario | None:
        """Return the scenario with settings as in `--set`; None if it is not valid."""
        try:
            found = self._loaded(overrides, warn=False)
        except InputError:
            return None
        return replace(found, node_counts=found.node_counts[-1:])

    def _loaded(self, more: Sequence[str], *, warn: bool) -> Scenario:
        given = (*self.supposed, *self.overrides, *more)
        document = deepcopy(self.document)
        return scenario_of(document, self.path, given, self.seed, warn=warn, fitting=self.fitting)


def ask(
    source: str | None,
    words: Words,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    called: Callable[[str], str] = str,
) -> Question:
    """Build a question from a scenario file or shipped name, whose settings `words` change, or from
    `words` alone, with a recorded trace if `source` is its folder or a shipped one's name.

    `called` returns the user's name of a word: "--network". Raises `InputError` for missing words;
    the given ones are checked with the scenario.
    """
    if source is None and words.model is not None and _trace(words.model) is not None:
        source, words = words.model, replace(words, model=None)
    unknown: list[Problem] = []
    if source is not None and words.model is None:
        try:
            if _is_model(source):
                source, words = None, replace(words, model=source)
        except InputError as error:  # reported together with other problems
            unknown += error.problems
            source, words = None, replace(words, model=_STAND_INS["model"])
    said, problems = _said(words, called)
    problems = [*unknown, *problems]
    trace = None if source is None else _trace(source)
    timed = source is not None and Path(source).suffix in (".json", ".gz")  # by torch.profiler
    in_file = False
    if source is None or trace is not None or (timed and Path(source).is_file()):
        if trace is not None:
            said = {"model": RECORDED, **said}
        problems += _missing(said, called)
        settings = _settings({**{name: _STAND_INS[name] for name in _needed(said)}, **said}, trace)
        if source is not None and trace is None:
            settings["compute"] = {"profile": source}
        document, path = Document(name=NAME, data=settings), Path.cwd() / f"{NAME}.yaml"
    else:
        (document, path), in_file = read_scenario(source), True
    _put_into(document, said, called)
    found = Question(document, path, (*_limit(words), *overrides), seed)
    if not in_file:
        _without_lone_group(document)
        loop = () if found.states_loop else (SUPPOSED_LOOP,)
        half = (SUPPOSED_HALF,) if _in_half(found) else ()
        found = replace(found, supposed=(*loop, *half))
    if problems:
        try:
            found.scenario  # noqa: B018
        except DoesNotFitError:  # with a stand-in
            pass
        except InputError as error:
            problems += error.problems
        raise InputError(problems)
    return found


def _in_half(question: Question) -> bool:
    """Whether 16-bit passes are assumed for a question without a precision: for a transformer by
    formula on devices with 16-bit times."""
    if question.states_setting("training", "precision") or question.states_setting("compute"):
        return False
    groups = question.stated("cluster", "groups") or [question.stated("cluster")]
    with suppress(InputError, TypeError, AttributeError, KeyError):  # reported with the scenario
        if catalog.model(question.stated("model")).transformer is not None:
            return all("fp16" in catalog.device(one["device"]).precisions for one in groups)
    return False


def _trace(source: str) -> Path | None:
    """Return the folder of a recording, if `source` is one."""
    path = shipped_traces().get(source, Path(source))
    return path if (path / MANIFEST).is_file() else None


def _is_model(source: str) -> bool:
    """Whether a word names a model of the catalogue; False for a scenario, a recording and a file.
    Raises `InputError` for a word that is none of them."""
    path = Path(source)
    if source in load.shipped_scenarios() or _trace(source) is not None or path.exists():
        return False
    with suppress(InputError):
        return bool(catalog.model(source))
    if path.suffix or len(path.parts) > 1:
        return False
    hint = did_you_mean(source, [*load.shipped_scenarios(), *MODELS])
    if hint.startswith("known"):
        hint = "gcsim list scenarios, gcsim list models have all"
    raise InputError(f"no scenario, recording or model {source!r}", hint=hint)


def question_about(
    scenario: Scenario, words: Words, overrides: Sequence[str] = (), seed: int | None = None
) -> Question:
    """Question about a loaded scenario, as `ask`."""
    document = Document(name=scenario.name, data=deepcopy(scenario.resolved))
    said, problems = _said(words, str)
    if problems:
        raise InputError(problems)
    _put_into(document, said, str)
    path = Path.cwd() / f"{scenario.name}.yaml"
    return Question(document, path, (*_limit(words), *overrides), seed)


def _limit(words: Words) -> list[str]:
    return [] if words.limited is None else [f"cluster.network.limited={words.limited}"]


def number(text: str | None) -> Any:
    """Convert a word to a number, if it is one."""
    for kind in (int, float):
        with suppress(TypeError, ValueError):
            return kind(text)  # type: ignore[arg-type]
    return text


def option(name: str) -> str:
    """Return the command-line option for a word."""
    return f"--{name.replace('_', '-')}"


def scenario_from(settings: Mapping[str, Any]) -> Scenario:
    """Build the scenario of a file's settings; raises as `load_scenario`."""
    document = Document(name=NAME, data={"name": NAME, **settings})
    return scenario_of(document, Path.cwd() / f"{NAME}.yaml")


def _said(words: Words, called: Callable[[str], str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the settings of the words, and problems of some, which get stand-ins."""
    said = {name: getattr(words, name) for name in _KEYS if getattr(words, name) is not None}
    problems: list[Problem] = []
    gpus = said.get("gpus")
    several = isinstance(gpus, int) and gpus > 1
    if several and said.get("nodes", 1) == 1 and "network" not in said:
        said |= {"nodes": 1, "network": _STAND_INS["network"]}  # which nothing crosses

    def put(name: str, look_up: Callable[[], Any], word: str = "") -> None:
        try:
            said[name] = look_up()
        except InputError as error:
            said[name] = deepcopy(_STAND_INS[name])  # which is brought to form
            problems.extend(replace(one, place=called(word or name)) for one in error.problems)

    if words.parameters is not None:
        put("model", lambda: _of_size(str(words.parameters), words.model), "parameters")
    for name in said.keys() & _NAMED.keys():
        with suppress(InputError):  # which the check of the scenario reports
            said[name] = _NAMED[name](said[name])
    if isinstance(words.network, str) and words.network.lstrip().startswith("{"):
        section = words.network
        put("network", lambda: read(section, called("network"), position=False).data)
    if words.group:
        put("group", lambda: [_group(one, words) for one in words.group or ()])
    return said, problems


def _without_lone_group(document: Document) -> None:
    """Describe a single group as a cluster without groups, whose settings answers can change."""
    if len(document.data["cluster"].get("groups", ())) == 1:
        with suppress(InputError):  # which the check of the scenario reports
            bring_to_form(document)


def _group(text: str, words: Words) -> dict[str, Any]:
    """A group of a scenario's cluster; raises `InputError`."""
    found = _GROUP.fullmatch(text)
    if found is None:
        hint = f"write it like {_GROUP_EXAMPLE}: nodes, GPUs of each, device, network"
        raise InputError(f"{text!r:.60} is not a group of nodes", hint=hint)
    group: dict[str, Any] = {"nodes": int(found["nodes"]), "device": device_named(found["device"])}
    if found["gpus"]:
        group["devices_per_node"] = int(found["gpus"])
    if found["nics"]:
        group["nics_per_node"] = int(found["nics"])
    if found["network"]:
        group["network"] = found["network"]
    return group


def count_of(text: str) -> float:
    """A number above 0 as "10B", "524288" or "3e11"; raises `InputError`."""
    match = _COUNT.fullmatch(text.strip().replace(",", ""))
    value = float(match[1]) * _SIZES[(match[2] or "").upper()] if match else math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{text!r} is not a number above 0", hint="write it like 5000 or 10B")
    return value


def _of_size(text: str, model: str | None) -> str:
    """Return the catalogue's model with about this many parameters."""
    count = count_of(text)
    if model is not None:
        raise InputError(f"is given together with the model {model!r}", hint="keep one of the two")
    sizes = {name: MODELS[name].parameters or 0 for name in catalog.models_by_size(count)}
    if alike := catalog.by_size_alone(count):
        found, *others = alike
        also = f"; of that size are also {', '.join(others)} (--model)" if others else ""
        size = _million(sizes[found])
        _LOG.warning("note: %s parameters are read as %s (%s)%s", text, found, size, also)
        return found
    named = ", ".join(f"{name} ({_million(sizes[name])})" for name in [*sizes][:3])
    raise InputError(
        f"no single model of the catalogue has {text} parameters, and a size alone does not say in "
        f"which layers they are; the nearest are {named} (--model)",
        hint="record some iterations (gcsim.record), then gcsim advise my_trace; or write "
        "its layers: model: {layers: my_net.csv} in a scenario",
    )


def _million(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"


def _needed(said: Mapping[str, Any]) -> list[str]:
    """Return the words that a question needs in addition to these."""
    groups = said.get("group")
    replaced = {"device", "nodes"} if groups else set()
    if groups and all("network" in group for group in groups):
        replaced.add("network")
    return [name for name in _NEEDED if name not in said and name not in replaced]


def _missing(said: Mapping[str, Any], called: Callable[[str], str]) -> list[Problem]:
    needed = _needed(said)
    problems: list[Problem] = []
    if "group" in said and "network" in needed:
        needed.remove("network")
        hint = f"write @ NETWORK after each device ({_GROUP_EXAMPLE}), or {called('network')}"
        problems.append(Problem(place=called("group"), message="no network", hint=hint))
    return problems + [
        Problem(
            place=called(name),
            message="missing, and no scenario is given",
            hint=f"for example {_NEEDED[name]}",
        )
        for name in needed
    ]


def _settings(said: Mapping[str, Any], trace: Path | None) -> dict[str, Any]:
    data: dict[str, Any] = {"name": NAME, "batch_size": 32}
    model = MODELS.get(str(said["model"]))
    if trace is not None:
        manifest = read_manifest(trace)
        data["batch_size"] = manifest.facts.samples_per_worker
        data["gradients"] = {"source": "recorded", "trace": str(trace.resolve())}
        if (batches := micro_batches(manifest)) > 1:
            data["training"] = {"accumulation": batches}
    elif model is not None:
        data |= setting(model)
    else:
        data["gradients"] = {"source": "synthetic"}
    data["cluster"] = {}
    data["compressors"] = [dict(one) for one in METHODS]
    _put(data, said)
    return data


def _put_into(document: Document, said: Mapping[str, Any], called: Callable[[str], str]) -> None:
    cluster = document.data.get("cluster")
    for key in _OF_ALIKE if "group" in said and isinstance(cluster, dict) else ():
        cluster.pop(key, None)
    _put(document.data, said)
    for name in said:
        document.forget(_KEYS[name])
        document.values[_KEYS[name]] = document.keys[_KEYS[name]] = called(name)


def _put(data: dict[str, Any], said: Mapping[str, Any]) -> None:
    for name, value in said.items():
        holder = data
        for key in _KEYS[name][:-1]:
            if not isinstance(holder.get(key), dict):
                holder[key] = {}
            holder = holder[key]
        holder[_KEYS[name][-1]] = value


METHODS: tuple[Mapping[str, object], ...] = (
    {"kind": "none", "label": "dense"},
    {"kind": "fp16", "label": "fp16"},
    {"kind": "powersgd", "label": "PowerSGD rank 4"},
    {"kind": "powersgd", "label": "PowerSGD rank 2", "rank": 2},
    {"kind": "topk", "label": "Top-k 1 %", "ratio": 0.01},
    {"kind": "dgc", "label": "DGC 1 %", "ratio": 0.01},
    {"kind": "qsgd", "label": "QSGD 4 bit", "steps": 7},
    {"kind": "terngrad", "label": "TernGrad"},
    {"kind": "thc", "label": "THC"},
    {"kind": "ef_signsgd", "label": "EF-signSGD"},
    {"kind": "onebit_adam", "label": "1-bit Adam"},
    {"kind": "gradient_sampling", "label": "gradient sampling"},
    {"kind": "cser", "label": "CSER 1/96"},
)

LOCAL: Mapping[str, object] = {"kind": "torch_post_local_sgd", "label": "post-local SGD, 4 steps"}
"""Fewer exchanges instead of smaller ones: a change of the training, without a compressor."""


_WORKERS, _ITERATIONS, _SEED = 2, 2, 0
LARGE_BUCKET = 100 << 20
"""Larger bucket size for which profiles of dense training and half precision are shipped, too."""
_SAMPLES, _TOKENS = 32, 4096


def _usual_batch(model: ModelEntry) -> int:
    """Return the default samples per worker: 32, or fewer if these exceed 4,096 tokens."""
    tokens = model.input_shape[0] if model.input == "tokens" and model.input_shape else 0
    return min(_SAMPLES, max(1, _TOKENS // tokens)) if tokens else _SAMPLES


def setting(model: ModelEntry) -> dict[str, object]:
    """Return the settings with which a run measures the shipped traffic."""
    return {
        "batch_size": _usual_batch(model),
        "gradients": {"source": "synthetic", "workers": _WORKERS, "iterations": _ITERATIONS},
        "seed": _SEED,
    }


def name_of(model: ModelEntry, choice: CompressorChoice, buckets: DdpBuckets) -> str:
    """Return the name of a method's shipped profile, which is valid for any sequence length."""
    facts: Mapping[str, object] = {
        "compressor": choice.kind,
        "parameters": choice.parameters,
        "model": model.name,
        "buckets": asdict(buckets),
        "setting": setting(MODELS[model.name]),
        "fit": _fit(),
    }
    return shipped.name_of(facts)


def path_of(model: ModelEntry, folder: Path | None = None) -> Path:
    """File of a model's profiles."""
    return (folder or shipped.FOLDER) / f"{model.name}.json.xz"


def shipped_profile(scenario: Scenario, choice: CompressorChoice) -> TrafficProfile | None:
    """Return the shipped profile of a scenario's method, unless it is of other code."""
    model = scenario.model
    if not is_shipped(model):
        return None
    found = shipped.read(path_of(model)).get(name_of(model, choice, scenario.buckets))
    if found is None or found.code != shipped.code_of(model, REGISTRY.get(choice.kind)):
        return None
    profile = found.profile()
    if profile is None:
        return None
    facts = replace(profile.model, samples_per_worker=scenario.batch_size)
    if model.transformer is not None:
        own = table_facts(model, scenario.batch_size)
        facts = replace(facts, layers=own.layers, tokens=own.tokens)
    return replace(profile, model=facts)


@cache
def _fit() -> str:
    return hashlib.sha256(DEFAULT.read_bytes()).hexdigest()
