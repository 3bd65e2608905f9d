"""Text, tables and documents of a plan of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gcsim.analysis.advice.setting import NOT_CHECKED, SUPPOSED, link_facts, transport_of
from gcsim.analysis.report.numbers import percent, scaled, significant
from gcsim.analysis.report.sections import WIDEST, Line, section_lines
from gcsim.analysis.report.table import bare_table
from gcsim.analysis.report.wording import to_narrow
from gcsim.errors import InputError
from gcsim.files import csv_text, json_text, write_text
from gcsim.scenarios.advice.slowest_link import nearest_link
from gcsim.scenarios.checks.fits import Misfit, gib
from gcsim.scenarios.planning.choice import SURE, DrawnPoint, Measurement, Plan
from gcsim.scenarios.planning.offers import Offer
from gcsim.scenarios.trained.evidence import optimizer_of
from gcsim.simulator.luck import as_probability

SCHEMA = 1
_DAY = 24
_ENDLESS = 10_000  # cells, more than any table has
_RATIO = "gains of compression", "times of compressed steps"
"""Name of an uncertain input, and its name in the text, where its figure is a ratio of times."""


def parts(plan: Plan, width: int) -> tuple[RenderableType, ...]:
    """Return the text of `gcsim plan` on `width` terminal cells: question, Pareto front, answer."""
    shown: list[RenderableType] = [Text(header(plan)), ""]
    if plan.front:
        shown += [_front(plan, width), ""]
    cells = max(60, min(width, WIDEST))
    for word, texts in sections(plan):
        shown += [
            Text(line, no_wrap=True, overflow="ignore")  # commands must stay copyable
            for line in section_lines(word, texts, cells)
        ]
    return tuple(shown)


def _front(plan: Plan, width: int) -> Table:
    """Return the Pareto front; where it is too wide, machines and method share a column."""
    (machine, method, *others), lines = table(plan)
    right = [f">{heading}" for heading in others]
    whole = bare_table([machine, method, *right], lines)
    if Console(width=_ENDLESS).measure(whole).maximum <= width:
        return whole
    stacked = [
        [f"{machine}, {method}".replace(", ", ",\n  "), *rest] for machine, method, *rest in lines
    ]
    return bare_table([f"{machine},\n{method}", *right], stacked, gap=0)


def header(plan: Plan) -> str:
    """Return the question as one line: model, amount of data, batch, deadline, budget."""
    job = plan.job
    unit = "tokens" if plan.a_sample > 1 else "samples"
    limits = [
        f"deadline {_time(plan.deadline)}" if plan.deadline is not None else "",
        f"budget {_money(plan.budget)}" if plan.budget is not None else "",
    ]
    said = [f"{job.model}, {_count(job.amount)} {unit}, {_count(job.batch)} per step", *limits]
    return ", ".join(filter(None, said))


def table(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Return the headings and lines of the Pareto front, fastest first."""
    kept = any(one.point.work.checkpointing != "none" for one in plan.front)
    divided = any(one.point.work.strategy != "ddp" for one in plan.front)
    headings = ["machines", "method", "micro-\nbatch", *(["check-\npointing"] if kept else [])]
    headings += ["strategy"] if divided else []
    headings += ["hours", *(["range"] if plan.drawn else []), "money"]
    headings += ["P(in\ntime)"] if plan.drawn and plan.deadline is not None else []
    headings += ["P(in\nbudget)"] if plan.drawn and plan.budget is not None else []
    lines = []
    for one in plan.front:
        work, (low, high) = one.point.work, one.hours_range
        chances = [percent(chance) for chance in plan.probabilities(one) if chance is not None]
        mark = "> " if one is plan.choice else "  "
        doubt = f", memory {NOT_CHECKED}" if one.point.row.fits is None else ", may not fit"
        fits = "" if work.sure else doubt
        cut = f"{work.micro_batch} x {work.accumulation}"
        lines.append(
            [mark + machines(one) + fits, one.point.choice.label, cut,
             *([work.checkpointing] if kept else []), *([work.strategy] if divided else []),
             significant(one.point.hours),
             *([f"{significant(low)}-{significant(high)}"] if plan.drawn else []),
             _money(one.point.money), *chances]
        )  # fmt: skip
    return headings, lines


def machines(one: DrawnPoint) -> str:
    """ "4 x 8 a100_sxm_80gb, 100gbe" """
    site = one.point.work.site
    return f"{site.nodes} x {site.offer.gpus} {site.offer.name}"


