"""The frame of the page: the model, the prompt and the tabs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from browsing import ROOT, Tab, exploring, wait_until
from explored import gpt_run, masked_run


@pytest.mark.parametrize("name", ["gpt", "recurrent", "masked"])
def test_a_text_is_cut_into_tokens(tab: Any, explorers: Any, name: str) -> None:
    page = tab.open(explorers[name], text="the fox")
    assert page.text_content("#counted").startswith("4 tokens" if name == "masked" else "7 tokens")


LINKED = "[...document.querySelectorAll('head > link[rel=modulepreload]')].map((link) => link.getAttribute('href'))"
ASKED = (
    "performance.getEntriesByType('resource').map((one) => one.name.split('/').pop()).filter((name) => name.endsWith('.js'))"
)


def test_all_modules_are_requested_in_parallel_and_once(tab: Any, explorers: Any) -> None:
    folders = ROOT / "tinyformer/explore/page", ROOT / "tinyformer/javascript"
    names = sorted(file.name for folder in folders for file in folder.glob("*.js"))
    page = tab.open(explorers["gpt"], text="the fox")
    asked = page.evaluate(ASKED)
    assert page.evaluate(LINKED) == sorted(asked) == names
    assert asked[0] == "start.js"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("view", ["write", "attention", "inside", "numbers", "whatif", "compare"])
def test_no_page_is_wider_than_the_screen(browser: Any, explorers: Any, view: str, width: int) -> None:
    tab = Tab(browser, width)
    page = tab.open(explorers["gpt"], view, text="The quick brown fox")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(
        "[...document.querySelectorAll('[role=tab]')].every((tab) => tab.getBoundingClientRect().right <= window.innerWidth)"
    )
    tab.context.close()
    assert tab.faults == []


SCRIPT = "<img src=x onerror=alert(1)>"
WRITE = """async ([url, asked]) => {
  const { stream } = await import(url);
  const found = [];
  for await (const answer of stream("write", asked)) found.push(answer);
  return found;
}"""


def test_script_in_a_text_a_vocabulary_and_a_folder_is_shown_as_text(tab: Any, tmp_path: Path) -> None:
    name = f"{SCRIPT} \u202e'\"&amp;"
    folders = [gpt_run(tmp_path / name / "gpt"), masked_run(tmp_path / name / "masked")]
    page = tab.page
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with exploring(*folders) as explorer:
        for view in ("write", "attention", "inside", "compare"):
            tab.open(explorer, view, text="<script>alert(1)</script>")
            for folder, kind in zip(folders, ("best", "best")):
                page.select_option("#model", f"{folder}: {kind}")
                page.wait_for_selector("#prompt[aria-busy='false']")
                page.fill("#text", "<b><script>alert(1)</script>" if folder.name == "gpt" else "the <b> fox " + SCRIPT)
                page.wait_for_selector("#prompt[aria-busy='false']")
        assert page.locator("main img, main b, main script, header img, #prompt img").count() == 0
        assert page.locator("#model option").all_text_contents()[0] == f"{folders[0]}: best"
    assert dialogs == []


def test_the_page_runs_no_script_but_its_own_files(browser: Any, explorers: Any) -> None:
    tab = Tab(browser)
    page = tab.open(explorers["gpt"])
    page.evaluate("""() => {
      window.ran = [];
      window.refused = [];
      document.addEventListener("securitypolicyviolation", (event) => window.refused.push(event.effectiveDirective));
      document.body.insertAdjacentHTML("beforeend", "<img src=nothing onerror='window.ran.push(1)'>");
      const script = document.createElement("script");
      script.textContent = "window.ran.push(2)";
      document.body.append(script);
      const other = document.createElement("script");
      other.src = "http://127.0.0.1:9/x.js";
      document.body.append(other);
      const frame = document.createElement("iframe");
      frame.src = location.href;
      document.body.append(frame);
    }""")
    wait_until(page, "new Set(window.refused).size >= 3")  # of scripts in attributes, in elements, and of frames
    assert page.evaluate("window.ran") == []
    tab.context.close()


def test_two_pages_have_each_its_own_state(browser: Any, explorers: Any) -> None:
    explorer = explorers["gpt"]
    plans = [("best", "the fox", {"seed": 1, "temperature": 0.7}), ("latest", "lazy dog jumps", {"seed": 2, "top_k": 5})]

    def written(page: Any) -> str:
        """Start writing, and keep what comes in window.found."""
        return page.evaluate(
            """([text, asked, url]) => {
          window.found = null;
          (async () => {
            const { stream } = await import(url);
            const found = [];
            for await (const answer of stream("write", asked)) found.push(answer);
            window.found = found;
          })();
        }""",
            page.plan,
        )

    with contextlib.ExitStack() as stack:
        tabs = [Tab(browser) for _ in plans]
        for tab, (model, text, sampling) in zip(tabs, plans):
            stack.callback(tab.context.close)
            page = tab.open(explorer, text=text)
            page.select_option("#model", model)
            page.wait_for_selector("#prompt[aria-busy='false']")
            passage = page.evaluate("url => import(url).then(({ page }) => page.asked())", explorer.address + "state.js")
            assert passage["model"] == model
            page.plan = [text, {"passage": passage, "length": 200, "sampling": sampling}, explorer.address + "api.js"]
        alone = [tab.page.evaluate(WRITE, [explorer.address + "api.js", tab.page.plan[1]]) for tab in tabs]
        for tab in tabs:
            written(tab.page)
        for tab in tabs:
            wait_until(tab.page, "window.found")
        assert [tab.page.evaluate("window.found") for tab in tabs] == alone
        assert [len(found) for found in alone] == [200, 200] and alone[0] != alone[1]
        for tab, (model, text, _) in zip(tabs, plans):
            assert tab.page.input_value("#text") == text and tab.page.input_value("#model") == model
            assert tab.faults == []
