"""Write the manifests in this folder from `optsched.api.crds`: run `python deploy/crds/render.py`.

tests/api/test_crds.py fails where a manifest and the code disagree.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from optsched.api.crds import CUSTOM_KINDS, custom_resource_definition

if TYPE_CHECKING:
    from optsched.api.kinds import Kind

FOLDER = Path(__file__).parent


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def manifest_path(kind: Kind) -> Path:
    """The file that holds the definition of a kind, named as Volcano names it."""
    return FOLDER / f"{kind.group}_{kind.plural}.yaml"


def render(kind: Kind) -> str:
    """The definition of a kind as YAML."""
    definition = custom_resource_definition(kind)
    return yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=100)


if __name__ == "__main__":
    for each in CUSTOM_KINDS:
        manifest_path(each).write_text(render(each), encoding="utf-8")
