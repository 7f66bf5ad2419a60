"""The gradient step of linear models as three GPU kernels (Triton), for `engine/fused.py`.

A step of a small model is some sixty operations, each of which takes less time than its launch. Here it is

    slope_sums   x, w -> sums of the slopes by environment (skipped where nothing asks for them)
    gradient     sums -> penalty's gradient; x, w again -> the gradient in w
    adam         the guard and Adam

and, while rho climbs, `climb_sums` and `climb` in place of the first two. Logits are computed twice, from rows that lie
in the cache, rather than written and read. One program has one run and a chunk of its rows; what programs have in
common is summed over chunks by the next kernel, in a fixed order, so that results do not depend on timing.

Shapes: R runs, K on each data set, M rows with pads, D features, E environments (2 where they are inferred), C chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(x, w, bias, run, data, rows, ok, n_rows, n_features, n_runs, FEATURES: tl.constexpr):
    """Some rows' features (FEATURES, ROWS), and their logits (ROWS,)."""
    k = tl.arange(0, FEATURES)
    there = k < n_features
    weights = tl.load(w + run * n_features + k, mask=there, other=0)
    at = (data * n_features + k[:, None]).to(tl.int64) * n_rows + rows[None, :]
    values = tl.load(x + at, mask=there[:, None] & ok[None, :], other=0)
    return values, tl.sum(values * weights[:, None], 0) + tl.load(bias + run)


@triton.jit
def _derivatives(f, y, SQUARED: tl.constexpr):
    """r = dl/df, and the part of ds/df that is not r."""
    if SQUARED:
        r = 2 * (f - y)
        curve = 2 * f
    else:
        # no exponential of a large number
        small = tl.exp(-tl.abs(f))
        p = tl.where(f >= 0, 1 / (1 + small), small / (1 + small))
        r = p - y
        curve = f * p * (1 - p)
    return r, curve


@triton.jit
def _rho(z, hidden, b, v, c, run, data, rows, ok, n_rows, n_runs, N_AUX: tl.constexpr, HIDDEN: tl.constexpr, n_hidden):
    """Of some rows: the hidden layer before its ReLU (HIDDEN, ROWS), and the probability of the first environment."""
    h = tl.arange(0, HIDDEN)
    there = h < n_hidden
    inside = tl.load(b + run * n_hidden + h, mask=there, other=0)[:, None] + tl.zeros_like(rows)[None, :].to(
        z.dtype.element_ty
    )
    for a in tl.static_range(N_AUX):
        weight = tl.load(hidden + (run * n_hidden + h) * N_AUX + a, mask=there, other=0)
        value = tl.load(z + (data * N_AUX + a).to(tl.int64) * n_rows + rows, mask=ok, other=0)
        inside += weight[:, None] * value[None, :]
    out = tl.load(v + run * n_hidden + h, mask=there, other=0)
    logit = tl.sum(out[:, None] * tl.maximum(inside, 0), 0) + tl.load(c + run)
    small = tl.exp(-tl.abs(logit))
    return inside, out, tl.where(logit >= 0, 1 / (1 + small), small / (1 + small))


