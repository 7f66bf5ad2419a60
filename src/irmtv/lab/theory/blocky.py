"""Blocky risks: what "blocky (piecewise-constant)" can mean as a number, and whether TV-l1 makes a risk so.

The paper wants a risk that is blocky in the environment (section 3), says that a blockier function has a smaller total
variation (section 2.2) and that TV-l1 squashes the graph of R in w into blocks (last paragraph of the proof of
Proposition 3.6). For a measure nu on Omega we measure

    blockiness  =  1 - ( int |grad f| dnu )^2 / ( nu(Omega) int |grad f|^2 dnu )         in [0, 1), by Cauchy-Schwarz

0 for a straight ramp, 1 - d for a ramp of width d in an interval of length 1, towards 1 for a step; the same for
a f + b and after a change of units of the whole of Omega. The fraction is the share of Omega that would carry the
variation if it were equally steep there. Over environments, with slopes S_e and a probability measure mu, it is
(E|S|)^2 / E|S|^2: the TV-l1 penalty divided by the TV-l2 penalty.

Squashing a graph, f -> a f, cannot change a number that is free of scale. Two that can tell a squashed graph from one
with plateaus: the share of Omega that is flatter than tau times the mean slope, which for a block does not depend on a
small tau and for the minimum of a smooth graph is proportional to it; and the distance in sup norm to the nearest
function of two steps, which squashing does lower.

The risks are those of linear predictors on the simulation (:mod:`irmtv.lab.theory.simulated_risk`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from irmtv.datasets import make_simulation
from irmtv.lab.theory.coarea import crossings
from irmtv.lab.theory.figures import BAD, ERM, L1, L2, TRUTH, legend, plain
from irmtv.lab.theory.finding import Result, Sides, claim, equal, greater, less, ours, statement
from irmtv.lab.theory.sides import Floats, Function
from irmtv.lab.theory.simulated_risk import STEPS, Linear, check_repetitions, fit, mixed, risk_gradient

Energy = Callable[[Floats, float], float]

COLOURS = {"erm": ERM, "irm-tv-l2": L2, "irm-tv-l1": L1}
NAMES = {"erm": "ERM", "irm-tv-l2": "TV-l2", "irm-tv-l1": "TV-l1"}


def blockiness(modulus: Floats) -> Floats:
    """Of the moduli of the gradient on cells of equal measure, over the last axis: (..., cells) -> (...).

    >>> float(blockiness(np.array([1.0, 1.0, 1.0, 1.0]))), float(blockiness(np.array([0.0, 0.0, 0.0, 1.0])))
    (0.0, 0.75)
    """
    return np.asarray(1 - modulus.mean(-1) ** 2 / (modulus**2).mean(-1))


# ---- section 2.2: is the total variation of a blocky function smaller?


def l1_energy(modulus: Floats, cell: float) -> float:
    """int |grad f|, from the moduli on cells of volume `cell`."""
    return float(modulus.sum() * cell)


def l2_energy(modulus: Floats, cell: float) -> float:
    """int |grad f|^2."""
    return float((modulus**2).sum() * cell)


RADIUS = 0.3  # of the disc
LENGTH = 2 * np.pi * RADIUS  # of its outline
EDGES = np.linspace(0, 1, 20_001)


def _smooth_step(u: Floats) -> Floats:
    """0 below -1/2, 1 above 1/2, 3 v^2 - 2 v^3 between, v = u + 1/2. The integral of its squared slope is 6/5."""
    v = np.clip(u + 0.5, 0, 1)
    return np.asarray(v * v * (3 - 2 * v))


@statement(
    "A blocky function does not have the smaller total variation",
    "section 2.2, below the coarea formula (eqn:coarea)",
    formula=r"$\int_\Omega|\nabla f|=\int_{-\infty}^{\infty}\int_{f^{-1}(\gamma)}ds\,d\gamma$",
    size=(7.2, 2.7),
)
def coarea_prefers_blocks(
    widths: Sequence[float] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02),
    l1: Energy = l1_energy,
    l2: Energy = l2_energy,
    measure: Function = blockiness,
) -> Result:
    """If a function is more blocky (piecewise-constant) it has a smaller total variation.

    A step from 0 to 1 made steeper and steeper: total variation, squared energy and blockiness against its width. `l1`,
    `l2` (moduli of the gradient, cell volume) and `measure` (moduli) are the formulas under test.
    """
    if len(widths) < 2 or not all(0 < d <= 1 for d in widths):
        raise ValueError(f"widths must be two or more numbers in (0, 1]. Got {widths!r}. Leave out 0, the limit.")
    d = np.sort(np.asarray(widths, dtype=np.float64))[::-1]  # from the ramp to the step
    cell = EDGES[1] - EDGES[0]
    steps = [_smooth_step((EDGES - 0.5) / width) for width in d]
    slopes = [np.abs(np.diff(f)) / cell for f in steps]
    line = np.array([[l1(s, cell), l2(s, cell), measure(s)] for s in slopes])  # (widths, 3)
    levels = (np.arange(1000) + 0.5) / 1000
    contours = np.array([crossings(f, levels).mean() for f in steps])  # int over the levels 0 to 1
    # the same of a disc in the plane, for the widths of its edge that fit
    axis = np.linspace(-0.5, 0.5, 800)  # the square of side 1; an edge of at most 0.4 fits in
    side, r = axis[1] - axis[0], np.hypot(*np.meshgrid(axis, axis, indexing="ij"))
    flat = d[(d <= 0.4) & (d >= 0.05)]  # no narrower than forty cells, for the finite differences
    moduli = [np.hypot(*np.gradient(_smooth_step((RADIUS - r) / width), side)).ravel() for width in flat]
    plane = np.array([[l1(m, side**2), l2(m, side**2), measure(m)] for m in moduli])  # (widths, 3)
    # d at its extremes is a jump: eq. (TV) with the field g = -sin^2(pi x), which vanishes at both ends, |g| <= 1
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    pairing = float(((middle > 0.5) * -np.pi * np.sin(2 * np.pi * middle)).sum() * cell)
    # four blocks of heights 0, 1, 0, 1, as blocky as can be, climb three times as much as the ramp
    battlements = np.repeat([0.0, 1.0, 0.0, 1.0], 5000)
    up_and_down = np.abs(np.diff(battlements)) / cell
    blocks_cost, blocks_are = l1(up_and_down, cell), float(measure(up_and_down))
    ramps = [measure(np.abs(np.diff(np.clip((EDGES - 0.5) / w + 0.5, 0, 1))) / cell) for w in d]
    other = measure(np.abs(np.diff(7 - 3 * steps[1])) / (5 * cell))  # 7 - 3 f, on an interval of length 5

    def worst(values: Floats, expected: Floats | float) -> float:
        return float(np.abs(values / expected - 1).max())

    both = (float(line[-1, 0]), float(line[0, 0]))
    comparisons = [
        claim("total variation, on a line", less(f"step {d[-1]:g} wide", both[0], f"ramp {d[0]:g}", both[1], 1e-6)),
        claim(
            "total variation, blocks of heights 0, 1, 0, 1",
            less("blocks", blocks_cost, f"ramp {d[0]:g}", both[1], 1e-6),
        ),
        ours(
            "the same by counting",
            equal("int of |f'|", blocks_cost, "level sets", crossings(battlements, levels).mean(), 1e-10),
        ),
        ours("their blockiness", greater("blocks", blocks_are, f"ramp {d[0]:g}", line[0, 2], 0.5)),
        # exact but for rounding on the line; second order in (cell / width) for squares and in the plane
        ours("TV on the line, farthest from 1", equal("sum", worst(line[:, 0], 1), "none", 0.0, 1e-10)),
        ours("level sets counted, farthest from 1", equal("count", worst(contours, 1), "none", 0, 1e-10)),
        ours("squared energy, farthest from 6 / (5 d)", equal("sum", worst(line[:, 1], 1.2 / d), "none", 0, 1e-4)),
        ours("blockiness of the steepest", equal("measured", line[-1, 2], "1 - 5 d / 6", 1 - d[-1] / 1.2, 1e-5)),
        ours(
            "blockiness of straight ramps, farthest from 1 - d",
            equal("measured", np.abs(np.array(ramps) - (1 - d)).max(), "none", 0.0, 2 * cell),
        ),
        ours("of 7 - 3 f on an interval 5 long", equal("measured", other, "f", line[1, 2], 1e-10)),
        ours("one field already gives the jump", equal("pairing", pairing, "its height", 1.0, 1e-6)),
    ]
    if len(flat) > 1:
        steep, gentle = float(plane[-1, 0]), float(plane[0, 0])
        comparisons += [
            claim(
                "total variation, a disc", less(f"edge {flat[-1]:g} wide", steep, f"{flat[0]:g} wide", gentle, 0.002)
            ),
            ours("TV of the disc", equal("grid", steep, "its outline", LENGTH, 0.002)),
            ours(
                "blockiness of the disc",
                equal("grid", plane[-1, 2], "1 - 5 length d / 6", 1 - LENGTH * flat[-1] / 1.2, 0.002),
            ),
        ]

    def paint(figure: Figure) -> None:
        shapes, energies, blocks = figure.subplots(1, 3)
        plain(shapes, "the same climb, ever steeper", "x", "f(x)")
        shades = np.linspace(0.75, 0.0, len(d))
        for f, width, shade in zip(steps, d, shades, strict=True):
            shapes.plot(EDGES[::50], f[::50], color=str(shade), lw=1.2, label=f"d = {width:g}")
        legend(shapes, loc="upper left")
        plain(energies, "cost of the climb", "width d", "")
        energies.loglog(d, line[:, 0], "o-", color=L1, label=r"$\int|f'|$")
        energies.loglog(d, line[:, 1], "s", color=L2, label=r"$\int|f'|^2$")
        energies.loglog(d, 1.2 / d, color=L2, lw=0.8, ls=":", label="6 / (5 d)")
        energies.loglog(flat, plane[:, 0] / LENGTH, "x", color=TRUTH, label="disc: TV / outline")
        legend(energies)
        plain(blocks, "blockiness", "width d", "", ylim=(0, 1.02))
        blocks.semilogx(d, line[:, 2], "o", color=L1, label="line")
        fine = np.geomspace(d[-1], d[0])
        blocks.semilogx(fine, 1 - fine / 1.2, color=L1, lw=0.8, ls=":", label="1 - 5 d / 6")
        blocks.semilogx(flat, plane[:, 2], "x", color=TRUTH, label="disc")
        blocks.semilogx(flat, 1 - LENGTH * flat / 1.2, color=TRUTH, lw=0.8, ls=":", label="1 - 5 length d / 6")
        legend(blocks, loc="lower left")

    return Result(
        tuple(comparisons),
        f"A climb from 0 to 1 has total variation {both[1]:.4f} when it is {d[0]:g} wide and {both[0]:.4f} when it is "
        f"{d[-1]:g} wide, while its blockiness goes from {line[0, 2]:.2f} to {line[-1, 2]:.2f}; a disc has the length "
        f"of its outline, whatever the width of its edge. Blocks of heights 0, 1, 0, 1 even have {blocks_cost:.4f}. "
        "The paper's sentence follows from its preimages, which are empty for almost every level of a step function "
        "(see 'Coarea formula for a blocky risk'); counted rightly, every level counts as often as it is passed, "
        "steeply or not, so blocks are not cheaper.\n\n"
        f"What is true: TV-l1 does not charge more for a jump and TV-l2 does, {line[0, 1]:.1f} for the widest and "
        f"{line[-1, 1]:.0f} for the steepest. Together with a data term TV-l1 does make plateaus, even on a sine (next "
        "statement), because of the kink of |.| at gradient 0; not because blocks are cheaper.",
        paint,
    )


# ---- the proof of Proposition 3.6: does TV-l1 make R(w) blockier in w?


def _flat_share(slope: Floats, thresholds: Floats) -> Floats:
    """Share of Omega where |R'| is below each threshold times its mean, for R' (W,) that increases (R is convex)."""
    cells = np.arange(len(slope)) + 0.5
    level = thresholds * np.abs(slope).mean()
    inside = np.interp(level, slope, cells) - np.interp(-level, slope, cells)
    return np.asarray(inside / len(slope))


def two_step_distance(values: Floats) -> Floats:
    """In sup norm, from values (..., W) on a grid to the nearest function with one jump: (...).

    On each side of the jump the best constant is half way between the extremes; all places of the jump are tried.

    >>> float(two_step_distance(np.linspace(0.0, 1.0, 1001))), float(two_step_distance(np.array([2.0, 2.0, 5.0])))
    (0.25, 0.0)
    """

    def spread(v: Floats) -> Floats:  # half the range of what lies to the left, itself included
        return np.asarray(np.maximum.accumulate(v, -1) - np.minimum.accumulate(v, -1)) / 2

    before, after = spread(values), spread(values[..., ::-1])[..., ::-1]
    return np.asarray(np.maximum(before[..., :-1], after[..., 1:]).min(-1))


LINE = (np.arange(400) + 0.5) / 200  # midpoints of cells of [0, 2]
SCALAR = np.stack([LINE, LINE, LINE], 1)


def _box(side: Floats) -> Floats:
    """Vectors w with both parts on `side` and the intercept as it is: (len(side)^2, 3)."""
    return np.stack([*(m.ravel() for m in np.meshgrid(side, side, indexing="ij")), np.ones(len(side) ** 2)], 1)


def _variation_in_the_plane(model: Linear, p_s: float) -> float:
    """That of one predictor's risk over a vector w in [0, 2]^2, by differences between the corners of 48^2 cells."""
    corner = np.linspace(0, 2, 49)
    height = mixed(model.risk(_box(corner)), p_s, -2).reshape(49, 49)
    down, right = np.diff(height, axis=0), np.diff(height, axis=1)
    moduli = np.hypot((down[:, 1:] + down[:, :-1]) / 2, (right[1:] + right[:-1]) / 2)  # times the side of a cell
    return float(moduli.sum() * (corner[1] - corner[0]))


