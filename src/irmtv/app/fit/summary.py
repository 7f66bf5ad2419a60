"""What `irmtv fit` stores and reports (schema 1), as plain data.

Everything is JSON (None where a number is not finite), so that a report can be made again from the model file alone,
without the rows.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from irmtv.core.numbers import Estimate
from irmtv.core.outcomes import Outcome

# coefficient x standard deviation; rise of the risk when a feature is shuffled; mean absolute Shapley value of trees
FeaturesKind = Literal["coefficients", "shuffling", "contributions"]


class EnvironmentRow(TypedDict):
    """One environment on held-out rows: ERM, the model that was chosen, chosen minus plain."""

    name: str
    rows: int
    erm: Estimate
    chosen: Estimate
    difference: Estimate
    verdict: NotRequired[str]  # of other rows: "worse", "perhaps worse", "as expected", "better", "unknown"


class PathPoint(TypedDict):
    """One penalty weight, at its best step: the lowest held-out risk, of what passes where anything does.

    Linear models by Newton's method have no steps to choose from. There it is the best of the classifiers and starts
    that every weight is tried with.
    """

    penalty_weight: float
    label: str  # the weight, or what else tells it from others ("trees (12 leaves): 100", "1e+03, l2 0.003")
    step: int  # of trees: round; of Newton's method 1, the solution
    risk: float | None  # held-out risk over all rows
    worst: float | None  # in the worst environment
    variation: float | None  # mean absolute slope over the environments: the total variation that TV-l1 squares
    p: float | None  # of the test of invariance; None where another rule chose
    passes: bool | None
    chosen: bool
    model: NotRequired[str]  # as in the summary; its first word is the kind; older files do not say
    solver: NotRequired[str | None]  # "newton" or "adam", of linear models and networks; older files: "adam"
    objective: NotRequired[str]  # where it is another one, beside the path: "eills"
    classifier: NotRequired[str]  # with which it is best, where several were tried: "scalar" or "vector"
    start: NotRequired[str]  # likewise, of Newton's method: "erm" or "equal-risks"


def variant(point: PathPoint) -> str:
    """The classifier and the start with which a weight is best, where several were tried: "vector, from ERM"."""
    words = {"erm": "from ERM", "equal-risks": "from equal risks"}
    return ", ".join(filter(None, [point.get("classifier"), words.get(point.get("start", ""))]))


class FamilyRow(TypedDict):
    """One kind of model in the comparison of kinds."""

    name: str  # "linear", "mlp" or "trees"
    model: str  # with its size, as in the summary
    risk: float | None  # of ERM; in environments left out, the geometric mean over them
    behind: float | None  # mean difference from the lowest: of log risk in environments left out, else of risk
    error: float | None  # standard error of that difference
    taken: bool


class Families(TypedDict):
    """The kinds of models that were compared by their ERM, the simplest first."""

    by: Literal["left-out", "held-out"]  # the environments that training left out, or rows held out of known ones
    compared: list[FamilyRow]
    message: str  # which was taken, and why


class LeftOutRow(TypedDict):
    """One environment, or a group of them, that training left out: the score of ERM and of the choice there."""

    name: str
    rows: int
    plain: float | None
    chosen: float | None
    missing: str  # classes that no other environment has, with commas between


class Expected(TypedDict):
    """In an environment that nobody has seen."""

    mean: float | None
    worst: float | None  # of those that were left out
    low: float | None  # of the prediction interval for one more environment
    high: float | None


class LeftOutFamily(TypedDict):
    """One kind of model in environments that its training left out."""

    name: str  # "linear", "mlp" or "trees"
    model: str  # with its size
    taken: bool
    plain_expected: Expected  # of its ERM
    expected: Expected  # of what the rule chooses from its path
    environments: list[LeftOutRow]


class NewEnvironment(TypedDict):
    """What to expect in an environment that nobody has seen.

    Penalty weight and step of the choice are those that were chosen once, on all environments.
    """

    metric: str  # that of the summary; of older files "rmse" in place of "mae"
    message: str  # why there is no estimate; older files: the estimate in words
    left_out: str  # "environments", "in order" of time, or "blocks of aux"
    expected: Expected | None  # of the chosen model; None where there is no estimate
    coverage: float  # of the interval
    assumption: str
    families: list[LeftOutFamily]
    seconds: float  # that training without each environment took


class Curves(TypedDict):
    """Training of the final model: the risk of every environment over the steps, of trees over the rounds.

    Newton's method has two: 0 is ERM, 1 the final model.
    """

    steps: list[int]
    environments: list[str]
    risk: list[list[float | None]]  # by environment, then step
    solver: NotRequired[str | None]  # as of the path's points


class Inferred(TypedDict):
    """Environments that a network inferred from aux: membership at some of the training rows."""

    aux: list[str]
    is_date: list[bool]  # by aux column: values are then years as decimal numbers
    points: list[list[float]]  # by row, at most 1,000: the values of aux
    membership: list[list[float]]  # by row: probability of every environment
    names: list[str]


class Feature(TypedDict):
    """What a feature weighs, as a share of the sum of all absolute weights, signed for linear models.

    What weights are says `features_kind` of the summary. ERM is that of the same kind of model.
    """

    name: str
    erm: float | None
    chosen: float | None
    invariant: bool | None  # where it is known, of generated data


class LossCurve(TypedDict):
    """The loss as a function of the environment: held-out risks of ERM and of the choice, where that is another."""

    model: str  # "ERM", "TV-l1", "eills"; older files: also "TV-l2"
    penalty_weight: float | None
    risk: list[float | None]  # in the order of `environments` of the summary


class TellingColumn(TypedDict):
    """A column that gives an environment away: by its value alone a row of it is told from rows of the others."""

    name: str
    environment: str  # the one that it tells best
    share: float  # of rows that are told right, those of the environment and those of the others counting alike


class FirstLook(TypedDict):
    """How the environments differ, as far as that is cheap to say; `irmtv diagnose` has all of it."""

    overlap: str  # sentence: whether the features tell the environments apart
    auc: float | None  # of a classifier that tells them apart: 0.5 is guessing
    p: float  # of "the features have the same distribution in all environments"
    loss_p: float | None  # of "the plain model has the same loss in all environments"
    telling: list[TellingColumn]  # the clearest first
    smallest: str  # environment
    smallest_rows: int


class Answer(TypedDict):
    """The answer in three paragraphs, each to be understood by itself."""

    title: str  # in a few words
    kind: Literal["good", "partly", "plain"]  # good: confirmed; partly: with a warning
    expect: str  # in a new environment
    choice: str  # what was chosen, and where it is better or worse than the plain model
    next: str  # what to do next
    command: str  # that `next` ends with; "" where there is none


class Data(TypedDict):
    file: str
    path: NotRequired[str]  # as it was given; older files do not say
    rows: int  # in the file
    rows_used: int
    target: str
    environment: list[str]  # columns; empty where none is given
    aux: list[str]
    columns: list[str]  # read as features
    dropped: NotRequired[list[str]]  # columns that were left out on demand (--drop, --features); older files: none
    categorical: NotRequired[list[str]]  # features that were said to be categories
    options: NotRequired[dict[str, list[str]]]  # how the table is read, as it was given: "drop", "features", ...
    features: int  # numbers made of them
    missing: dict[str, float]  # by column with missing values: their share
    notes: list[str]  # what was done to the table, in sentences


class TestScores(TypedDict):
    """ERM and the chosen model on other rows, which played no part in the choice (`--test`)."""

    file: str
    rows: int
    environments: list[EnvironmentRow]  # empty where the rows do not say where they come from
    overall: EnvironmentRow
    worst: EnvironmentRow | None
    verdict: NotRequired[list[str]]  # sentences: whether these scores are what was expected; older files do not say
    notes: list[str]


class FitSummary(TypedDict):
    """All of it."""

    schema: int  # 1
    command: str  # to run it again
    created: str  # date and time, ISO
    seconds: dict[str, float]  # "reading", "preparing", "training", "comparing", "all"
    versions: dict[str, str]
    data: Data
    task: Literal["binary", "multiclass", "regression"]
    classes: list[str]  # empty for regression
    objective: str
    model: str  # "linear", "mlp 32", "trees (12 leaves)"
    plain_model: NotRequired[str]  # that of ERM in the tables; older files: the same
    settings: dict[str, Any]
    families: NotRequired[Families | None]  # None where there was one; older files: the rule chose among all
    rule: str
    sought: NotRequired[bool]  # False: objective "erm" was asked for, and no invariant model was looked for
    outcome: Outcome | None  # None where another rule than "invariance" chose
    new_environment: NotRequired[NewEnvironment]  # older files do not say
    first_look: NotRequired[FirstLook | None]  # None where no environments are given; older files do not say
    answer: NotRequired[Answer]  # older files: made of the rest
    headline: str  # the second paragraph of the answer; older files: the outcome in one sentence
    message: str  # what the rule says, in full
    metric: str
    greater_is_better: bool
    environments: list[EnvironmentRow]
    overall: EnvironmentRow
    worst: EnvironmentRow
    path: list[PathPoint]
    curves: Curves | None
    inferred: Inferred | None
    features: list[Feature]
    features_kind: NotRequired[FeaturesKind]  # older files: coefficients of linear models, else shuffling
    losses: list[LossCurve]
    test: NotRequired[TestScores]  # where other rows were given
