"""Write ../volcano-development.yaml from the chart: run `python deploy/helm/render.py`.

The command `kubectl apply --server-side -f` installs everything from this file. The test
tests/e2e/test_chart.py fails if the file and the chart disagree.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from optsched.local.assets import HELM, require
from optsched.local.processes import run

CHART = Path(__file__).parent / "optsched"
PATH = Path(__file__).parents[1] / "volcano-development.yaml"
HEAD = """\
# Everything in one file: kubectl apply --server-side -f volcano-development.yaml
# Made by helm/render.py from the chart, with its own values.
apiVersion: v1
kind: Namespace
metadata:
  name: volcano-system
---
"""


def render(helm: Path) -> str:
    """Return the manifests of the release `volcano` in `volcano-system`, with the CRDs."""
    release: list[str | Path] = [
        "template",
        "volcano",
        CHART,
        "-n",
        "volcano-system",
        "--include-crds",
    ]
    result = run([helm, *release], env={"HOME": os.environ["HOME"], "PATH": os.environ["PATH"]})
    if result.returncode != 0:
        raise RuntimeError(result.stderr)
    return HEAD + result.stdout.removeprefix("---\n")


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    binary = require(_say, binaries=(HELM,)).paths["helm"]
    PATH.write_text(render(binary), encoding="utf-8")
