"""The section of other rows (`fit --test`): the chosen and the plain model where neither was trained nor chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irmtv.app.fit.comparing import erm_is_kept, in_order
from irmtv.app.fit.summary import EnvironmentRow, FitSummary
from irmtv.core.numbers import MetricFormat, several
from irmtv.html import page


def section(summary: FitSummary) -> page.Section | None:
    """None where no other rows were given."""
    scores = summary.get("test")
    if scores is None:
        return None
    of = MetricFormat(summary["metric"])
    columns: dict[str, Callable[[EnvironmentRow], str]] = {
        "environment": lambda row: row["name"],
        "rows": lambda row: f"{row['rows']:,}",
        f"plain, {of.title}": lambda row: of.interval(row["erm"]),
    }
    if not erm_is_kept(summary):
        columns |= {
            f"chosen, {of.title}": lambda row: of.interval(row["chosen"]),
            f"chosen − plain{of.difference_unit}": lambda row: of.interval(row["difference"], sign=True),
        }
    if any("verdict" in row for row in scores["environments"]):
        columns["verdict"] = lambda row: row.get("verdict", "")
    environments, _ = in_order(summary, scores["environments"])
    worst = [scores["worst"]] if scores["worst"] is not None and len(environments) > 1 else []
    rows = [scores["overall"], *worst, *environments]
    about = f"{several(scores['rows'], 'row')} of {scores['file']}, which had no part in training and choice"
    verdict = " ".join(scores.get("verdict", []))
    said = f"By {of.words} on {about}: {verdict}" if verdict else f"{about}."
    shown: Mapping[str, Callable[[EnvironmentRow], str]] = columns
    blocks = [page.text(said), page.table_of(rows, shown, words=["environment", "verdict"])]
    blocks += [page.text(note) for note in scores["notes"]]
    return page.section("test", "On other rows", scores["file"], blocks)
