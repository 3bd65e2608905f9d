"""Does the suite that docs/validation-method.md shows run as it stands there?"""

import re
from pathlib import Path

from gcsim.analysis.validation.judge import run_suite
from gcsim.analysis.validation.registry import chosen

PAGE = Path(__file__).parents[3] / "docs" / "validation-method.md"
FILES = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)


def test_the_example_is_a_suite(tmp_path: Path) -> None:
    files = dict(FILES.findall(PAGE.read_text(encoding="utf-8")))
    assert set(files) == {f"my_cluster/{name}" for name in ("suite.yaml", "rows.csv", "page.md")}
    (tmp_path / "my_cluster").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    report = run_suite(chosen([str(tmp_path / "my_cluster")])[0])
    assert report.suite.about == "Gloo's all-reduces on up to eight machines."
    assert report.overall is not None
    assert report.overall.points == 4  # of six rows the two of two machines served the fit
    assert report.findings.factors[0].points == 2
    assert report.kept
