"""python -m release.symptoms [--run CASE ...] [--output FOLDER]"""

from __future__ import annotations

import argparse
from pathlib import Path

from release.symptoms.cases import CASES, ROWS, run_cases
from release.symptoms.pictures import PICTURES, draw

REPOSITORY = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws what goes wrong in training, and makes the runs that show it.")
    parser.add_argument("--run", nargs="*", choices=CASES, metavar="CASE", help="first run these cases; default: all")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs", metavar="FOLDER", help="of the pictures")
    args = parser.parse_args()
    if args.run is not None:
        print(f"{ROWS}: {run_cases(args.run or list(CASES))} rows")
    for name in PICTURES:
        print(draw(name, args.output))


if __name__ == "__main__":
    main()
