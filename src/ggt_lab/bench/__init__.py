"""What a step costs: cases measured one process each, their summary, and whether the figures we promised are met.

``python -m ggt_lab.bench`` needs torch and numpy alone; ``ggt bench`` is the same with a progress bar and a table.
"""
