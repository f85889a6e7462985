"""Ranks: which columns are here (`columns`), the geometry of a part (`pieces`), the one exchange when state is made or
loaded (`agreement`), and parameters made whole after a step (`gathering`). Every collective of the library is in here.
"""
