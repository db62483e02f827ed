"""Read vector bin packing instances from `.vbp` files, and write packings.

A file lists the number of dimensions, the capacities and the number of rows. Each row contains the
sizes of an item and the number of items with these sizes. VPSolver (Brandão and Pedroso) and the
Vectorpack instances (Mommessin et al.) use this format. Some instances contain items of negative
size, which free capacity for other items in the same bin.
"""

from __future__ import annotations

import tarfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from optsched.formats.codec.annotations import API_VERSION
from optsched.formats.files.diagnostics import InstanceError
from optsched.study.number_lists import Numbers, text_of
from optsched.study.packing.packing_problem import ItemKind, VectorPacking, copies_of
from optsched.units.input_errors import why_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from optsched.study.packing.packing_problem import Bin

KIND: Final = "Packing"
LIST_KIND: Final = "PackingList"
MOST_LISTED: Final = 100_000
"""Maximum number of items for which a packing document lists the items of every bin."""


def packing_document(
    instance: VbpInstance, bins: Sequence[Bin], result: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON document that describes a packing.

    `result` contains the number of bins, the lower bound and the methods that found them. `made`
    contains the settings with which the packing can be reproduced. With more than `MOST_LISTED`
    items, memory and time depend only on the number of distinct bins.
    """
    problem = instance.problem
    distinct = list(_distinct_bins(instance, bins))
    listed: dict[str, Any] = {}
    if problem.num_items <= MOST_LISTED:
        # For each bin, the sorted row numbers of its items.
        listed["bins"] = [
            [row for row, number in inside for _ in range(number)]
            for inside, copies in distinct
            for _ in range(copies)
        ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "instance": {
            "name": problem.name,
            "sha256": instance.sha256,
            "capacity": list(problem.capacity),
            "items": problem.num_items,
        },
        "result": dict(result),
        # For each distinct bin, the number of copies and the number of items from each row.
        "distinctBins": [
            {"copies": copies, "items": [{"row": r, "number": n} for r, n in inside]}
            for inside, copies in distinct
        ],
        **listed,
        "made": dict(made),
    }


def _distinct_bins(instance: VbpInstance, bins: Sequence[Bin]) -> Iterator[tuple[Bin, int]]:
    """Yield (bin, number of copies), in order; a bin is a tuple of (row number, number of items).

    The items of a type are taken from the rows that have its sizes, in row order. If copies of a
    bin take their items from different rows, the copies are yielded separately.
    """
    kind_of = {kind.sizes: k for k, kind in enumerate(instance.problem.kinds)}
    rows: dict[int, list[list[int]]] = defaultdict(list)
    for i, row in reversed(list(enumerate(instance.rows))):
        if row.number:
            rows[kind_of[row.sizes]].append([i, row.number])
    for inside, copies in copies_of(bins):
        left = copies
        while left:
            # Take as many copies of the bin as the current row of each item type can supply; if
            # these rows supply no whole bin, take one copy with items from several rows.
            whole = min([left, *(rows[k][-1][1] // number for k, number in inside)])
            taken = Counter[int]()
            for k, number in inside:
                missing = number * max(whole, 1)
                while missing:
                    current = rows[k][-1]
                    part = min(missing, current[1])
                    taken[current[0]] += part
                    current[1] -= part
                    missing -= part
                    if not current[1]:
                        rows[k].pop()
            one = tuple((row, part // max(whole, 1)) for row, part in sorted(taken.items()))
            yield one, max(whole, 1)
            left -= max(whole, 1)


def packing_list(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine several packing documents into a list; a single document is returned unchanged."""
    if len(documents) == 1:
        return dict(documents[0])
    return {"apiVersion": API_VERSION, "kind": LIST_KIND, "items": list(documents)}


SUFFIX: Final = ".vbp"
ARCHIVES: Final = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True)
class VbpInstance:
    """A packing instance as read from a file."""

    # The packing problem, in which rows with the same sizes form one item type.
    problem: VectorPacking
    rows: tuple[ItemKind, ...]  # The rows of the file, in order.
    sha256: str  # SHA-256 digest of the content of the file.


def read_vbp(file: Path) -> VectorPacking:
    """Read a packing instance from a file; rows with the same sizes become one item type.

    Raises InstanceError if the file cannot be read or an item does not fit into an empty bin. The
    message names the file, the line, the invalid text and the accepted values.
    """
    return parse_vbp(text_of(file), file.stem, str(file))


