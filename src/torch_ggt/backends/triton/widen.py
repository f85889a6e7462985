"""Float64 arithmetic on rows of float32 or bfloat16.

These rates limit a pass over W on an H200 (132 processors at about 1.8 GHz, 4.2 TB/s). Memory delivers 1.05e12 float32
or 2.1e12 bfloat16 per second. A float64 multiply-add runs at 1.5e13/s. The instruction that widens float32 to float64
runs at only 3.8e12/s, not far from the bfloat16 stream. So there are two ways to widen. W v uses this instruction. Wᵀ c
moves the bits by integer operations, at about 1e13/s, and corrects a power of two at the end; this was faster there.
Both ways give equal float64 products. A float32 pair (TwoSum) would be no gain: it costs about nine float32 operations,
3.3e12/s, and loses its small half to underflow for gradients below 1e-17.
"""
# ruff: noqa: ANN001, ANN201, ANN202 - Triton infers the types of a kernel's arguments
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc, import-untyped, import-not-found"

import triton
import triton.language as tl

__all__ = ["OTHER_SCALE", "RESULT_SCALE", "weighted_sum", "widen"]

# BITS gives w·2⁻⁸⁹⁶. The other factor gets 2⁷⁶⁶, which leaves room at both ends of float64. The result gets 2¹³⁰.
OTHER_SCALE = tl.constexpr(2.0**766)
RESULT_SCALE = tl.constexpr(2.0**130)
# This mask clears three bits after the sign: the exponent has 8 bits, and float64 has room for 11.
_MOVED = tl.constexpr(-0x7000000000000001)


@triton.jit
def widen(x, BITS: tl.constexpr):
    """x as float64, times 2⁻⁸⁹⁶ if BITS: the sign and fraction stay, and the exponent keeps its smaller bias."""
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
    """Σ_i weights[i]·rows[i, columns] over all rows, in float64. The loads of UNROLL rows run at one time."""
    total = tl.zeros((BLOCK_D,), tl.float64)
    whole = size - size % UNROLL
    for top in range(0, whole, UNROLL):
        for i in tl.static_range(UNROLL):
            w = tl.load(rows + (top + i) * tl.cast(stride, tl.int64) + columns, mask=inside, other=0.0)
            total += _factor(weights, top + i, BITS) * widen(w, BITS)
    if whole < size:  # these rows are loaded at one time, too: else we would wait for each row
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
