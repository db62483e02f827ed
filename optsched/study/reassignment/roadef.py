"""Read and write the files `model_*.txt` and `assignment_*.txt` of the ROADEF/EURO challenge 2012.

The challenge's problem description defines the formats in the section "Input and output file
formats". A model file lists resources, machines, services, processes, balance costs and weights, in
this order. An assignment file lists the machine of each process.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.study.number_lists import Numbers, text_of
from optsched.study.reassignment.reassignment_problem import (
    Balance,
    Machine,
    Process,
    Reassignment,
    Resource,
    Service,
    wrong_with,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KIND: Final = "Reassignment"
SUFFIX: Final = ".txt"


def is_model(path: str) -> bool:
    """Return whether a path names a model file of the challenge (and not a cluster file)."""
    return path.endswith(SUFFIX)


def reassignment_document(
    model: Path, machine_of: Sequence[int], result: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON document that describes an assignment for the instance file `model`.

    `result` contains the cost, the lower bound and the method that found the assignment. `made`
    contains the settings with which the assignment can be reproduced.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "instance": {
            "name": model.stem,
            "sha256": sha256(model.read_bytes()).hexdigest(),
            "processes": len(machine_of),
        },
        "result": dict(result),
        "machines": list(machine_of),
        "made": dict(made),
    }


def write_assignment(machine_of: Sequence[int]) -> str:
    """Format an assignment as the challenge does: the machines of all processes on one line."""
    return " ".join(map(str, machine_of)) + "\n"


def read_reassignment(model: Path, assignment: Path | None = None) -> Reassignment:
    """Read an instance from a model file and the file of its initial assignment.

    `model` is the path of a file named `model_*.txt`. `assignment` is the file of the initial
    assignment, by default `assignment_*.txt` next to the model. Raises InstanceError if the
    assignment is infeasible or a file cannot be read. The message names the file and, for invalid
    text, the line, the text and the accepted values.
    """
    initial = assignment or initial_file(model)
    found = parse_reassignment(text_of(model), text_of(initial), model.name, initial.name)
    wrong = wrong_with(found, found.initial)
    if wrong:
        raise InstanceError(
            f"{initial}: the initial assignment is infeasible: {wrong[0]} (1 of {len(wrong)})"
        )
    return found


def initial_file(model: Path) -> Path:
    """Return the path of the `assignment_*.txt` that belongs to a `model_*.txt`."""
    return model.with_name(model.name.replace("model", "assignment", 1))


def parse_reassignment(
    model: str, assignment: str, name: str = "model", initial_name: str = "assignment"
) -> Reassignment:
    """Parse an instance from the contents of the two files, without a check for feasibility.

    Raises InstanceError if the content is invalid, as in `read_reassignment`.
    """
    numbers = Numbers(name, model)
    resources = tuple(
        Resource(
            is_transient=bool(numbers.read_number(f"transient {r}", below=2)),
            load_weight=numbers.read_number(f"load weight of resource {r}"),
        )
        for r in range(numbers.read_number("number of resources"))
    )
    num_resources, num_machines = len(resources), numbers.read_number("number of machines")
    machines = tuple(
        Machine(
            neighbourhood=numbers.read_number(f"neighbourhood of machine {m}"),
            location=numbers.read_number(f"location of machine {m}"),
            capacity=numbers.several(num_resources, f"capacity of machine {m}, resource"),
            safety=numbers.several(num_resources, f"safety capacity of machine {m}, resource"),
            move_cost=numbers.several(num_machines, f"cost from machine {m} to machine"),
        )
        for m in range(num_machines)
    )
    num_services = numbers.read_number("number of services")
    services = tuple(
        Service(
            min_locations=numbers.read_number(f"locations of service {s}"),
            depends_on=numbers.several(
                numbers.read_number(f"number of dependencies of service {s}"),
                f"dependency of service {s}, number",
                num_services,
            ),
        )
        for s in range(num_services)
    )
    processes = tuple(
        Process(
            service=numbers.read_number(f"service of process {p}", num_services),
            request=numbers.several(num_resources, f"request of process {p}, resource"),
            move_cost=numbers.read_number(f"move cost of process {p}"),
        )
        for p in range(numbers.read_number("number of processes"))
    )
    balances = tuple(
        Balance(
            of=numbers.read_number(f"first resource of balance {b}", num_resources),
            against=numbers.read_number(f"second resource of balance {b}", num_resources),
            target=numbers.read_number(f"target of balance {b}"),
            weight=numbers.read_number(f"weight of balance {b}"),
        )
        for b in range(numbers.read_number("number of balances"))
    )
    weights = [numbers.read_number(f"weight of {of}") for of in ("process", "service", "machine")]
    numbers.end()
    places = Numbers(initial_name, assignment)
    initial = places.several(len(processes), "machine of process", num_machines)
    places.end()
    return Reassignment(resources, machines, services, processes, balances, initial, *weights)
