"""The process of one part: python -m release.gpu_parts.process PART --rows FILE --work FOLDER [--tiny].

The first line of FILE says where it ran; the others are its figures. The exit status is not 0 if the part raised.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from release.gpu_parts.parts import NAMES, PARTS
from release.gpu_parts.report import NotRunError, Report
from release.gpu_parts.sizes import FULL, TINY

#: The name of the only figure of a part that could not be run.
WHOLE = "all of it"
OWN_PACKAGES = ("rllib_arpo", "release", "tests", "tuned_examples")


def where() -> dict[str, str | None]:
    """The device, and the commit of this code."""
    import torch

    from rllib_arpo.tracking.machine import commit

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "commit": commit()}


def run_part(name: str, rows: Path, work: Path, *, tiny: bool) -> None:
    """Runs a part here; what it needs and this machine lacks is a figure that says so."""
    sizes = TINY if tiny else FULL
    report = Report(name, rows, judges_speed=sizes.judges_speed)
    try:
        rows.write_text(json.dumps(where()) + "\n")
        PARTS[NAMES.index(name)].load()(sizes, report, work)
    except NotRunError as reason:
        report.skip(WHOLE, str(reason))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OWN_PACKAGES:
            raise
        report.skip(WHOLE, f"needs the package {package}, which is not installed")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=NAMES)
    parser.add_argument("--rows", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(arguments)
    run_part(args.part, args.rows, args.work, tiny=args.tiny)


if __name__ == "__main__":
    main(sys.argv[1:])