@statement(
    "Does TV-l1 make the risk blockier in w?",
    "Proposition 3.6, last paragraph of the proof (prop:IRMTVL1coarea)",
    formula=(
        r"$|\{w:\,|\nabla_w R|\leq\tau\,\mathrm{mean}\}|\approx\mathrm{constant\ (block)\ or}\ \propto\tau"
        r"\ \mathrm{(point)}$"
    ),
    size=(7.2, 2.9),
)
def blockiness_in_w(
    p_s: tuple[float, float] = (0.999, 0.9),
    p_v: float = 0.8,
    penalty_weight: float = 1e3,
    repetitions: int = 5,
    n_samples: int = 5000,
    steps: int = STEPS,
    measure: Function = blockiness,
    gradient: Callable[[Linear, Floats], Floats] = risk_gradient,
) -> Result:
    """To lower the total variation the optimisation may squash the graph of the risk over the classifier w in every
    level set, which makes it more blocky (piecewise-constant).

    Trained predictors: is their population risk squashed, has it plateaus, in a scalar w over [0, 2] or a vector w? The
    vector w, over [0, 2]^2, multiplies the invariant and the spurious part of the logit. `measure` (moduli of the
    gradient on cells of equal volume) and `gradient` (predictors, w) are the formulas under test.
    """
    check_repetitions(repetitions)
    tasks = [make_simulation(n_samples, p_s, p_v, random_state=r, n_test=4) for r in range(repetitions)]
    models = {
        name: fit(tasks, name, p_v, steps, None if name == "erm" else [penalty_weight])[0] for name in NAMES
    }  # coef (repetitions, D)
    places = {"first": p_s[0], "second": p_s[1], "pooled": sum(p_s) / 2}
    pooled, box = places["pooled"], _box((np.arange(24) + 0.5) / 12)
    slopes, moduli, blocks = {}, {}, {}  # of the population risk, on cells of [0, 2] and of [0, 2]^2
    for name, model in models.items():
        along, across = gradient(model, SCALAR).sum(-1), gradient(model, box)[..., :2]
        for place, share in places.items():
            slopes[name, place] = mixed(along, share, -2)  # (repetitions, W)
            moduli[name, place] = np.linalg.norm(mixed(across, share, -3), axis=-1)
            blocks[name, "scalar", place] = measure(np.abs(slopes[name, place]))
            blocks[name, "vector", place] = measure(moduli[name, place])
    tv = {name: float((2 * np.abs(slopes[name, "pooled"]).mean(-1)).mean()) for name in NAMES}
    mean = {w: {name: float(blocks[name, w, "pooled"].mean()) for name in NAMES} for w in ("scalar", "vector")}
    curve = {name: mixed(m.risk(np.stack([np.linspace(0, 2, 4001)] * 3, 1)), pooled, -2) for name, m in models.items()}
    steps_away = {name: two_step_distance(c).mean() for name, c in curve.items()}
    at_one = {
        name: np.abs([mixed(gradient(m, np.ones((1, 3))).sum(-1), share, -2) for share in p_s]).mean()
        for name, m in models.items()
    }
    thresholds = np.geomspace(1e-3, 1, 25)  # eight to a decade
    shares = {name: _flat_share(slopes[name, "pooled"][0], thresholds) for name in NAMES}
    flat_thousandth, flat_hundredth = shares["irm-tv-l1"][[0, 8]]  # at 0.1 % and at 1 % of the mean slope
    plateau = float(flat_hundredth / max(flat_thousandth, 1e-300))

    # TV-l1 in other ways: variation from values alone (a convex risk falls to its minimum and then rises), drawn rows
    values, first = curve["irm-tv-l1"], models["irm-tv-l1"][0]
    by_values = float(np.asarray(values[:, 0] + values[:, -1] - 2 * values.min(-1)).mean())
    rise = _variation_in_the_plane(first, pooled)
    rows = make_simulation(2, p_s, p_v, random_state=99, n_test=200_000, test_p_s=pooled).test
    assert rows is not None
    loss, exact = first.losses(rows), float(mixed(first.risk()[..., 0], pooled, -1))

    def doubt(w: str, name: str) -> float:
        """Two standard errors of the mean difference to TV-l1, repetition by repetition: a difference is more."""
        difference = blocks["irm-tv-l1", w, "pooled"] - blocks[name, w, "pooled"]
        return float(2 * difference.std(ddof=1) / np.sqrt(len(difference)))

    def difference(w: str) -> str:
        """TV-l1 less TV-l2, in words."""
        return f"{mean[w]['irm-tv-l1'] - mean[w]['irm-tv-l2']:+.4f} ± {doubt(w, 'irm-tv-l2'):.4f}"

    def l1_and(other: str, relation: Callable[..., Sides], of: Mapping[str, float], tolerance: float = 0.0) -> Sides:
        return relation("TV-l1", of["irm-tv-l1"], NAMES[other], of[other], tolerance)

    distance, variation = "distance to the nearest two-step function", "total variation in scalar w"
    comparisons = (
        claim(f"squashed: {variation}", l1_and("erm", less, tv)),
        # a block is flat at every tolerance; a minimum inside a smooth convex graph is a point: ten times the
        # tolerance, ten times the share
        claim(
            "piecewise-constant: flat share of TV-l1 at 1 % over that at 0.1 % of the mean slope",
            equal("measured", plateau, "a block", 1.0, 0.2),
        ),
        ours("the same share", equal("measured", plateau, "a point", 10.0, 0.5)),
        ours(distance, l1_and("erm", less, steps_away, 0.1 * steps_away["erm"])),
        # a twentieth of ERM's: no more than the repetitions differ among themselves
        ours(distance, l1_and("irm-tv-l2", equal, steps_away, 0.05 * steps_away["erm"])),
        ours(variation, l1_and("irm-tv-l2", equal, tv, 0.05 * tv["erm"])),
        ours("blockiness in scalar w (free of scale)", l1_and("erm", less, mean["scalar"], doubt("scalar", "erm"))),
        # three standard errors of the difference, 0.005 at least
        *(
            ours(
                f"blockiness in {w} w (free of scale)",
                l1_and("irm-tv-l2", equal, mean[w], max(1.5 * doubt(w, "irm-tv-l2"), 0.005)),
            )
            for w in mean
        ),
        ours("mean |slope| at w = 1", l1_and("erm", less, at_one)),
        # the midpoint rule on 400 cells, with a kink at the minimum: second order
        ours("total variation of TV-l1 in scalar w", equal("by slopes", tv["irm-tv-l1"], "by values", by_values, 1e-4)),
        ours(
            "total variation in vector w",
            equal("by slopes", 4 * moduli["irm-tv-l1", "pooled"].mean(-1)[0], "by differences", rise, 0.002 * rise),
        ),
        ours(
            "risk at w = 1",
            equal("quadrature", exact, "200,000 rows", loss.mean(), 4.5 * float(loss.std()) / np.sqrt(len(loss))),
        ),
        ours("blockiness of (w - 1)^2 on [0, 2]", equal("measured", measure(2 * np.abs(LINE - 1)), "1/4", 0.25, 1e-4)),
    )

    def paint(figure: Figure) -> None:
        graph, dots, flat = figure.subplots(1, 3, width_ratios=(1, 1.15, 1))
        wide = {"erm": 1.6, "irm-tv-l2": 3.2, "irm-tv-l1": 1.4}  # the last two nearly coincide: one inside the other
        plain(graph, "risk of the first repetition", "w", "R(w)", ylim=(0, 0.95))
        for name in NAMES:
            for place, style in (("first", "--"), ("second", ":"), ("pooled", "-")):
                curve = mixed(models[name][0].risk(SCALAR[::8]), places[place], -2)
                label = NAMES[name] if place == "pooled" else None
                graph.plot(LINE[::8], curve, style, color=COLOURS[name], lw=wide[name] if label else 0.9, label=label)
        graph.plot([], [], "--", color=TRUTH, lw=0.9, label=f"$p_s$ = {places['first']:g}")
        graph.plot([], [], ":", color=TRUTH, lw=0.9, label=f"$p_s$ = {places['second']:g}")
        legend(graph, loc="upper right", ncols=2, columnspacing=0.8, handlelength=1.5)
        plain(dots, "blockiness, one dot a repetition", "", "", ylim=(0, 1))
        cases = [(w, place) for w in ("scalar", "vector") for place in places]
        for k, name in enumerate(NAMES):
            for i, case in enumerate(cases):
                values = blocks[name, case[0], case[1]]
                dots.plot(np.full(len(values), i + 0.25 * (k - 1)), values, "o", ms=3, color=COLOURS[name])
        dots.axvline(2.5, color=TRUTH, lw=0.5)
        dots.set_xticks(range(6), [place for _, place in cases], rotation=45, ha="right")
        for x, w in ((1, "scalar w"), (4, "vector w")):
            dots.text(x, 0.94, w, ha="center", fontsize=8)
        plain(flat, r"share flatter than $\tau$ $\times$ mean", r"$\tau$", "")
        for name in NAMES:
            flat.loglog(thresholds, shares[name], color=COLOURS[name], lw=wide[name], label=NAMES[name])
        flat.axhline(0.5, color=BAD, lw=1, ls="--", label="half of it a block")
        legend(flat, loc="lower right")

    return Result(
        comparisons,
        f"Squashed, yes (over w in [0, 2] the total variation of the pooled risk is {tv['erm']:.3f} for ERM, "
        f"{tv['irm-tv-l1']:.3f} for TV-l1 and {tv['irm-tv-l2']:.3f} for TV-l2), and in that sense nearer to constant "
        f"(distance to the nearest two-step function {steps_away['erm']:.3f} ERM, {steps_away['irm-tv-l1']:.3f} TV-l1, "
        f"{steps_away['irm-tv-l2']:.3f} TV-l2); piecewise constant, no; and no more so than by TV-l2. A logistic risk "
        f"is strictly convex in w, so no piece of it is constant: {100 * flat_hundredth:.2f} % of the interval is "
        f"flatter than 1 % of the mean slope and {100 * flat_thousandth:.3f} % flatter than 0.1 %, a point and not a "
        "block.\n\n"
        f"Blockiness, which squashing cannot change, is {mean['scalar']['erm']:.3f}, {mean['scalar']['irm-tv-l2']:.3f} "
        f"and {mean['scalar']['irm-tv-l1']:.3f} ({mean['vector']['erm']:.3f}, {mean['vector']['irm-tv-l2']:.3f}, "
        f"{mean['vector']['irm-tv-l1']:.3f} for a vector w) for ERM, TV-l2 and TV-l1; TV-l1 less TV-l2 is "
        f"{difference('scalar')} and {difference('vector')} (two standard errors). The penalty is evaluated at w = 1 "
        f"only, and what it does is to lower the slopes there, whose mean size is {at_one['erm']:.3f} for ERM and "
        f"{at_one['irm-tv-l1']:.3f} for TV-l1.",
        paint,
    )
