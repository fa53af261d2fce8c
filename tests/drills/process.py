"""Running a drill in a process of its own, which has no threads when it forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def in_a_process(*arguments: str) -> str:
    """The output of `python -m` with these arguments. It must succeed."""
    paths = [str(ROOT), str(ROOT / "plugins"), str(ROOT / "tests")]
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
