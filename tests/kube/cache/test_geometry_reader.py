"""The MIG geometries come from the ConfigMap that a policy names, and GPUs follow changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from optsched.formats.codec.ascend_npus import KNOWN_CHIPS
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.follower import GeometryReader
from optsched.kube.client.errors import Forbidden, Unreachable
from tests.formats.codec.test_ascend_npus import OURS, VNPUS
from tests.formats.codec.test_gpu_shares import CUT, GEOMETRIES, config_map, node
from tests.kube.fakes import FakeApi, FakeClock, waiting

if TYPE_CHECKING:
    import pytest


WHERE = ("kube-system", "c")


class Followed:
    """A cluster with one MIG-capable GPU, and the ConfigMap of geometries."""

    def __init__(self, *objects: dict[str, Any], where: tuple[str, str] | None = WHERE) -> None:
        self.api = FakeApi(node({"volcano.sh/node-vgpu-register": CUT}), *objects)
        self.cache = ClusterCache()
        self.api.tell(self.cache)
        self.woken: list[bool] = []
        around = waiting(FakeClock())
        self._reader = GeometryReader(
            self.api, self.cache, around, lambda: where, lambda: self.woken.append(True)
        )

    def names(self) -> list[str]:
        (there,) = self.cache.snapshot(1).nodes
        return [g.name for g in there.shared_gpus[0].geometries]

    def read(self) -> list[str]:
        asyncio.run(self._reader.step())
        return self.names()


def test_gpus_follow_what_the_config_map_says() -> None:
    followed = Followed(config_map())
    assert followed.names() == []
    assert followed.read() == ["group1", "group2"]
    before = followed.cache.version
    followed.read()
    assert followed.cache.version == before
    assert len(followed.woken) == 1
    followed.api.put(config_map(GEOMETRIES.replace("group: group1", "group: quarters")))
    assert followed.read() == ["quarters", "group2"]
    followed.api.refuse("read", Unreachable("cut"))
    assert followed.read() == ["quarters", "group2"]
    followed.api.refuse("read", Forbidden(403, "Forbidden", "no"))
    assert followed.read() == []


def test_npus_follow_as_well() -> None:
    reported = {"hami.io/node-register-Ascend310P": '[{"id": "npu-0", "devmem": 100}]'}
    api = FakeApi(node(reported, {"huawei.com/Ascend310P": "1"}), config_map(VNPUS))
    cache = ClusterCache()
    api.tell(cache)
    reader = GeometryReader(api, cache, waiting(FakeClock()), lambda: WHERE, lambda: None)
    chips = [cache.snapshot(1).nodes[0].shared_gpus[0].chip]
    asyncio.run(reader.step())
    chips.append(cache.snapshot(1).nodes[0].shared_gpus[0].chip)
    assert chips == [KNOWN_CHIPS[0], OURS]


def test_nothing_is_read_where_nobody_asks() -> None:
    followed = Followed(config_map(), where=None)
    assert followed.read() == []
    assert followed.api.calls == []


def test_what_is_wrong_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    followed = Followed(config_map("nvidia: 3"))
    followed.read()
    followed.read()
    (line,) = caplog.messages
    assert line.startswith("ConfigMap kube-system/c: data[device-config.yaml].nvidia")
