"""Ranks. Every collective of the library is in here.

`columns`: which columns are here. `pieces`: the geometry of a part. `agreement`: the one exchange when state is made or
loaded. `gathering`: parameters made whole after a step. `owners`: steps made whole for a finish.
"""
