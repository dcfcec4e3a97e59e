"""The budgets of tests/sizes.py hold, and count every line of every file."""

from __future__ import annotations

import pytest
import sizes


@pytest.mark.parametrize("budget", sizes.budgets(), ids=lambda budget: budget.what)
def test_a_budget_holds(budget: sizes.Budget) -> None:
    assert budget.used <= budget.most, f"{budget.what}: {budget.used - budget.most} lines too many"


def test_every_line_of_every_file_counts() -> None:
    counted = sizes.of_packages()
    assert set(counted) == {
        file.relative_to(sizes.ROOT).as_posix() for package in sizes.PACKAGES for file in (sizes.ROOT / package).rglob("*.py")
    }
    init = "tinytensor/autograd/engine.py"
    assert counted[init] == (sizes.ROOT / init).read_bytes().count(b"\n") > 100
    rooms = sizes.rooms()
    assert sum(counted.values()) == sum(count for room, count in rooms.items() if room.split("/")[0] in sizes.PACKAGES)
    assert rooms["tinytensor/autograd/"] == sum(
        count for name, count in counted.items() if name.startswith("tinytensor/autograd/")
    )
    assert "tinytensor/kernels/" in rooms and "tinytensor/" in rooms and rooms["benchmarks/"] > 1000


def test_the_script_says_which_budgets_hold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "budgets", lambda: [sizes.Budget("small", 3, 3), sizes.Budget("large", 4, 3)])
    sizes.main()
    said = capsys.readouterr().out
    assert "3  of 3: small: holds" in said and "4  of 3: large: IS EXCEEDED" in said
    assert f"{sizes.rooms()['tinyformer/models/']:,}  tinyformer/models/" in said
