"""The search for the GPU shares of a plan ends, whatever amounts the pods request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.devices import deviceshare
from optsched.plugins.devices.deviceshare import MOST_STATES
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.formats.objects import node, pod
from tests.oracle.sessions import policy_of

if TYPE_CHECKING:
    import pytest

NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
GPUS, GPU_MB = 8, 16_000


def partition(seed: int) -> list[dict[str, Any]]:
    """Return 24 pods that fit on 8 GPUs only if each GPU runs three of them."""
    rng = np.random.default_rng(seed)
    sizes: list[int] = []
    while len(sizes) < 3 * GPUS:
        first, second = rng.integers(GPU_MB // 4 + 1, GPU_MB // 2, 2).tolist()
        if GPU_MB // 4 < GPU_MB - first - second < GPU_MB // 2:
            sizes += [first, second, GPU_MB - first - second]
    return [
        pod(
            f"p{i:02d}",
            {
                "containers": [
                    {
                        "name": "c",
                        "resources": {"limits": {NUMBER: "1", MEMORY: str(size)}},
                    }
                ]
            },
        )
        for i, size in enumerate(rng.permutation(sizes).tolist())
    ]


def test_a_search_for_gpu_shares_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = "".join(f"n1-gpu-{i},10,{GPU_MB},NVIDIA-Tesla T4,true,hami-core:" for i in range(GPUS))
    host = node("n1")
    host["metadata"]["annotations"] = {"volcano.sh/node-vgpu-register": gpus}
    host["status"]["allocatable"] |= {
        "pods": "99",
        NUMBER: str(10 * GPUS),
        MEMORY: str(GPU_MB * GPUS),
    }
    num_states = 0
    allocate = deviceshare._DeviceSearch.allocate

    def count(*arguments: Any) -> Any:
        nonlocal num_states
        num_states += 1
        return allocate(*arguments)

    monkeypatch.setattr(deviceshare._DeviceSearch, "allocate", count)
    snapshot = assemble([host, *partition(2)]).snapshot
    context = SessionContext(solver=InProcess(), limits=Limits(None, 0.5, num_workers=1))
    report = run_session(snapshot, policy_of("gpus-shared"), context)
    assert len(report.plan.binds) >= 20
    assert 0 < num_states < 20 * GPUS * MOST_STATES
