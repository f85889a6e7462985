"""Make Triton's interpreter treat NaN as an NVIDIA GPU does, so that a test without a GPU sees what a GPU would do.

The interpreter computes with NumPy on a CPU. There a NaN that goes through arithmetic keeps its bits, mostly
0x7FC00000. A kernel that looks at bits, or decides by a maximum, can be right so and wrong on a GPU, where:

- The NaN that arithmetic returns has all bits but the sign: 0x7FFFFFFF. A number added to these bits runs over.
- A maximum or minimum of a number and NaN is the number.
- NaN converted to an integer is 0, and a float beyond the integers becomes the last of them.
"""

import functools
from typing import Any

import numpy as np
from triton.runtime import interpreter

ARITHMETIC = ("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "approx_divf", "fma", "fp_ext", "fp_trunc")
FUNCTIONS = ("precise_sqrt", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "sin", "cos", "floor", "ceil", "erf")


def with_nan_of_a_gpu(values: np.ndarray) -> np.ndarray:
    """The same numbers; each NaN has all bits of its exponent and fraction."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    whole = np.dtype(f"int{8 * values.dtype.itemsize}")
    bits = np.where(missing, np.iinfo(whole).max, np.ascontiguousarray(values).view(whole))
    return bits.astype(whole).view(values.dtype)


def make_like_a_gpu() -> None:
    """Change the interpreter of this process; nothing puts it back."""
    builder = interpreter.InterpreterBuilder
    for name in (f"create_{name}" for name in ARITHMETIC + FUNCTIONS):
        if hasattr(builder, name):  # Triton 3.7, which torch 2.13 brings, has no approximate division
            setattr(builder, name, _arithmetic(getattr(builder, name)))
    for name, drop in (("max", np.fmax), ("min", np.fmin)):
        setattr(builder, f"create_{name}numf", lambda self, a, b, drop=drop: self.binary_op(a, b, drop))
    builder.create_fp_to_si = builder.create_fp_to_ui = _to_integers
    summed = interpreter.ReduceOps.sum
    interpreter.ReduceOps.sum = lambda self, given: _mended(summed(self, given))


def _arithmetic(operation: Any) -> Any:
    @functools.wraps(operation)
    def computed(*arguments: Any, **options: Any) -> Any:
        handle = operation(*arguments, **options)
        if handle.data.dtype.kind == "f":  # bfloat16 is kept as integers, and no kernel computes in it
            handle.data = with_nan_of_a_gpu(np.asarray(handle.data))
        return handle

    return computed


def _mended(result: Any) -> Any:
    if result.handle.data.dtype.kind == "f":
        result.handle.data = with_nan_of_a_gpu(np.asarray(result.handle.data))
    return result


def _to_integers(self: Any, source: Any, kind: Any) -> Any:
    target = interpreter._get_np_dtype(kind)
    limits = np.iinfo(target)
    exact = np.trunc(np.nan_to_num(source.data.astype(np.longdouble), nan=0.0, posinf=np.inf, neginf=-np.inf))
    values = np.where(exact >= limits.max, limits.max, np.where(exact <= limits.min, limits.min, 0)).astype(target)
    between = (exact < limits.max) & (exact > limits.min)
    values[between] = exact[between].astype(target)
    return interpreter.TensorHandle(values, kind.scalar)
