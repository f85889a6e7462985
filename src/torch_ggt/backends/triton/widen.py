"""Float64 arithmetic on rows of float32 or bfloat16.

What bounds a pass, per element of W on an H200 (132 processors at about 1.8 GHz, 4.2 TB/s): memory delivers 1.05e12
float32 or 2.1e12 bfloat16 per second. A float64 multiply-add runs at 1.5e13/s, but the instruction that widens float32
to float64 at 3.8e12/s, not far from the bfloat16 stream. So there are two ways to widen: that instruction (W v), and
moving the bits by integer operations, about 1e13/s, which leaves a power of two to be put right at the end (Wᵀ c, where
it was faster). Both give the same float64 products. A float32 pair (TwoSum) would cost about nine float32 operations,
3.3e12/s, and lose its small half to underflow for gradients below 1e-17: no gain.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import triton
import triton.language as tl

__all__ = ["OTHER_SCALE", "RESULT_SCALE", "weighted_sum", "widen"]

# "bits" yields w·2⁻⁸⁹⁶. The other factor is given 2⁷⁶⁶, which leaves room at both ends of float64, the result 2¹³⁰.
OTHER_SCALE = tl.constexpr(2.0**766)
RESULT_SCALE = tl.constexpr(2.0**130)
# All but the three bits between the sign and an exponent of 8 bits that was moved to where float64 has its 11.
_MOVED = tl.constexpr(-0x7000000000000001)


@triton.jit
def widen(x, BITS: tl.constexpr):
    """Float64 of x, times 2⁻⁸⁹⁶ if BITS: sign and fraction stay, and the exponent keeps its smaller bias."""
    if BITS:
        if x.dtype == tl.bfloat16:
            moved = x.to(tl.int16, bitcast=True).to(tl.int64) << 45
        else:
            moved = x.to(tl.int32, bitcast=True).to(tl.int64) << 29
        return (moved & _MOVED).to(tl.float64, bitcast=True)
    else:
        return x.to(tl.float64)


@triton.jit
def weighted_sum(
    rows, weights, size, stride, columns, inside, BITS: tl.constexpr, BLOCK_D: tl.constexpr, UNROLL: tl.constexpr
):
    """Σ_i weights[i]·rows[i, columns] in float64, over all rows; the loads of UNROLL rows are under way at a time."""
    total = tl.zeros((BLOCK_D,), tl.float64)
    whole = size - size % UNROLL
    for top in range(0, whole, UNROLL):
        for i in tl.static_range(UNROLL):
            w = tl.load(rows + (top + i) * tl.cast(stride, tl.int64) + columns, mask=inside, other=0.0)
            total += _factor(weights, top + i, BITS) * widen(w, BITS)
    if whole < size:  # the rest at once, too: row after row, each would be waited for
        for i in tl.static_range(UNROLL - 1):
            there = inside & (tl.zeros((BLOCK_D,), tl.int32) + (whole + i) < size)
            w = tl.load(rows + (whole + i) * tl.cast(stride, tl.int64) + columns, mask=there, other=0.0)
            total += _factor(weights, tl.minimum(whole + i, size - 1), BITS) * widen(w, BITS)
    if BITS:
        total = total * RESULT_SCALE
    return total


@triton.jit
def _factor(weights, i, BITS: tl.constexpr):
    c = tl.load(weights + i)
    if BITS:
        c = c * OTHER_SCALE
    return c
