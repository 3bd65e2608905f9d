"""`gcsim explain METHOD`: its kernels, what each costs on this device, and its collectives."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gcsim.cli.options import JsonOption, QuietOption, SeedOption, SetOption, option
from gcsim.cli.outcome import reported, users_code


@reported
def explain(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="A label or kind in the scenario, or any other kind, my_module:Mine or "
            "'{kind: topk, ratio: 0.001}'.",
        ),
    ],
    *,
    scenario: Annotated[
        str, option("--scenario SCENARIO", "Scenario with the model, gradients and device.")
    ] = "digits_8",
    sets: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what a method computes and sends.

    Describes a mean iteration at the scenario's largest size: kernels with class, launches, bytes
    and milliseconds on its device, their time if fused, and the collectives by bucket with
    algorithm and bytes. Runs the method if its profile is not in the cache.
    """
    from copy import deepcopy

    from gcsim.analysis.report.explained import parts
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, show
    from gcsim.compressors.named import method_named
    from gcsim.files import json_text
    from gcsim.scenarios.explained import chosen
    from gcsim.scenarios.explained import explain as explained
    from gcsim.scenarios.load import read_scenario, scenario_of

    with users_code():
        document, path = read_scenario(scenario)
        loaded = scenario_of(deepcopy(document), path, sets or (), seed, warn=False)
        if not {method} & {name for one in loaded.compressors for name in (one.kind, one.label)}:
            if not method.startswith("{"):
                method_named(method)
            asked = method if method.startswith("{") else json.dumps(method)
            changes = [*(sets or ()), f"compressors=[{asked}]"]
            loaded = scenario_of(document, path, changes, seed, warn=False)
            method = loaded.compressors[0].label
    if not quiet:
        note(f"scenario: {loaded.name} (--scenario chooses another)")
    with watching(quiet) as progress:
        found = explained(loaded, chosen(loaded, method), progress)
    show(as_json, lambda: json_text(found.document()), lambda: parts(found))
