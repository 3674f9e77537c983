"""`make fuzz`: 10,000 parameter files, and every damage to every file that a stage reads."""

import argparse
import collections
import multiprocessing
import os
import sys
import time

from tests.fuzz.rounds import Found, fuzz_files, fuzz_parameters


def main() -> int:
    """Return 1 where something was answered with a traceback or another result."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="parameter files")
    parser.add_argument("--seed", type=int, default=0)
    presets = ["quick", "catbabi_quick", "regular_languages", "downstream"]
    parser.add_argument("--presets", nargs="*", default=presets, help="damaged")
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    wrong = False
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        share = -(-arguments.cases // cores)
        seeds = [(share, arguments.seed * cores + each) for each in range(cores)]
        wrong |= report("parameter files", time.monotonic(), pool.starmap(fuzz_parameters, seeds))
        for preset in arguments.presets:
            began = time.monotonic()
            parts = [(preset, each, cores) for each in range(cores)]
            wrong |= report(f"damaged files of {preset}", began, pool.starmap(fuzz_files, parts))
    return int(wrong)


def report(what: str, began: float, results: list[Found]) -> bool:
    """Print what was answered; returns whether anything was wrong."""
    counts = sum((counts for counts, _ in results), collections.Counter())
    wrong = [line for _, lines in results for line in lines]
    said = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
    print(f"{what}: {counts.total()} cases in {time.monotonic() - began:.0f} s: {said}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.stdout.flush()
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
