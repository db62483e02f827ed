"""The process that ends an owned plane when its owner ends, however the owner ends.

Its standard input is a pipe whose other end only the owner holds, so the pipe closes with the
owner: on return, on an exception, on SIGKILL. The kernel's own way (PR_SET_PDEATHSIG) follows the
*thread* that started a component, which may be done long before its process is.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Wait for the end of standard input, then stop the plane in the directory given."""
    sys.stdin.buffer.read()
    # Imported late: until then this process costs next to nothing.
    from optsched.local.plane import ControlPlane, PlaneError

    try:
        ControlPlane.attach(Path(sys.argv[1])).stop()
    except PlaneError:
        return


if __name__ == "__main__":
    main()
