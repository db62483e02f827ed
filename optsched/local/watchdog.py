"""The watchdog process, which stops a control plane when its owner terminates for any reason.

The watchdog's standard input is a pipe whose other end only the owner holds. The pipe closes when
the owner terminates: on return, on an exception or on SIGKILL. The kernel's PR_SET_PDEATHSIG is no
alternative, because it watches the *thread* that started a component. A thread may end long before
its process.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Wait for end of file on standard input, then stop the control plane in `argv[1]`."""
    sys.stdin.buffer.read()
    # Import late: the waiting process should use little memory.
    from optsched.local.plane import ControlPlane, PlaneError

    try:
        ControlPlane.attach(Path(sys.argv[1])).stop()
    except PlaneError:
        return


if __name__ == "__main__":
    main()
