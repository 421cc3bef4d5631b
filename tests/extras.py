"""What happens where an optional library is missing."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules[{absent!r}] = None
import polyaforest.adapters
try:
    import {module}
except ImportError as problem:
    print(type(problem).__name__, problem.name, problem)
"""


def import_without(absent: str, module: str) -> str:
    """What a fresh interpreter that lacks `absent` says when it imports `module`: kind, name and words of the error."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT.format(absent=absent, module=module)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