def sections(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the answer: a word, and its parts."""
    choice = plan.choice
    if choice is not None:
        yield "Choose", list(_choice(plan, choice))
        if plan.drawn:
            yield "Measure", [_measure(plan, plan.measure)]
    else:
        yield "Choose", ["none of the offers"]
    if plan.unfit:
        yield "Too small", [f"{_too_small(*pair)}\n" for pair in plan.unfit]
    if plan.left_out:
        yield "Left out", [f"{one.name} ({one.place}): {why}\n" for one, why in plan.left_out]
    if choice is not None:
        yield "Assumed", list(_assumed(plan, choice))


def _choice(plan: Plan, choice: DrawnPoint) -> Iterator[str]:
    sure = choice.point.work.sure and not all(one.point.work.sure for one in plan.front)
    if plan.deadline is None and plan.budget is None:
        cheapest = f"the cheapest{' that surely fits' if sure else ''}"
        yield f"{machines(choice)}, {cheapest} (--deadline or --budget may choose another)"
    else:
        met = plan.met(choice)
        limits = [name for name in ("deadline", "budget") if getattr(plan, name) is not None]
        how = "fastest" if limits == ["budget"] else "cheapest"
        fits = "surely fits and " if sure else ""
        draws = f"in at least {percent(SURE)} of the draws"
        both = f"the {' and '.join(limits)} {draws if plan.drawn else 'with the stated inputs'}"
        least = f"the {how} that {fits}meets {both}"
        this = f"does in {percent(as_probability(met))}" if plan.drawn else "is the fastest"
        rest = least if met >= SURE else f"no setting meets {both}; this one {this}"
        yield f"{machines(choice)}, {rest}"
    if choice.point.row.fits == "perhaps":
        yield "which may not fit in its memory"
    yield "check with:"
    yield Line(command(plan, choice))


def _measure(plan: Plan, found: Measurement | None) -> str:
    if found is None:
        return "no single measurement would change the choice" if len(plan.front) > 1 else "-"
    side = "below" if found.below else "above"
    unit = found.unit
    bound = f"{side} {_figure(found.end, unit)} (assumed {_figure(found.stated, unit)})"
    how, name = to_narrow(found.command), found.name.replace(*_RATIO)
    return f"{how}; with {name} {bound} the choice would be {machines(found.instead)}"


def _figure(value: float, unit: str) -> str:
    if unit == "s":
        return (
            f"{significant(value * 1e3)} ms" if value > 1e-3 else f"{significant(value * 1e6)} us"
        )
    return scaled(value, unit)


def _too_small(offer: Offer, misfit: Misfit) -> str:
    needs, has = gib(misfit.memory.low), gib(misfit.memory.device or 0)
    return f"{offer.name} ({offer.place}): needs at least {needs}, has {has}; {misfit.cure}"


def _assumed(plan: Plan, choice: DrawnPoint) -> Iterator[str]:
    batch = "steps of at most the stated batch, in whole micro-batches"
    yield f"dense training takes the same number of steps on any number of GPUs; {batch}"
    scenario = choice.point.work.site.scenario
    unproven = dict.fromkeys(
        label for one in plan.front if (label := one.point.choice.label) in plan.unproven
    )
    if scenario.training.local_steps > 1:
        unproven["local steps"] = None
    if unproven:
        yield f"so does training with {', '.join(unproven)} (check accuracy first)"
    cluster = scenario.cluster
    if cluster.workers > 1:
        link = nearest_link(cluster).link
        yield f"{transport_of(scenario)}, {link_facts(link)}"
    if plan.supposed:
        yield SUPPOSED
    if choice.point.row.fits is None:
        yield f"memory {NOT_CHECKED}"
    tried = f"{plan.settings:,} settings fit, {plan.simulated:,} simulated"
    facts = ", ".join(filter(None, (scenario.training.precision, optimizer_of(scenario))))
    yield f"{facts} ({tried})"


def command(plan: Plan, one: DrawnPoint) -> str:
    """Return the `gcsim advise` command that simulates this point."""
    work, job = one.point.work, plan.job
    offer, training = work.site.offer, work.site.scenario.training
    said = (
        f"gcsim advise --model {job.model} --device {offer.device} --gpus {offer.gpus} "
        f"--nodes {work.site.nodes} --network {quote(offer.network)} "
        f"--precision {training.precision}"
    )
    said += f" --nics {offer.nics}" if offer.nics > 1 else ""
    for name in ("sequence", "loop"):
        if (value := getattr(job, name)) is not None:
            said += f" --{name} {value}"
    settings = dict.fromkeys((*work.settings(), *job.overrides))  # the two may set the same key
    return said + "".join(f" --set {quote(text)}" for text in settings)


COLUMNS = (
    "offer", "device", "gpus", "nodes", "network", "nics", "method", "micro_batch", "accumulation",
    "checkpointing", "strategy", "hours", "hours_low", "hours_high", "money", "money_low",
    "money_high", "probability_in_time", "probability_in_budget", "memory_low_bytes",
    "memory_high_bytes", "fits", "chosen", "command",
)  # fmt: skip


def records(plan: Plan) -> list[dict[str, Any]]:
    """Return the Pareto front as records by column, fastest first."""
    found = []
    for one in plan.front:
        work, row, (low, high) = one.point.work, one.point.row, one.hours_range
        offer, price = work.site.offer, work.site.price
        values = (
            offer.name, offer.device, offer.gpus, work.site.nodes, offer.network, offer.nics,
            row.label,
            work.micro_batch, work.accumulation, work.checkpointing, work.strategy,
            one.point.hours, low, high,
            one.point.money, low * price, high * price, *plan.probabilities(one),
            row.device_memory_low_bytes, row.device_memory_high_bytes, row.fits,
            one is plan.choice, command(plan, one),
        )  # fmt: skip
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def document(plan: Plan) -> dict[str, Any]:
    """Return the plain values that `--json` writes."""
    found = plan.measure
    return {
        "schema": SCHEMA,
        "model": plan.job.model,
        "amount": plan.job.amount,
        "batch": plan.job.batch,
        "unit": "tokens" if plan.a_sample > 1 else "samples",
        "deadline_h": plan.deadline,
        "budget": plan.budget,
        "front": records(plan),
        "measure": None
        if found is None
        else {
            "input": found.name.replace(*_RATIO), "unit": found.unit, "stated": found.stated,
            "by": found.command, "below" if found.below else "above": found.end,
            "instead": machines(found.instead),
        },
        "does_not_fit": [
            {"offer": offer.name, "place": offer.place, **misfit.document()}
            for offer, misfit in plan.unfit
        ],
        "left_out": [
            {"offer": offer.name, "place": offer.place, "why": why} for offer, why in plan.left_out
        ],
        "settings": plan.settings,
        "simulated": plan.simulated,
    }  # fmt: skip


def to_json(plan: Plan) -> str:
    """Return the document as JSON text."""
    return json_text(document(plan))


def to_markdown(plan: Plan) -> str:
    """Return the question, the front as a table, and the answer."""
    headings, lines = table(plan)
    rows = [[heading.replace("-\n", "").replace("\n", " ") for heading in headings]]
    rows += [["---"] * len(headings), *([cell.strip() for cell in line] for line in lines)]
    text = [header(plan), "", *(f"| {' | '.join(row)} |" for row in rows), ""]
    for word, texts in sections(plan):
        text += [f"**{word}** {' '.join(one.strip() for one in texts)}", ""]
    return "\n".join(text).replace("\N{NO-BREAK SPACE}", " ")


def write(plan: Plan, path: Path) -> None:
    """Write the plan in the format of the path's suffix; raises `InputError` for an unknown one."""
    check_format(path)
    write_text(path, _MAKERS[path.suffix](plan))


def check_format(path: Path) -> None:
    """Raise `InputError` unless the path's suffix is a known format."""
    if path.suffix not in _MAKERS:
        message = f"{path.suffix or 'no ending'!r} is not a format of a plan"
        raise InputError(message, place=str(path), hint=f"let it end in {', '.join(_MAKERS)}")


_MAKERS: dict[str, Callable[[Plan], str]] = {
    ".csv": lambda plan: csv_text(COLUMNS, records(plan)),
    ".json": to_json,
    ".md": to_markdown,
}
"""Functions that make a plan's text, by file suffix."""


def _count(value: float) -> str:
    for name, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:,.0f}"


def _money(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else significant(value)


def _time(hours: float) -> str:
    for unit, size in (("days", _DAY), ("hours", 1.0)):
        if hours >= 2 * size:
            return f"{hours / size:.3g} {unit}"
    return f"{hours * 60:.3g} minutes"
