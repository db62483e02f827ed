"""The Python port of Go's random number generator, compared with Go itself."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from optsched.study.fgd.gorandom import GoRandom

PROGRAM = Path(__file__).parent / "go_random" / "main.go"


def test_the_recorded_numbers_come_out() -> None:
    recorded = files("optsched.study.fgd").joinpath("go_seed_42.txt").read_text("utf-8").split()
    random = GoRandom(42)
    assert [random.uint64() for _ in range(607)] == [int(line) for line in recorded]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: `bash .ci/prerequisites go`")
    built = tmp_path_factory.mktemp("go") / "go_random"
    subprocess.run([go, "build", "-o", built, PROGRAM], check=True, timeout=300)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 42, 43, 51, 2**31 - 1, -7])
def test_go_says_the_same(program: Path, seed: int) -> None:
    said = subprocess.run([program, str(seed)], check=True, capture_output=True, timeout=60)
    random, order = GoRandom(seed), list(range(1000))
    random.shuffle(order)
    found = [*order, *random.permutation(1213), *(random.intn(i) for i in range(1, 200))]
    random.uint64()
    found += [random.uint64() for _ in range(607)]
    assert found == [int(line) for line in said.stdout.split()]
