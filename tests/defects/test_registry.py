"""That the list of defects is whole, and that a sample of it is found: `make defects` runs all."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.defects.catching import ROOT, Run, catch_each, judge
from tests.defects.defect import Defect
from tests.defects.registry import DEFECTS

FAST = [defect for defect in DEFECTS.values() if defect.fast]
LONG = ("D9", "D10", "D13", "D15", "killer-unmarked", "open-forgotten", "trial-in-a-crowd")
"""Most of them are found over worlds, as others are."""


def test_there_are_sixteen_or_more_and_each_has_a_name_of_its_own() -> None:
    assert len(DEFECTS) >= 16
    listed = {name for name in DEFECTS if re.fullmatch(r"D\d+", name)}
    assert listed == {f"D{number}" for number in range(1, 17)}


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_its_test_exists(defect: Defect) -> None:
    path, _, name = defect.test.partition("::")
    text = (ROOT / path).read_text()
    if name:
        assert f"def {name.partition('[')[0]}(" in text
    assert defect.what
    assert defect.because


APPLY_EACH = """
import os
from tests.defects.registry import DEFECTS

for defect in DEFECTS.values():
    child = os.fork()
    if child == 0:
        try:
            defect.break_it()
        except Exception as error:
            print(f"{defect.name}: {error!r}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_each_finds_what_it_patches() -> None:
    """A rename that a defect does not follow would be seen by `make defects` alone."""
    command = [sys.executable, "-W", "ignore", "-c", APPLY_EACH]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""


@pytest.mark.timeout(1_800)  # a fork for each of them
@pytest.mark.parametrize("more", [False, True], ids=["some", "more"])
def test_a_sample_is_found(more: bool) -> None:
    chosen = [defect for defect in FAST if (defect.name in LONG) is more]
    verdicts = catch_each(chosen)
    assert {each.defect.name: each.reason for each in verdicts if not each.caught} == {}


def test_a_test_that_fails_for_another_reason_has_not_found_it() -> None:
    defect = DEFECTS["D8"]
    found = "world 7: seed 12 on sqlite: Broken: S2: a task is settled\n"
    another = "E   ImportError: no such module\n"
    assert judge(defect, Run(1, found, 1.0)).caught
    assert judge(defect, Run(1, found, 1.0)).worlds == 7
    assert not judge(defect, Run(1, another, 1.0)).caught
    assert not judge(defect, Run(0, found, 1.0)).caught, "nothing has failed"
    assert not judge(defect, Run(2, found, 1.0)).caught, "nothing was run"
