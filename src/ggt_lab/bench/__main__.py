"""``python -m ggt_lab.bench``: measure, and sum up. Needs torch and numpy alone."""

import argparse
import sys
from pathlib import Path

from ggt_lab.bench.cases import KINDS, cases
from ggt_lab.bench.run import run_cases, unfinished, wanted_cases
from ggt_lab.bench.summary import write_summary
from ggt_lab.results import Record, read_cases

__all__ = ["main"]


def main() -> int:
    """Entry point; the exit status is 0 even where a promise is missed: that is a finding, not an error."""
    parser = argparse.ArgumentParser(
        prog="python -m ggt_lab.bench", description="What a step costs, one JSON per case."
    )
    parser.add_argument("--what", nargs="+", choices=KINDS, help="kinds of cases; all that this machine can run")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the JSONs")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--quick", action="store_true", help="only the cases with a promised figure")
    parser.add_argument("--seconds", type=float, help="stop after so long; the same command goes on")
    parser.add_argument("--records", type=Path, nargs="+", help="measure nothing: sum these folders up into --out")
    parser.add_argument("--list", action="store_true", help="name the cases and do nothing")
    arguments = parser.parse_args()
    if arguments.records:
        _sum_up(read_cases(arguments.records), arguments.out)
        return 0
    if arguments.list:
        print("\n".join(case.name for case in cases(arguments.what or KINDS, quick=arguments.quick)))
        return 0
    try:
        wanted, device = wanted_cases(arguments.what or (), arguments.device, quick=arguments.quick)
    except ValueError as error:
        parser.error(str(error))

    def say(record: Record) -> None:
        print(f"{record['case']}: {record['status']} {record.get('error', '')}".rstrip(), flush=True)

    records = run_cases(wanted, arguments.out, device=device, seconds=arguments.seconds, on_done=say)
    left = unfinished(wanted, records)
    if left:
        print(f"{len(left)} cases are left: the same command goes on with them")
    _sum_up(read_cases([arguments.out]), arguments.out)
    return 0


def _sum_up(records: list[Record], out: Path) -> None:
    _, promised = write_summary(records, out / "speed.json")
    for promise in promised:
        if promise.figure is not None:
            sign = "≤" if promise.at_most else "≥"
            print(f"{promise.verdict:>7}  {promise.figure:8.4g} {sign} {promise.target:<5g} {promise.what}")
    print(f"Results: {out / 'speed.json'}")


if __name__ == "__main__":
    sys.exit(main())
