"""The process that stops a plane when the process that owns the plane ends for any reason.

The standard input of the watchdog is a pipe whose other end only the owner holds. The pipe closes
when the owner ends: on return, on an exception or on SIGKILL. The kernel's PR_SET_PDEATHSIG is no
alternative: PR_SET_PDEATHSIG follows the *thread* that started a component. The starting thread may
end long before its process.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Wait for the end of standard input, then stop the plane in the directory of argument 1."""
    sys.stdin.buffer.read()
    # A late import of the control plane's code, so that the waiting process uses little memory.
    from optsched.local.plane import ControlPlane, PlaneError

    try:
        ControlPlane.attach(Path(sys.argv[1])).stop()
    except PlaneError:
        return


if __name__ == "__main__":
    main()
