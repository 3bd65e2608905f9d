"""`gcsim train`: real training with every method, then the table, the answer and the curves."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from gcsim.cli import options
from gcsim.cli.outcome import kept_on_interrupt, reported, users_code


@reported
def train(
    scenario: options.ScenarioArgument,
    *,
    jobs: options.JobsOption = None,
    dask: options.DaskOption = None,
    output: Annotated[
        Path | None, options.option("-o --output DIR", "Default: runs/NAME_train.")
    ] = None,
    fresh: Annotated[
        bool, options.option("--fresh", "Also train methods whose trajectories are shipped.")
    ] = False,
    tensorboard: Annotated[
        Path | None, options.option("--tensorboard DIR", "Also write the curves for TensorBoard.")
    ] = None,
    sets: options.SetOption = None,
    seed: options.SeedOption = None,
    as_json: options.ResultsOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train with each method until a target.

    Reports the simulated time to the scenario's target on every cluster size. Trajectories are
    cached: another cluster takes seconds, and after an interruption the same command continues.
    Those of the shipped scenarios come with gcsim.
    """
    from gcsim.analysis.trained.write import require_tensorboard, write_events
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, note_trained_before, note_written, show, width
    from gcsim.scenarios.load import load_scenario
    from gcsim.scenarios.trained.horizon import foreseen, inconclusive
    from gcsim.scenarios.trained.runs import mid_round, plan_of
    from gcsim.scenarios.trained.study import train as train_all

    with users_code():
        loaded = load_scenario(scenario, sets or (), seed)
    folder = options.results_folder(output, f"{loaded.name}_train")
    if tensorboard is not None:
        require_tensorboard("--tensorboard")
        options.check_writable(tensorboard, "--tensorboard")
    if not quiet:
        note(*mid_round(loaded), *inconclusive(foreseen(loaded, plan_of(loaded).steps)))
    tell = (lambda _: None) if quiet else note
    with kept_on_interrupt(), watching(quiet) as progress:
        result = train_all(loaded, jobs=jobs, dask=dask, fresh=fresh, progress=progress, tell=tell)
    from gcsim.analysis.trained.table import parts
    from gcsim.analysis.trained.write import draw_training, write_training

    paths = write_training(result, folder)
    show(as_json, result.to_json, lambda: parts(result, width()))
    asked = ["gcsim", "train", scenario, *options.again(sets, seed)]
    paths = (*draw_training(result, folder, shlex.join(asked)), *paths)
    if tensorboard is not None:
        write_events(result, tensorboard)
    if not quiet:
        note_trained_before(result)
        note_written(folder, paths)
        if tensorboard is not None:
            shows = shlex.join(["tensorboard", "--logdir", str(tensorboard)])
            note(f"The curves: {shows}")
