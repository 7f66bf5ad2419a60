"""Is the risk blocky (piecewise-constant) in the environment? Environments that change continuously with time.

On the simulation the environment at time t is p_s(t), the probability that the spurious sign agrees with the label. The
risk of any predictor is a mean over two kinds of rows, so it is a straight line in p_s(t):

    R(t)  =  p_s(t) R_agree  +  (1 - p_s(t)) R_disagree
    range of R  =  |R_disagree - R_agree| (range of p_s)           total variation of R: likewise

Its shape over time, and so its blockiness, is that of p_s(t) whatever the training; its size is what training changes.
What can come out either way is how long the risk is nearly constant on a scale that is the same for all methods: the
share of time in which |dR/dt| is below 1 % of the mean slope of ERM's risk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure

from irmtv.core.types import Task
from irmtv.datasets import make_simulation
from irmtv.lab.theory.blocky import COLOURS, NAMES, blockiness
from irmtv.lab.theory.figures import ERM, L1, L2, OTHER, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, Sides, at_most, beyond, claim, equal, greater, less, ours, statement
from irmtv.lab.theory.sides import Floats, Function, statistics_from
from irmtv.lab.theory.simulated_risk import STEPS, Linear, check_repetitions, fit, risk_gradient, risk_line
from irmtv.objectives.irm_tv_l1 import tv_l1
from irmtv.objectives.irm_tv_l2 import tv_l2

Line = Callable[[Floats, Floats, Floats], Floats]  # risk where the signs agree, where they do not, p_s -> risk

PUBLISHED = "TV-l2, as in\npublished code"
TIME = np.linspace(0, 1, 6001)
FRESH_ROWS, BINS = 400_000, 80
NEARLY = 0.01  # of ERM's mean slope over time: below it a risk is nearly constant


def wave(t: Floats) -> Floats:
    """Agreement of the spurious sign over time: 0.85 + 0.1 sin(3 pi t). Both halves of time have the same mean."""
    return np.asarray(0.85 + 0.1 * np.sin(3 * np.pi * t))


def _means(p_s: Function, parts: int, rows: int) -> Floats:
    """The mean agreement in equal parts of time, over `rows` moments in all: (parts,)."""
    return np.asarray(p_s((np.arange(rows) + 0.5) / rows).reshape(parts, -1).mean(1))


def _penalty_ratio(erm: Linear, p_s: Function, segments: int) -> float:
    """The l1 penalty over the l2 penalty of ERM's predictors, with the population's slopes in the segments."""
    slope = risk_gradient(erm, np.ones((1, 3)))[..., 0, :].sum(-1)  # (repetitions, 2)
    s = risk_line(slope[:, 0], slope[:, 1], _means(p_s, segments, 500 * segments))  # (repetitions, segments)
    e = statistics_from(np.zeros_like(s), s, np.full(segments, 1 / segments))
    return float((tv_l1(e, e.mass) / tv_l2(e, e.mass)).mean())


def _gap_at_equal_risk(l1: tuple[Floats, Floats], l2: tuple[Floats, Floats]) -> float:
    """How far apart the ranges are where the mean risks are equal, by the paths (mean risk, range) over the weights."""
    (risk_l1, range_l1), (risk_l2, range_l2) = l1, l2
    order = np.argsort(risk_l2)
    inside = (risk_l1 >= risk_l2.min()) & (risk_l1 <= risk_l2.max())
    there = np.interp(risk_l1[inside], risk_l2[order], range_l2[order])
    return float(np.abs(there - range_l1[inside]).max(initial=0))


@statement(
    "Is the risk blocky in the environment?",
    "section 3, opening, and section 3.2 (sec:IRM-TVL1)",
    formula=r"$R(t)=p_s(t)\,R_{agree}+(1-p_s(t))\,R_{disagree}$",
    size=(7.2, 3.0),
)
def blocky_over_time(
    p_s: Function = wave,
    p_v: float = 0.8,
    segments: int = 10,
    blind: int = 2,
    penalty_weight: float = 1e3,
    other_weights: tuple[float, ...] = (10.0, 100.0, 1e4),
    repetitions: int = 5,
    n_samples: int = 5000,
    steps: int = STEPS,
    line: Line = risk_line,
) -> Result:
    """TV-l1 produces a risk that is blocky (piecewise-constant) with respect to the environment, and so less sensitive
    to it than the risk of TV-l2.

    Environments that change continuously, p_s(t): range and total variation of the population risk over time. The
    methods see labels of `segments` equal segments of time, and then of `blind` ones that have the same mean agreement
    and so nothing to tell them apart. `penalty_weight` is the one that the comparisons are about. `line` (risk where
    the spurious sign agrees, where it does not, p_s) is the formula under test.
    """
    check_repetitions(repetitions)
    share = np.asarray(p_s(TIME), dtype=np.float64)
    if not np.ptp(share) > 1e-3:  # nor is NaN a range
        raise ValueError(f"p_s must vary over time. Got values from {share.min():g} to {share.max():g}. See `wave`.")

    def draw(k: int) -> list[Task]:
        return [
            make_simulation(n_samples, p_s, p_v, random_state=r, n_test=4, n_segments=k) for r in range(repetitions)
        ]

    # every method at one penalty weight, and both IRM-TV objectives at all
    weights = sorted({penalty_weight, *other_weights})
    chosen, one = weights.index(penalty_weight), [penalty_weight]
    tasks, blind_tasks = draw(segments), draw(blind)
    paths = {name: fit(tasks, name, p_v, steps, weights) for name in ("irm-tv-l2", "irm-tv-l1")}
    blind_l2, blind_l1 = (f"{name}, {blind} labels" for name in ("TV-l2", "TV-l1"))
    fits = {
        "ERM": fit(tasks, "erm", p_v, steps),
        "TV-l2": paths["irm-tv-l2"][chosen][None],
        "TV-l1": paths["irm-tv-l1"][chosen][None],
        PUBLISHED: fit(tasks, "irm-tv-l2", p_v, steps, one, reduction="authors"),
        "V-REx": fit(tasks, "vrex", p_v, steps, one),
        "Minimax-TV-l2": fit(tasks, "minimax-tv-l2", p_v, steps, one, environment_learning_rate=1e-2),
        "Minimax-TV-l1": fit(tasks, "minimax-tv-l1", p_v, steps, one, environment_learning_rate=1e-2),
        blind_l2: fit(blind_tasks, "irm-tv-l2", p_v, steps, one),
        blind_l1: fit(blind_tasks, "irm-tv-l1", p_v, steps, one),
    }

    def over_time(model: Linear) -> Floats:  # (weights, repetitions, T)
        return line(*model.risk_by_agreement(), share)

    curves = {name: over_time(model)[0] for name, model in fits.items()}  # (repetitions, T)
    extents = {name: np.ptp(c, axis=-1) for name, c in curves.items()}  # (repetitions,)
    slopes = {name: np.abs(np.diff(c)) for name, c in curves.items()}  # (repetitions, T - 1)
    still_below = NEARLY * slopes["ERM"].mean(-1, keepdims=True)
    # means over the repetitions: range, total variation, share of time in which the risk is nearly constant, blockiness
    extent = {name: float(e.mean()) for name, e in extents.items()}
    tv = {name: float(s.sum(-1).mean()) for name, s in slopes.items()}
    still = {name: float((s < still_below).mean(-1).mean()) for name, s in slopes.items()}
    blocks = {name: float(blockiness(s).mean()) for name, s in slopes.items()}
    of = {name: extent[name] / extent["ERM"] for name in fits}
    path = {
        name: (over_time(m).mean((1, 2)), np.ptp(over_time(m), axis=-1).mean(1)) for name, m in paths.items()
    }  # mean risk and range by weight

    # the first repetition on many fresh rows, in bins of time: mean loss, and chi-square per bin about the line
    fresh = make_simulation(FRESH_ROWS, p_s, p_v, random_state=99, n_test=4).train
    agreement = _means(p_s, BINS, FRESH_ROWS)
    measured, misfit = {}, {}
    for name in ("ERM", "TV-l2", "TV-l1"):
        first = fits[name][0, 0]
        loss = first.losses(fresh).reshape(BINS, -1)
        measured[name] = loss.mean(1)
        predicted = line(*first.risk_by_agreement(), agreement)
        misfit[name] = float((np.square(loss.mean(1) - predicted) / (loss.var(1) / loss.shape[1])).mean())
    # a misfit can only raise the mean of BINS squared deviates: four of its standard deviations above 1 is no chance
    chance = 1 + 4 * float(np.sqrt(2 / BINS))
    follows = float(np.corrcoef(measured["ERM"], agreement)[0, 1])
    ratio = _penalty_ratio(fits["ERM"][0], p_s, segments)
    gap = _gap_at_equal_risk(path["irm-tv-l1"], path["irm-tv-l2"])
    closer = int((extents["TV-l1"] < extents["TV-l2"]).sum())

    def l1_and(other: str, relation: Callable[..., Sides], of: Mapping[str, float], tolerance: float = 0.0) -> Sides:
        return relation("TV-l1", of["TV-l1"], other, of[other], tolerance)

    slow = "share of time with |dR/dt| below 1 % of ERM's mean slope"
    comparisons = (
        claim("range over time", l1_and("ERM", less, extent)),
        claim("total variation over time", l1_and("ERM", less, tv)),
        claim("range over time", l1_and("TV-l2", less, extent)),
        claim(slow, l1_and("TV-l2", greater, still)),
        claim(slow, l1_and("ERM", greater, still)),
        ours("blockiness over time (free of scale)", l1_and("ERM", equal, blocks, 1e-6)),
        beyond(
            f"range over time, {blind} labels of equal mean agreement (10 % less is less)",
            less("TV-l1", extent[blind_l1], "ERM", extent["ERM"], 0.1 * extent["ERM"]),
        ),
        ours(
            "blockiness over time",
            equal("TV-l1's risk", blocks["TV-l1"], "p_s(t)", blockiness(np.abs(np.gradient(share))), 1e-4),
        ),
        *(
            ours(f"chi-square per bin about the line, {name}", at_most(f"{FRESH_ROWS:,} rows", value, "chance", chance))
            for name, value in misfit.items()
        ),
        ours("correlation of ERM's measured risk with p_s", equal("bins", follows, "-1", -1.0, 0.02)),
        ours("l1 penalty over l2 penalty, ERM", at_most("ratio", ratio, "Jensen", 1.0, 1e-12)),
        ours(
            "largest gap between the ranges at equal mean risk",
            less("TV-l1, TV-l2", gap, "a tenth of ERM's range", 0.1 * extent["ERM"]),
        ),
    )

    def paint(figure: Figure) -> None:
        graph, bars, front = figure.subplots(1, 3, width_ratios=(1.1, 1, 0.9))
        plain(graph, "", "t", "risk, first repetition")
        middle = (np.arange(BINS) + 0.5) / BINS
        for name, colour in (("ERM", ERM), ("TV-l2", L2), ("TV-l1", L1)):
            graph.plot(TIME[::30], curves[name][0, ::30], color=colour, lw=1.2, label=name)
            graph.plot(middle, measured[name], ".", color=colour, ms=3)
        legend(graph, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.98), columnspacing=0.8, handlelength=1.2)
        plain(bars, "range, share of ERM's", "", "")
        colours = [ERM, L2, L1, L2, OTHER, L2, L1, L2, L1]
        names = list(curves)
        bars.barh(range(len(names)), [of[n] for n in names], color=colours, alpha=0.6)
        for i, name in enumerate(names):
            bars.plot(extents[name] / extents["ERM"], np.full(len(extents[name]), i), ".", color=TRUTH, ms=3)
        bars.set_yticks(range(len(names)), names, fontsize=6)
        bars.invert_yaxis()
        plain(front, "all penalty weights", "mean risk", "range over time")
        for name, (risk, reach) in path.items():
            front.plot(risk, reach, "o-", ms=4, color=COLOURS[name], label=NAMES[name])
        front.plot(curves["ERM"].mean(), extents["ERM"].mean(), "s", ms=4, color=ERM, label="ERM")
        front.set_ylim(0)
        legend(front)

    return Result(
        comparisons,
        "For every predictor the risk at time t is a straight line in p_s(t) (chi-square per bin "
        f"{min(misfit.values()):.2f} to {max(misfit.values()):.2f} on {FRESH_ROWS:,} fresh rows): its shape is that of "
        f"p_s(t) under every method (blockiness {blocks['ERM']:.3f}), a piecewise-constant risk is a constant one, and "
        f"only range and total variation can change. With {segments} environments and weight {penalty_weight:g} TV-l1 "
        f"shrinks both to {100 * of['TV-l1']:.0f} % of ERM's and TV-l2 to {100 * of['TV-l2']:.0f} %; TV-l1's range is "
        f"the smaller one in {closer} of {repetitions} repetitions. The slope over time is below 1 % of ERM's mean in "
        f"{100 * still['ERM']:.1f} % of the time for ERM, {100 * still['TV-l1']:.1f} % for TV-l1 and "
        f"{100 * still['TV-l2']:.1f} % for TV-l2. A nearly constant risk is blocky in a trivial way; both methods "
        "approach that, TV-l1 no more than TV-l2.\n\n"
        f"By Jensen's inequality the l1 penalty is never above the l2 penalty (for ERM it is {100 * ratio:.0f} % of "
        f"it), so equal weights do not weigh equally: at equal mean risk the ranges differ by at most {gap:.3f}. The "
        f"published code's l2, which divides by the number of environments, leaves {100 * of[PUBLISHED]:.0f} % at the "
        f"same weight. And labels must tell environments apart: with {blind} segments of equal mean agreement "
        f"{100 * of[blind_l1]:.0f} % of ERM's range is left.",
        paint,
    )
