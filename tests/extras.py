"""Import without an optional library."""

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
    """Import `module` in an interpreter without `absent`; return type, name and message of the error."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT.format(absent=absent, module=module)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
