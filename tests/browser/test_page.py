"""The frame of the page: the model, the prompt and the tabs."""

from __future__ import annotations

from typing import Any

import pytest
from browsing import Tab


@pytest.mark.parametrize("name", ["gpt", "recurrent", "masked"])
def test_a_text_is_cut_into_tokens(tab: Any, explorers: Any, name: str) -> None:
    page = tab.open(explorers[name], text="the fox")
    assert page.text_content("#counted").startswith("4 tokens" if name == "masked" else "7 tokens")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", ["write", "attention", "inside", "compare"])
def test_no_page_is_wider_than_the_screen(browser: Any, explorers: Any, view: str, width: int) -> None:
    tab = Tab(browser, width)
    page = tab.open(explorers["gpt"], view, text="The quick brown fox")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    tab.context.close()
    assert tab.faults == []
