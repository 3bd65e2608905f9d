"""Output for a paper: a run's table in LaTeX or Markdown, its methods' references in BibTeX."""

from __future__ import annotations

import re
import sys

from gcsim.analysis.report.table import brief_table, title
from gcsim.compressors.registry import compressor_class
from gcsim.files import markdown_table
from gcsim.scenarios.result import Result

_LATEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip
_CITED = re.compile(
    r'(?:^s?: |^ |.*? (?:of|in) )(?P<authors>[A-Z]\.[^";]*), "(?P<title>[^"]+)", (?P<venue>[^;]+)'
)
"""Authors, title, and the venue with the rest of the clause, in a method's docstring."""
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def latex(result: Result) -> str:
    """Return the table of the largest size for `booktabs`; each method cites its reference."""
    heads, rows = brief_table(result)
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(map(_escaped, heads)) + r" \\",
        r"\midrule",
    ]
    for row, (label, *cells) in rows:
        cite = rf"~\cite{{{row.compressor}}}" if reference(row.compressor) else ""
        lines.append(" & ".join([_escaped(label) + cite, *map(_escaped, cells)]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", f"% {title(result)}"]
    return "\n".join(lines) + "\n"


def markdown(result: Result) -> str:
    """Return the table of the largest size in Markdown."""
    heads, rows = brief_table(result)
    lines = markdown_table(heads, [cells for _, cells in rows])
    return "\n".join([title(result), "", *lines]) + "\n"


def bibtex(result: Result) -> str:
    """Return a BibTeX entry for each method, keyed by its registered name."""
    kinds = dict.fromkeys(row.compressor for row in result.rows)
    return "\n".join(text for kind in kinds if (text := reference(kind)))


def reference(kind: str) -> str:
    """Return a method's BibTeX entry; empty if its docstring names no paper."""
    cls = compressor_class(kind)
    texts = [
        " ".join((text or "").split())
        for text in (cls.__doc__, sys.modules[cls.__module__].__doc__)
    ]
    clauses = [clause for text in texts for clause in text.partition("Source")[2].split(";")]
    every = [found for clause in clauses if (found := _CITED.search(clause))]
    named = set(_ARXIV.findall(cls.about.paper))
    own = [found for found in every if named & set(_ARXIV.findall(found["venue"]))]
    if not every:
        return ""
    cited = (own or every)[0]
    authors = cited["authors"].replace(" et al.", ", others").replace(", ", " and ")
    arxiv, year = _ARXIV.search(cited["venue"]), re.search(r"\b(?:19|20)\d\d\b", cited["venue"])
    venue = re.split(r"(?:^|, )(?:arXiv|doi|[Aa]lg|[Ss]ection|[Ee]q)| \(", cited["venue"])[0]
    fields = {"author": authors, "title": f"{{{cited['title']}}}"}
    fields |= {"howpublished": venue.rstrip(". ")} if venue else {}
    fields |= {"year": year[0]} if year else {}
    fields |= {"eprint": arxiv[1], "archiveprefix": "arXiv"} if arxiv else {}
    body = ",\n".join(
        f"  {name} = {{{_escaped(value, but='{}')}}}" for name, value in fields.items()
    )
    return f"@misc{{{kind},\n{body},\n}}\n"


def _escaped(text: str, but: str = "") -> str:
    return "".join(char if char in but else _LATEX.get(char, char) for char in text)