def parse_vbp(text: str, name: str, where: str = "") -> VectorPacking:
    """Parse a packing instance; rows with the same sizes become one item type.

    Raises InstanceError under the same conditions as `read_vbp`, if the text is invalid.

    Parameters
    ----------
    text
        Content of a `.vbp` file.
    name
        Name of the instance.
    where
        File name for error messages, by default `name`.

    """
    return parse_instance(text, name, where).problem


def parse_instance(text: str, name: str, where: str = "") -> VbpInstance:
    """Parse a packing instance and keep the original rows.

    Raises InstanceError if the text is invalid, as in `read_vbp`.
    """
    numbers = Numbers(where or name, text)
    dimensions = numbers.read_number("number of dimensions", least=1)
    capacity = tuple(numbers.read_number(f"capacity {d}", least=1) for d in range(dimensions))
    rows, lines = list[ItemKind](), list[int]()
    for i in range(numbers.read_number("number of rows")):
        sizes = tuple(numbers.signed(f"size {d} of row {i}") for d in range(dimensions))
        lines.append(numbers.line)
        rows.append(ItemKind(sizes, numbers.read_number(f"number of items of row {i}")))
    numbers.end()
    number_of: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        number_of[row.sizes] += row.number
    kinds = tuple(ItemKind(sizes, number) for sizes, number in number_of.items() if number)
    if not kinds:
        raise InstanceError(f"{where or name}: there is no item")
    wrong = []
    for d, most in enumerate(capacity):
        # Items of negative size free capacity, so even an item larger than the empty bin may fit.
        if min(row.sizes[d] for row in rows) < 0:
            continue
        for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
            if row.sizes[d] > most:
                what = f"size {d} of row {i}: {row.sizes[d]}"
                wrong.append(f"{where or name}:{line}: {what} is too large: write 0 to {most}")
    if wrong:
        raise InstanceError("\n".join(wrong))
    digest = sha256(text.encode()).hexdigest()
    return VbpInstance(VectorPacking(name, capacity, kinds), tuple(rows), digest)


# --- archives of instances -----------------------------------------------------------------------


def file_of(path: Path) -> Path:
    """Return the file that `read_vbps` opens for a path: a `.vbp` file or an archive."""
    return path if path.suffix == SUFFIX and _is_file(path) else _archive_of(path) or path


def is_vbp(path: str) -> bool:
    """Return whether a path names a `.vbp` file, or an archive that contains `.vbp` files.

    The path `instances.tar.gz` names all instances in an archive. The path
    `instances.tar.gz/class1_20_*` names the instances that match the pattern.
    """
    if path.endswith(SUFFIX):
        return True
    archive = _archive_of(Path(path))
    return archive is not None and any(_members(archive, "*"))


def read_vbps(path: Path) -> tuple[VbpInstance, ...]:
    """Read the instance in a file, or the matching instances in an archive, sorted by name.

    Raises InstanceError if a file is invalid, as in `read_vbp`, or if no file in the archive
    matches.
    """
    archive = None if _is_file(path) and path.suffix == SUFFIX else _archive_of(path)
    if archive is None:
        return (parse_instance(text_of(path), path.stem, str(path)),)
    wanted = str(path.relative_to(archive)) if path != archive else "*"
    found = sorted(_members(archive, wanted))
    if not found:
        raise InstanceError(f"{archive}: there is no {SUFFIX} file {wanted} in this archive")
    instances = []
    with tarfile.open(archive) as opened:
        for name in found:
            member = opened.extractfile(name)
            assert member is not None  # noqa: S101 `_members` yields only files
            text = member.read().decode("utf-8", "replace")
            stem = PurePosixPath(name).stem
            instances.append(parse_instance(text, stem, f"{archive}/{name}"))
    return tuple(instances)


def _archive_of(path: Path) -> Path | None:
    for each in (path, *path.parents):
        if each.name.endswith(ARCHIVES) and _is_file(each):
            return each
    return None


def _is_file(path: Path) -> bool:
    """Return whether the file exists; False if its name is too long for the file system."""
    try:
        return path.is_file()
    except OSError:
        return False


def _members(archive: Path, wanted: str) -> Iterator[str]:
    """Yield the archive members whose full path, file name or stem matches a pattern."""
    try:
        with tarfile.open(archive) as opened:
            names = [m.name for m in opened if m.isfile() and m.name.endswith(SUFFIX)]
    except (OSError, tarfile.TarError, EOFError) as e:
        raise InstanceError(f"{archive}: this file cannot be read: {why_unreadable(e)}") from e
    for name in names:
        path = PurePosixPath(name)
        if any(fnmatch(each, wanted) for each in (name, path.name, path.stem)):
            yield name
