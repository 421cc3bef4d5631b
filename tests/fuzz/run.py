"""Fuzz for as long as asked: the properties of this folder, with inputs led by the code that they reach.

    python tests/fuzz/run.py --seconds 3600

Each property runs in a process of its own, so that a crash is a finding like any other; one that takes a minute over a
single input is taken for a hang. Hypothesis makes the inputs from bytes that atheris mutates, so that what is drawn is
always well-formed and coverage says what to try next. What fails is printed and ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SLOWEST = 60  # seconds over one input


def properties() -> list[str]:
    """Return the modules of this folder, each with the properties of one kind of input."""
    return sorted(path.stem for path in HERE.glob("test_*.py"))


def fuzz(module: str, seconds: int) -> None:
    """Fuzz the properties of one module for so long, by turns."""
    import atheris

    sys.path[:0] = [str(HERE), str(HERE.parent)]
    # Kernels are imported later, on first use: Numba could not compile functions rewritten to count what they reach.
    with atheris.instrument_imports(include=["polyaforest"]):
        loaded = importlib.import_module(module)
    tests = [part for name, part in vars(loaded).items() if name.startswith("test_") and hasattr(part, "hypothesis")]

    def one_input(data: bytes) -> None:
        faulthandler.dump_traceback_later(SLOWEST, exit=True)
        tests[data[0] % len(tests) if data else 0].hypothesis.fuzz_one_input(data[1:])
        faulthandler.cancel_dump_traceback_later()

    options = [f"-max_total_time={seconds}", "-max_len=65536", "-len_control=0", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


def main() -> int:
    """Fuzz every module for its share of the time; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=3600, help="for all properties together")
    parser.add_argument("--module", choices=properties(), help="this one alone, in this process")
    given = parser.parse_args()
    if given.module:
        fuzz(given.module, given.seconds)
        return 0
    failed = []
    for module in properties():
        share = max(given.seconds // len(properties()), 1)
        print(f"{module}: {share} s", flush=True)
        command = [sys.executable, __file__, "--module", module, "--seconds", str(share)]
        if subprocess.run(command, check=False).returncode:
            failed.append(module)
    print(f"failed: {', '.join(failed)}" if failed else "nothing found", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
