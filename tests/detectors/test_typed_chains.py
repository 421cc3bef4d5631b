"""Types of chained calls, as a type checker infers them."""

import subprocess
import sys

import pytest

CODE = """
import numpy as np
from polyaforest import BatchMPF, GroupedMPF, SeriesMPF, StreamingMPF

x = np.zeros((10, 2))
reveal_type(StreamingMPF().fit(x))
reveal_type(BatchMPF().fit(x).partial_fit(x))
reveal_type(SeriesMPF().fit(x))
reveal_type(GroupedMPF(StreamingMPF()).fit(x))
reveal_type(StreamingMPF().set_params(n_estimators=3).fit(x))
reveal_type(BatchMPF().fit(x).detect(x))
"""


@pytest.mark.slow
def test_chained_calls_keep_their_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "code.py").write_text(CODE)
    command = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--follow-untyped-imports", "code.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    notes = [line.partition('"')[2].rstrip('"]') for line in done.stdout.splitlines() if "note" in line]
    types = [note.rpartition(".")[2] for note in notes]
    assert types == ["StreamingMPF", "BatchMPF", "SeriesMPF", "GroupedMPF", "StreamingMPF", "Detections"]
