"""Makes `zoo/init_v1_normal.npy`, the quantile table of the `zoo.init.v1` stream.

Entry i is the standard normal quantile of i / 65536, computed in float64 by the standard library
(Wichura's algorithm AS 241) and rounded once to float32. The two ends, whose quantiles are
infinite, go on from their neighbours with twice the last step, which puts them at +-4.4914.

The file is part of the format: it is shipped, never remade on a user's machine, where another
libm might round differently. Run `python tools/make_normal_table.py [PATH]` to see that it is
still the one that this program makes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CELLS = 65536
SHIPPED = Path(__file__).resolve().parent.parent / "zoo" / "init_v1_normal.npy"


def normal_table() -> NDArray[np.float32]:
    """Returns the ascending quantiles, shape (65537,)."""
    inner = [NormalDist().inv_cdf(i / CELLS) for i in range(1, CELLS)]
    first = inner[0] - (inner[1] - inner[0]) * 2
    last = inner[-1] + (inner[-1] - inner[-2]) * 2
    return np.array([first, *inner, last], dtype=np.float64).astype(np.float32)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    np.save(path, normal_table(), allow_pickle=False)
