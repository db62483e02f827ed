"""PersistentVolumeClaims with the volumes that they have or could get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api.kinds import PERSISTENT_VOLUME, STORAGE_CLASS
from optsched.formats.codec.volumes import Storage, parse_claim
from optsched.kube.cache.parsed_store import store_or_drop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.api.kinds import Kind
    from optsched.cluster.snapshot import Claim
    from optsched.kube.client.interfaces import Raw

STORAGE_KINDS: Final = (PERSISTENT_VOLUME, STORAGE_CLASS)


class VolumeStore:
    """Claims by key. A claim is parsed again when it, or any volume or class, changes."""

    def __init__(self) -> None:
        self._raw_claims: dict[str, Raw] = {}
        self._raw_storage: dict[Kind, dict[str, Raw]] = {kind: {} for kind in STORAGE_KINDS}
        self._storage: Storage | None = None
        self._stale_claims: set[str] = set()
        self._is_storage_stale = False
        self._claims: Mapping[str, Claim] = {}

    def apply_claim(self, key: str, obj: Raw | None) -> None:
        """Store a state of a PersistentVolumeClaim; None for a deleted one."""
        store_or_drop(self._raw_claims, key, obj)
        self._stale_claims.add(key)

    def apply_storage(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Store a state of a PersistentVolume or StorageClass; None for a deleted one."""
        store_or_drop(self._raw_storage[kind], key, obj)
        self._storage = None
        self._is_storage_stale = True

    def find_claim(self, key: str) -> Claim | None:
        """Return a claim as it stands at this moment; None where there is none."""
        obj = self._raw_claims.get(key)
        return None if obj is None else parse_claim(obj, self._current_storage())[0]

    def refresh(self) -> Mapping[str, Claim]:
        """Return all claims by key; the very same mapping until one changes."""
        stale = (
            self._stale_claims | self._raw_claims.keys()
            if self._is_storage_stale
            else self._stale_claims
        )
        if not stale:
            return self._claims
        storage, claims = self._current_storage(), dict(self._claims)
        for key in stale:
            obj = self._raw_claims.get(key)
            store_or_drop(claims, key, None if obj is None else parse_claim(obj, storage)[0])
        if claims != self._claims:
            self._claims = claims
        self._stale_claims.clear()
        self._is_storage_stale = False
        return self._claims

    def _current_storage(self) -> Storage:
        """Return volumes and classes; what is parsed of them is kept until one changes."""
        if self._storage is None:
            self._storage = Storage(*self._raw_storage.values())
        return self._storage
