"""`gcsim advise`: what to use and what to change first, in a dozen lines, without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gcsim.cli.options import JsonOption, QuietOption, SeedOption, SetOption, option
from gcsim.cli.outcome import reported, users_code


@reported
def advise(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCENARIO|TRACE|MODEL]",
            help="A scenario, a folder of recorded gradients, or a name from gcsim list models.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[str | None, option("--model NAME", "A name from gcsim list models.")] = None,
    device: Annotated[
        str | None, option("--device NAME", "A name from gcsim list devices, or auto.")
    ] = None,
    gpus: Annotated[str | None, option("--gpus N", "GPUs per node. Default: 1.")] = None,
    nodes: Annotated[
        str | None, option("--nodes N", "Machines. Default: 1 with --gpus and no --network.")
    ] = None,
    nics: Annotated[str | None, option("--nics N", "NICs per node. Default: 1.")] = None,
    group: Annotated[
        list[str] | None,
        option("--group NODES", 'Group of equal nodes, e.g. "4 x 8 a100 @ 100gbe". Repeatable.'),
    ] = None,
    network: Annotated[
        str | None, option("--network LINK", '"25 Gbit/s", or a name from gcsim list links.')
    ] = None,
    parameters: Annotated[
        str | None, option("--parameters N", "Parameter count instead of --model, e.g. 110M.")
    ] = None,
    precision: Annotated[
        str | None, option("--precision NAME", "fp32, tf32, fp16 or bf16.")
    ] = None,
    loop: Annotated[
        str | None,
        option("--loop NAME", "ddp (default without a file), horovod, paddle, deepspeed, own."),
    ] = None,
    limited: Annotated[
        bool | None,
        option("--limited/--nic", "tc or the provider caps the bandwidth, or the NIC does."),
    ] = None,
    sequence: Annotated[
        str | None, option("--sequence N", "Tokens per sample, for a model by formula.")
    ] = None,
    checkpointing: Annotated[
        str | None, option("--checkpointing NAME", "none, selective or full.")
    ] = None,
    batch_size: Annotated[
        str | None, option("--batch-size N", "Samples per GPU. Default: 32, or 4,096 tokens.")
    ] = None,
    cost: Annotated[
        str | None,
        option("--cost-per-hour X", "Price per node and hour, to show savings in money."),
    ] = None,
    per_bucket: Annotated[
        bool, option("--per-bucket", "Also show the gain of one method per bucket.")
    ] = False,
    axes: Annotated[
        str | None, option("--map KEY,KEY", "Draw the fastest method, e.g. bandwidth,latency.")
    ] = None,
    output: Annotated[
        Path | None, option("-o --output FILE", "File for --map: .png, .svg or .pdf.")
    ] = None,
    save: Annotated[
        Path | None, option("--save FILE", "Write the scenario, for gcsim run.")
    ] = None,
    sets: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Recommend a method and what to change first.

    gcsim advise --model resnet50 --device v100 --gpus 4 --nodes 8 --network "25 Gbit/s"

    Uses traffic that comes with gcsim for the shipped models, so no compressor runs; gcsim run
    measures it.
    """
    from gcsim.analysis.advice import unfit
    from gcsim.analysis.advice.advice import advice
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import emit_exactly, note, note_next, width
    from gcsim.scenarios.advice.question import Words, ask, number
    from gcsim.scenarios.advice.question import option as called
    from gcsim.scenarios.checks.fits import DoesNotFitError

    words = Words(
        model=model,
        device=device,
        gpus=number(gpus),
        nodes=number(nodes),
        nics=number(nics),
        group=group,
        network=network,
        parameters=parameters,
        precision=precision,
        loop=loop,
        limited=limited,
        sequence=number(sequence),
        checkpointing=checkpointing,
        batch_size=number(batch_size),
        cost_per_hour=number(cost),
    )
    wide, given, misfit, cures = min(width(), 100), list(sets or ()), None, list[str]()
    with users_code():
        question = ask(source, words, given, seed, called=called)
        try:
            question.scenario  # noqa: B018  # its mistakes come first
        except DoesNotFitError as error:
            misfit, cures = error, [] if axes is not None else list(error.misfit.sets)
            if cures:
                question = ask(source, words, given + cures, seed, called=called)
    if misfit is not None and not cures:
        emit_exactly(unfit.to_json(misfit) if as_json else unfit.summary(misfit, width=wide))
        return
    if axes is not None:
        from gcsim.analysis.advice.map import draw_map

        path = output or Path(f"{question.scenario.name}_map.png")
        with watching(quiet) as progress:
            draw_map(question, axes, path, progress=progress)
        if not quiet:
            note("", f"Written to {path}")
        return
    with watching(quiet) as progress:
        tell = (lambda _: None) if quiet else note
        found = advice(question, progress=progress, tell=tell, per_bucket=per_bucket)
    if misfit is not None:
        text = unfit.to_json(misfit, found) if as_json else unfit.summary(misfit, found, wide)
    else:
        text = found.to_json() if as_json else found.summary(wide)
    emit_exactly(text)
    if save is not None:
        from gcsim.files import write_text
        from gcsim.scenarios.reading import document

        write_text(save, document.write(found.result.scenario))
    if not quiet:
        if found.shipped:
            note(
                "", "Traffic: shipped with gcsim, measured on gradients drawn from fitted "
                "distributions; gcsim run measures it on the scenario's own gradients."
            )  # fmt: skip
        if save is not None:
            note_next(["run", str(save)], "every method on its own gradients")
