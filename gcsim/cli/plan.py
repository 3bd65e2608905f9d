"""`gcsim plan`: which of the offered machines to rent, how many, and with which settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gcsim import units
from gcsim.cli.options import JsonOption, QuietOption, SeedOption, SetOption, option, parsed
from gcsim.cli.outcome import reported, users_code
from gcsim.errors import InputError

TOKENS, SAMPLES = float(1 << 19), 256.0
"""Default global batch, in tokens and in samples."""


@reported
def plan(
    *,
    model: Annotated[str, option("--model NAME", "A name from gcsim list models.")],
    offers: Annotated[
        Path,
        option(
            "--offers FILE",
            "CSV: device, gpus, nodes, network, price (per node and hour); optional: nics.",
        ),
    ],
    tokens: Annotated[str | None, option("--tokens N", "Tokens to train on: 10B, or 10e9.")] = None,
    samples: Annotated[
        str | None, option("--samples N", "Samples to train on, for models without tokens.")
    ] = None,
    batch: Annotated[
        str | None,
        option("--batch N", "Largest global batch. Default: 524288 tokens or 256 samples."),
    ] = None,
    deadline: Annotated[str | None, option("--deadline TIME", 'e.g. "3 days" or "40 h".')] = None,
    budget: Annotated[str | None, option("--budget X", "Limit, in the prices' currency.")] = None,
    precision: Annotated[
        str | None, option("--precision NAME", "fp32, tf32, fp16 or bf16. Default: 16 bits.")
    ] = None,
    sequence: Annotated[int | None, option("--sequence N", "Tokens per sample.", min=1)] = None,
    loop: Annotated[str | None, option("--loop NAME", "As in gcsim advise.")] = None,
    output: Annotated[Path | None, option("-o --output FILE", ".csv, .json or .md.")] = None,
    sets: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Choose machines, and how to train on them.

    gcsim plan --model gpt2_xl --tokens 100B --offers offers.csv --deadline "3 days"

    Tries all offers, numbers of nodes, micro-batches, checkpointing and methods known to train,
    and shows the settings that no other beats in both hours and money, with their ranges.
    """
    from gcsim.analysis.advice import plan as text_of
    from gcsim.cli.options import check_writable
    from gcsim.cli.progress import watching
    from gcsim.cli.terminal import note, show, width
    from gcsim.scenarios import catalog
    from gcsim.scenarios.advice.question import count_of
    from gcsim.scenarios.planning.choice import planned
    from gcsim.scenarios.planning.search import Job

    found = catalog.model(model)
    of_tokens = found.input == "tokens"
    wanted, other = ("--tokens", samples) if of_tokens else ("--samples", tokens)
    amount = tokens if of_tokens else samples
    if amount is None or other is not None:
        reads = "tokens" if of_tokens else "samples"
        message = f"is missing: {found.name} reads {reads}"
        raise InputError(message, place=wanted, hint=f"write {wanted} 10M")
    if output is not None:
        text_of.check_format(output)
        check_writable(output.parent)
    default = TOKENS if of_tokens else SAMPLES
    job = Job(
        model=found.name,
        amount=parsed(wanted, count_of, amount),
        batch=default if batch is None else parsed("--batch", count_of, batch),
        precision=precision,
        sequence=sequence,
        loop=loop,
        overrides=tuple(sets or ()),
        seed=seed,
    )
    with users_code(), watching(quiet) as progress:
        answer = planned(
            job,
            offers,
            deadline=None if deadline is None else parsed("--deadline", hours, deadline),
            budget=None if budget is None else parsed("--budget", count_of, budget),
            progress=progress,
            tell=(lambda _: None) if quiet else note,
        )
    show(as_json, lambda: text_of.to_json(answer), lambda: text_of.parts(answer, width()))
    if output is not None:
        text_of.write(answer, output)
        if not quiet:
            note("", f"Written to {output}")


def hours(text: str) -> float:
    """Parse hours from "3 days" or "40 h"; raises `InputError`."""
    value = float(units.parse(text, "time", "3 days") / 3600)
    if value <= 0:
        raise InputError(f"{text!r} is not a time above 0", hint='write it like "3 days" or "40 h"')
    return value
