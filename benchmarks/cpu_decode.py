"""One decode step through 30 layers of paged caches, beside mlx-lm's KVCache in the same run.

What is expected was written down before it was measured, as ``AIM`` in each module of
``decoding``:

- whole steps over consecutive blocks take at most 1.03 × the time of ``KVCache``;
- building a layer's append and read, unevaluated, takes at most 0.9 × its Python time;
- a pool of 100 × the sequence costs at most 1.05 × the step of one just large enough, and
  less than one block more memory: nothing copies a plane.
"""

from __future__ import annotations

import argparse

from decoding.builds import report_builds
from decoding.plan import FULL, QUICK
from decoding.pools import report_pools
from decoding.steps import report_steps
from measuring.report import Report, command_line


def main() -> None:
    """Measure, print, and keep the tables if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/cpu_decode.md as well")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("Decode steps on the CPU")
    report.facts["command"] = command_line()
    report.facts["layers"] = f"{plan.depth}, bf16; {'; '.join(map(str, plan.shapes))}"
    report_steps(report, plan)
    report_builds(report, plan)
    report_pools(report, plan)
    report.publish("cpu_decode", save=options.save)


if __name__ == "__main__":
    main()
