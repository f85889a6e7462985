"""The report: everything under a folder of results as one HTML page that needs no network.

The one line that data follows: `collect` (files → sections) → `page.render` (sections → HTML) → `write_report`.
"""

from ggt_lab.report.page import write_report

__all__ = ["write_report"]