@triton.jit
def slope_sums(
    x, y, weight, code, q, w, bias, sums, n_rows, n_features, n_runs, per_set, chunk, n_chunks,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, ENVIRONMENTS: tl.constexpr, SQUARED: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """sums (R, C, ENVIRONMENTS): sum_i w_i q_ie s_i. Environments by `code` (T, M), or by `q` (R, M) of the first."""
    run, part = tl.program_id(0), tl.program_id(1)
    data = run // per_set
    e = tl.arange(0, ENVIRONMENTS)
    total = tl.zeros((ENVIRONMENTS,), dtype=x.dtype.element_ty)
    for start in range(part * chunk, part * chunk + chunk, ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = rows < n_rows
        _, f = _read(x, w, bias, run, data, rows, ok, n_rows, n_features, n_runs, FEATURES)
        at = data.to(tl.int64) * n_rows + rows
        r, _ = _derivatives(f, tl.load(y + at, mask=ok, other=0), SQUARED)
        s = r * f * tl.load(weight + at, mask=ok, other=0)
        if PAIR:
            first = tl.load(q + run.to(tl.int64) * n_rows + rows, mask=ok, other=0)
            share = tl.where(e[:, None] == 0, first[None, :], 1 - first[None, :])
            total += tl.sum(share * s[None, :], 1)
        else:
            here = tl.load(code + at, mask=ok, other=-1)
            total += tl.sum(tl.where(here[None, :] == e[:, None], s[None, :], 0), 1)
    tl.store(sums + (run * n_chunks + part) * ENVIRONMENTS + e, total)


@triton.jit
def gradient(
    x, y, weight, code, q, w, bias, sums, sizes, mu, factor, scale, totals, by_w, watched,
    n_rows, n_features, n_runs, per_set, chunk, n_chunks, n_environments,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, ENVIRONMENTS: tl.constexpr, CHUNKS: tl.constexpr,
    SQUARED: tl.constexpr, PAIR: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """by_w (C, R D + R): a chunk's part of the gradient of scale (mean loss + lambda penalty), laid out as parameters.

    NORM 0: no penalty; 1: (sum_e mu_e |S_e|)^2; 2: sum_e mu_e S_e^2. `watched` (R, C) is NaN where a logit is not
    finite, else 0.
    """
    run, part = tl.program_id(0), tl.program_id(1)
    data = run // per_set
    e = tl.arange(0, ENVIRONMENTS)
    pull = tl.zeros((ENVIRONMENTS,), dtype=x.dtype.element_ty)  # the penalty's gradient in sum_i w_i q_ie s_i
    if NORM > 0:
        c = tl.arange(0, CHUNKS)
        parts = tl.load(
            sums + (run * n_chunks + c[:, None]) * ENVIRONMENTS + e[None, :], mask=c[:, None] < n_chunks, other=0
        )
        there = e < n_environments
        size = tl.load(sizes + run * n_environments + e, mask=there, other=1)
        share = tl.load(mu + run * n_environments + e, mask=there, other=0)
        slope = tl.sum(parts, 0) / size
        if NORM == 1:
            sign = tl.where(slope > 0, 1.0, tl.where(slope < 0, -1.0, slope * 0))  # of NaN it is NaN
            pull = 2 * tl.sum(share * tl.abs(slope), 0) * share * sign
        else:
            pull = 2 * share * slope
        pull = pull * tl.load(factor + run) / size
    each = tl.load(scale + run) / tl.load(totals + data)
    k = tl.arange(0, FEATURES)
    in_w = tl.zeros((FEATURES,), dtype=x.dtype.element_ty)
    in_bias = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    watch = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    for start in range(part * chunk, part * chunk + chunk, ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = rows < n_rows
        values, f = _read(x, w, bias, run, data, rows, ok, n_rows, n_features, n_runs, FEATURES)
        at = data.to(tl.int64) * n_rows + rows
        r, curve = _derivatives(f, tl.load(y + at, mask=ok, other=0), SQUARED)
        df = r * each
        if NORM > 0:
            if PAIR:
                first = tl.load(q + run.to(tl.int64) * n_rows + rows, mask=ok, other=0)
                member = tl.where(e[:, None] == 0, first[None, :], tl.where(e[:, None] == 1, 1 - first[None, :], 0))
            else:
                here = tl.load(code + at, mask=ok, other=-1)
                member = tl.where(here[None, :] == e[:, None], 1.0, 0.0).to(x.dtype.element_ty)
            g = tl.sum(member * pull[:, None], 0)
            df += (r + curve) * g
        df = tl.where(ok, df * tl.load(weight + at, mask=ok, other=0), 0)
        in_w += tl.sum(values * df[None, :], 1)
        in_bias += df
        watch += tl.where(ok, f * 0, 0)
    size_of_part = n_runs * (n_features + 1)
    tl.store(by_w + part * size_of_part + run * n_features + k, in_w, mask=k < n_features)
    tl.store(by_w + part * size_of_part + n_runs * n_features + run, tl.sum(in_bias, 0))
    tl.store(watched + run * n_chunks + part, tl.sum(watch, 0))


@triton.jit
def climb_sums(
    x, y, weight, z, w, bias, hidden, b, v, c, sums, n_rows, n_features, n_runs, per_set, chunk, n_chunks, n_hidden,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, SQUARED: tl.constexpr, N_AUX: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """sums (R, C, 4): of w_i q_i s_i, w_i s_i, w_i q_i, and 0; q by rho."""
    run, part = tl.program_id(0), tl.program_id(1)
    data = run // per_set
    first = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    every = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    size = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    for start in range(part * chunk, part * chunk + chunk, ROWS):
        rows = start + tl.arange(0, ROWS)
        ok = rows < n_rows
        _, f = _read(x, w, bias, run, data, rows, ok, n_rows, n_features, n_runs, FEATURES)
        at = data.to(tl.int64) * n_rows + rows
        r, _ = _derivatives(f, tl.load(y + at, mask=ok, other=0), SQUARED)
        counts = tl.load(weight + at, mask=ok, other=0)
        s = r * f * counts
        _, _, q = _rho(z, hidden, b, v, c, run, data, rows, ok, n_rows, n_runs, N_AUX, HIDDEN, n_hidden)
        first += q * s
        every += s
        size += q * counts
    to = sums + (run * n_chunks + part) * 4
    tl.store(to, tl.sum(first, 0))
    tl.store(to + 1, tl.sum(every, 0))
    tl.store(to + 2, tl.sum(size, 0))


@triton.jit
def climb(
    x, y, weight, z, w, bias, hidden, b, v, c, sums, totals, by_rho,
    n_rows, n_features, n_runs, per_set, chunk, n_chunks, n_hidden,
    FEATURES: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, SQUARED: tl.constexpr, N_AUX: tl.constexpr,
    HIDDEN: tl.constexpr, NORM: tl.constexpr, AUTHORS: tl.constexpr,
):  # fmt: skip
    """by_rho (C, size of rho): a chunk's part of the penalty's gradient in rho, laid out as its parameters.

    With A_e = sum_i w_i q_ie s_i and M_e = sum_i w_i q_ie of two environments, n = M_1 + M_2, the penalty is
    ((|A_1| + |A_2|) / n)^2, sum_e A_e^2 / (n M_e), or (authors) sum_e (A_e / n)^2.
    """
    run, part = tl.program_id(0), tl.program_id(1)
    data = run // per_set
    k = tl.arange(0, CHUNKS)
    there = k < n_chunks
    at_sums = sums + (run * n_chunks + k) * 4
    n = tl.load(totals + data)
    a_1 = tl.sum(tl.load(at_sums, mask=there, other=0), 0)
    a_2 = tl.sum(tl.load(at_sums + 1, mask=there, other=0), 0) - a_1
    m_1 = tl.sum(tl.load(at_sums + 2, mask=there, other=0), 0)
    least = n * 1.1920929e-07
    if x.dtype.element_ty == tl.float64:
        least = n * 2.220446049250313e-16
    m_2 = tl.maximum(n - m_1, least)  # no less than rounding leaves of all rows
    m_1 = tl.maximum(m_1, least)
    if NORM == 1:
        sign_1 = tl.where(a_1 > 0, 1.0, tl.where(a_1 < 0, -1.0, a_1 * 0))
        sign_2 = tl.where(a_2 > 0, 1.0, tl.where(a_2 < 0, -1.0, a_2 * 0))
        in_a = 2 * (tl.abs(a_1) + tl.abs(a_2)) * (sign_1 - sign_2) / (n * n)
        in_m = a_1 * 0
    elif AUTHORS:
        in_a = 2 * (a_1 - a_2) / (n * n)
        in_m = a_1 * 0
    else:
        s_1 = a_1 / m_1
        s_2 = a_2 / m_2
        in_a = 2 * (s_1 - s_2) / n
        in_m = (s_2 * s_2 - s_1 * s_1) / n
    h = tl.arange(0, HIDDEN)
    in_v = tl.zeros((HIDDEN,), dtype=x.dtype.element_ty)
    in_b = tl.zeros((HIDDEN,), dtype=x.dtype.element_ty)
    in_c = tl.zeros((ROWS,), dtype=x.dtype.element_ty)
    base = by_rho + part * (n_runs * (n_hidden * (N_AUX + 2) + 1))
    for a in tl.static_range(N_AUX):
        in_w = tl.zeros((HIDDEN,), dtype=x.dtype.element_ty)
        for start in range(part * chunk, part * chunk + chunk, ROWS):
            rows = start + tl.arange(0, ROWS)
            ok = rows < n_rows
            _, f = _read(x, w, bias, run, data, rows, ok, n_rows, n_features, n_runs, FEATURES)
            at = data.to(tl.int64) * n_rows + rows
            r, _ = _derivatives(f, tl.load(y + at, mask=ok, other=0), SQUARED)
            counts = tl.load(weight + at, mask=ok, other=0)
            inside, out, q = _rho(z, hidden, b, v, c, run, data, rows, ok, n_rows, n_runs, N_AUX, HIDDEN, n_hidden)
            by_logit = tl.where(ok, (in_a * r * f + in_m) * counts * q * (1 - q), 0)
            active = tl.where(inside > 0, by_logit[None, :] * out[:, None], 0)
            value = tl.load(z + (data * N_AUX + a).to(tl.int64) * n_rows + rows, mask=ok, other=0)
            in_w += tl.sum(active * value[None, :], 1)
            if a == 0:
                in_v += tl.sum(tl.maximum(inside, 0) * by_logit[None, :], 1)
                in_b += tl.sum(active, 1)
                in_c += by_logit
        tl.store(base + (run * n_hidden + h) * N_AUX + a, in_w, mask=h < n_hidden)
    after = base + n_runs * n_hidden * N_AUX
    tl.store(after + run * n_hidden + h, in_b, mask=h < n_hidden)
    tl.store(after + n_runs * n_hidden + run * n_hidden + h, in_v, mask=h < n_hidden)
    tl.store(after + 2 * n_runs * n_hidden + run, tl.sum(in_c, 0))


@triton.jit
def adam(
    parts, vector, first, second, rate, owner, decay, watched, dead, since, now, steps, size, n_chunks, n_watched,
    sign, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One step of every element. A run is frozen whose gradient has no finite square or whose logits are not finite."""
    i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    ok = i < size
    k = tl.arange(0, CHUNKS)
    g = tl.sum(
        tl.load(
            parts + k[:, None].to(tl.int64) * size + i[None, :], mask=(k < n_chunks)[:, None] & ok[None, :], other=0
        ),
        0,
    )
    value = tl.load(vector + i, mask=ok, other=0)
    g += value * tl.load(decay + i, mask=ok, other=0)
    run = tl.load(owner + i, mask=ok, other=0)
    watch = tl.sum(
        tl.load(watched + run[None, :] * n_watched + k[:, None], mask=(k < n_watched)[:, None] & ok[None, :], other=0),
        0,
    )
    held = tl.load(dead + run, mask=ok, other=1) != 0
    bad = (g * g * 0 + watch * 0 != 0) & ok & (held == 0)  # 0 times what is not finite is NaN
    tl.store(dead + run, tl.full((WIDTH,), 1, tl.int8), mask=bad)
    tl.store(since + run, tl.load(now) + tl.zeros((WIDTH,), tl.int64), mask=bad)
    moves = ok & (bad == 0) & (held == 0)
    n = tl.load(steps)  # float64
    one = tl.load(first + i, mask=ok, other=0)
    two = tl.load(second + i, mask=ok, other=0)
    one += (g - one) * 0.1
    two = two * 0.999 + 0.001 * g * g
    correction_1 = (1 - tl.exp(n * -0.10536051565782628)).to(g.dtype)  # log 0.9
    correction_2 = (1 - tl.exp(n * -0.0010005003335835335)).to(g.dtype)  # log 0.999
    step = one * tl.load(rate + i, mask=ok, other=0) / (tl.sqrt(two) / tl.sqrt(correction_2) + 1e-8)
    tl.store(first + i, one, mask=moves)
    tl.store(second + i, two, mask=moves)
    tl.store(vector + i, value + sign * step / correction_1, mask=moves)
