"""The families of instances by name, and the text of an instance from family, seed, parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from optsched.study.instances.gang_instances import (
    FragmentedGangs,
    HomogeneousGangs,
    Impossible,
    SharedGpus,
    UnlikeTasks,
)
from optsched.study.instances.network_instances import RacksAndSpines
from optsched.study.instances.packing_instances import CutBins, VectorItems
from optsched.study.instances.queue_instances import FullCluster, TreeOfQueues
from optsched.study.instances.random_choice import Chance
from optsched.study.instances.short_manifests import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LICENCE: Final = "Apache-2.0"

FAMILIES: Final[Mapping[str, type[Any]]] = {
    "gangs-homogeneous": HomogeneousGangs,
    "gangs-fragmented": FragmentedGangs,
    "queues-hierarchical": TreeOfQueues,
    "topology": RacksAndSpines,
    "victims": FullCluster,
    "heterogeneous": UnlikeTasks,
    "gpus-shared": SharedGpus,
    "vector-packing": VectorItems,
    "vector-packing-cut": CutBins,
    "infeasible": Impossible,
}


class RecipeError(Exception):
    """An instance can not be made so; says what would do."""


@dataclass(frozen=True)
class Recipe:
    """All that an instance is made from."""

    family: str
    name: str  # of its file, below the family's folder, without its ending
    seed: int
    # Those of the family by name; the others keep their defaults
    parameters: Mapping[str, int | str]

    @property
    def is_packing(self) -> bool:
        """Whether it is vector bin packing, and not a cluster."""
        return hasattr(self._kind, "text")

    @property
    def path(self) -> str:
        """The path of its file, below the folder of all instances."""
        return f"{self.family}/{self.name}.{'vbp' if self.is_packing else 'yaml'}"

    @property
    def _kind(self) -> type[Any]:
        if self.family not in FAMILIES:
            raise RecipeError(f"family: {self.family} is not one of {', '.join(FAMILIES)}")
        return FAMILIES[self.family]

    def build_family(self) -> Any:  # noqa: ANN401  any of the families
        """The family with these parameters.

        Raises RecipeError: there is no such family or parameter, or a value is not of its type.
        """
        types = {field.name: field.type for field in fields(self._kind)}
        for name, value in self.parameters.items():
            if name not in types:
                raise RecipeError(f"parameters.{name}: is not one of {', '.join(types)}")
            if type(value).__name__ != types[name]:
                raise RecipeError(f"parameters.{name}: {value!r} is not of type {types[name]}")
        try:
            return self._kind(**self.parameters)
        except (TypeError, ValueError) as e:
            raise RecipeError(f"parameters: {e}") from e

    @property
    def pending(self) -> Mapping[str, str]:
        """Expected codes of reasons by key of the gang, where the family knows them."""
        return dict(getattr(self.build_family(), "pending", {}))

    def text(self) -> str:
        """The file, the same bytes for the same recipe; RecipeError as for `made`."""
        family, chance = self.build_family(), Chance(self.seed)
        if self.is_packing:
            return str(family.text(chance))
        given = ", ".join(f"{name} {value}" for name, value in sorted(self.parameters.items()))
        remark = f"{self.family}: {given}; seed {self.seed}. {LICENCE}."
        return text_of(family.objects(chance), remark)
