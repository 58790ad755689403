"""What a faulty member costs the others: rounds a second before, and after its first deadline.

Two good members and one that begins to misbehave, on this machine. Needs the tests beside it:
`PYTHONPATH=. python benchmarks/faults.py`.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import statistics
import tempfile
from pathlib import Path

from tests.remote.test_faults import DEADLINE, FAULTS, disturb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--windows", type=float, default=4.0, help="times as long as in the test")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/faults.json"))
    chosen = parser.parse_args()
    logging.getLogger("fedhql").setLevel(logging.CRITICAL)
    paces: dict[str, list[tuple[float, float]]] = {name: [] for name in FAULTS}
    for _ in range(chosen.repeats):  # by turns, so that a busy machine hits all alike
        for name, fault in FAULTS.items():
            with tempfile.TemporaryDirectory() as home:
                pace, _ = asyncio.run(disturb(Path(home), fault, chosen.windows * fault.seconds))
            paces[name].append((pace.before, pace.after))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores; deadlines {DEADLINE:g} s; rounds a second"
    )
    for name, pairs in paces.items():
        before, after = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(late / early for early, late in pairs)
        print(f"{name:18} before {before:6.1f}  after {after:6.1f}  ratio {ratio:.2f}")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(paces, indent=2) + "\n")
    print(f"written: {chosen.out}")


if __name__ == "__main__":
    main()
