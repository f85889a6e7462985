"""Where curves end together, a second look at their end."""

import math
from collections.abc import Mapping, Sequence

__all__ = ["end_together"]

_NEAR = 1.25  # a line whose end is within this factor of the best end belongs to the group
_MUCH = 3.0  # the group is hard to see if the whole picture is this many times as high


def end_together(ends: Mapping[str, float], picture: Sequence[float]) -> list[str]:
    """The lines whose ends lie so near the best end that they need a panel of their own; none if all can be told apart.

    Args:
        ends: the last value of each line; small is good, and all are positive.
        picture: the values that the whole picture shows, on a logarithmic axis.

    Example:
        >>> end_together({"GGT": 2.0, "Adam": 2.1, "SGD": 7.0}, [2.0, 20.0])
        ['GGT', 'Adam']
    """
    if len(ends) < 2:
        return []
    best = min(ends.values())
    group = [name for name, end in ends.items() if end <= _NEAR * best]
    heights = [math.log(ends[name]) for name in group]
    whole = math.log(max(picture)) - math.log(min(picture))
    if len(group) < 2 or whole < _MUCH * (max(heights) - min(heights)):
        return []
    return group
