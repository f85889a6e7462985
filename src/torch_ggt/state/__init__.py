"""The state of an optimizer: flat tensors for the step, and what ``optimizer.state`` says of them.

`block` holds the flat tensors of matrices that make a step together. `live` makes them and keeps them in agreement with
``optimizer.state``. `saved` turns them into a ``state_dict`` and back. `checks` looks at everything in a ``state_dict``
before it is loaded, with the help of `probe` (rows and Gram matrix) and `sums` (the bits of every element).

========================  =========================  =================================================================
state of                  key                        value
========================  =========================  =================================================================
every parameter           ``window``                 (r, *shape), the dtype of the rows: its columns of W
.                         ``momentum_buffer``        shape, float32 or float64; absent with history="gradient"
.                         ``exp_avg``,               shape, float32 or float64: moments, where the finish has them
.                         ``exp_avg_sq``
.                         ``step``                   (), float32: steps taken, for finish="adam"; alike on all ranks
.                         ``row_squares``            (..., rows, 1), for finish="polar_rows"; alike on all ranks
the first parameter       ``gram``                   (r, r) float64: K
of a matrix               ``decay``, ``momentum``    (r,) float64: age weights
.                         ``position``, ``count``    int64: ring position, rows filled
.                         ``skipped``                int64: steps skipped for a gradient that was not finite
every parameter, in a     ``sums``                   shape, int32: sums of the bits of all of this; not in the live
``state_dict`` alone                                 state, and not on one GPU, where a ``state_dict`` is no copy
========================  =========================  =================================================================

A complex parameter appears as its real and imaginary parts, with a last dimension of 2. Where columns are split over
ranks, the live state holds the part of this rank as plain tensors, and a ``state_dict`` holds DTensors.
"""
