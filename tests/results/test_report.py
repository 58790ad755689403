import json
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fedhql.results.curves import Run
from fedhql.results.panels import run_panels
from fedhql.results.paper_experiments import CARTPOLE_10
from fedhql.results.report import write_report
from fedhql.results.scores_table import scores_table
from fedhql.results.styles import styles
from fedhql.results.tables import LEGEND
from fedhql.storage.run_directory import Cell
from tests.browser import chromium
from tests.results.handmade import curve, learning_run, run_of
from tests.results.test_claims import the_opposite, the_papers

NASTY = """</script></pre><script>console.error("broken")</script> & "quotes" $title"""


def written(runs: list[Run], home: Path, level: float = 0.5) -> tuple[str, str]:
    page, text = write_report(runs, home / "new" / "report", np.random.default_rng(0), level=level)
    assert [page.name, text.name] == ["report.html", "report.md"]
    return page.read_text("utf-8"), text.read_text("utf-8")


class Page(HTMLParser):
    """Its elements, the cells of its tables, and the text of its scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "wbr":
            return
        self._inside = tag
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("td", "th"):
            self.rows[-1][-1] += data
        if self._inside == "script":
            self.scripts[-1] += data


BY_HAND = run_of(
    {
        "independent": {
            0: curve([20, 100], [10, 20], [30, 20]),
            1: curve([20, 100], [0, 4], [0, 4]),
        },
        "fedhql": {0: curve([20, 100], [60, 40], [20, 20]), 1: curve([20, 100], [4, 5], [4, 5])},
    },
    "mine",
    best_returns={Cell("fedhql", 0): np.array([30.0, 32.0])},
)
# Max mean alone: (20 + 30) / 2 = 25 and 4; federated (60 + 20) / 2 = 40 and 5. Of two seeds, the
# interval at 50 % reaches from one to the other. 40 and 5 against 25 and 4: three of four. The last
# evaluations gain 30 - 20 and 5 - 4.
BY_HAND_ROWS = [
    ["DQN alone", "2", "14 [4, 25]", "14", "-", "-", "12 [4, 20]", "11 [2, 20]"],
    [
        *["FedHQL, λ = 1", "2", "22 [5, 40] (+8 [1, 15])", "22", "0.75", "31 [1 seed]"],
        *["18 [5, 30] (+6 [1, 10])", "20 [4, 35]"],
    ],
    # At 20 % of the budget: alone 20 and 0, federated 40 and 4; gains 20 and 4.
    ["DQN alone", "-", "-", *["10 [0, 20]"] * 3, "14 [4, 25]"],
    ["FedHQL, λ = 1", "-", "-", *["22 [4, 40] (+12 [4, 20])"] * 3, "22 [5, 40] (+8 [1, 15])"],
    ["DQN alone", "12 / 12", "17 / 12"],
    ["FedHQL, λ = 1", "32 / 22", "12 / 12"],
    # What agent1 reaches alone after 100 in either seed it reaches after 20. Agent2 never reaches
    # 30 again in seed 0; in seed 1, 4 after 20 for 100.
    ["agent", "FedHQL, λ = 1: ratio", "FedHQL, λ = 1: P(fewer)"],
    ["agent1", "0.20", "1.00 [0.50, 1.00]"],
    ["agent2", "inf", "0.50 [0.13, 0.87]"],
    # One of two agents needs fewer in seed 0, both in seed 1. Nobody reaches 195.
    ["its own maximum alone", "own", "0.75 [0.50, 1.00]"],
    ["its own maximum alone", "own and the server's share", "0.75 [0.50, 1.00]"],
    ["195", "own", "0.00 [0.00, 0.00]"],
]


def test_best_states_of_some_agents_say_of_how_many() -> None:
    some = replace(BY_HAND, best_returns={Cell("fedhql", 0): np.array([30.0, np.nan])})
    assert scores_table(some, 0.5).rows[1][5] == "30 [1 seed] (1 of 2 agents)"


def test_tables_hold_the_numbers_in_both_files(tmp_path: Path) -> None:
    html, text = written([BY_HAND], tmp_path)
    rows = Page(html).rows
    for row in BY_HAND_ROWS:
        assert row in rows
        assert f"| {' | '.join(row)} |" in text
    assert "50% t-intervals" in text
    assert "**Objective 2, share of agents that need fewer steps (above 0.5 is a gain)**" in text
    assert "**Objective 2, each agent: steps federated / alone (below 1 is a gain)**" in text
    assert "## mine: CartPole-v1, 2 agents" in text
    assert "The paper's statements" not in text  # these are not its agents


def test_the_level_is_of_the_tables(tmp_path: Path) -> None:
    _, text = written([BY_HAND], tmp_path, level=0.9)
    # 22.5, and 6.314 (t's quantile at 95 %, one degree of freedom) times half of 40 - 5.
    assert "| FedHQL, λ = 1 | 2 | 22 [-88, 133] (+8 [-36, 52]) |" in text
    assert "90% t-intervals" in text
    assert "| 195 | own | 0.00 [2 equal seeds] |" in text  # nobody reaches it, and p = 0.5


def test_what_is_the_same_as_alone_has_no_gain(tmp_path: Path) -> None:
    before = {seed: curve([20, 100], [1 + seed, 9]) for seed in range(2)}
    after = {seed: curve([20, 100], [1 + seed, 10 + seed]) for seed in range(2)}
    html, text = written([run_of({"independent": before, "fedhql": after}, "mine")], tmp_path)
    same = " | ".join(["1.5 [1, 2] (= alone)"] * 3)
    assert f"| FedHQL, λ = 1 | - | - | {same} | 10 [10, 11] (+1.5 [1, 2]) |" in text
    assert f"<p>{LEGEND}</p>" in html


def test_runs_of_the_same_name_keep_their_own_tables(tmp_path: Path) -> None:
    other = run_of({"fedhql": {0: curve([100], [77])}}, "mine")
    html, text = written([BY_HAND, other], tmp_path)
    for row in (BY_HAND_ROWS[1], ["FedHQL, λ = 1", "77 / 77"]):
        assert Page(html).rows.count(row) == 1
        assert text.count(f"| {' | '.join(row)} |") == 1


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    html, _ = written([BY_HAND], tmp_path)
    page = Page(html)
    assert {"table", "script", "style"} <= {tag for tag, _ in page.elements}
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "base")
        assert not {"src", "href", "srcset"} & attributes.keys()
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_what_users_named_does_not_break_the_page(tmp_path: Path) -> None:
    # An arm's name gets into the plots' data, the other two into the page's text.
    run = learning_run(arms=["independent", "</script>=3"], name="<i>&")
    run.settings["environment"]["options"] = {"note": NASTY}
    html, _ = written([run], tmp_path)
    page = Page(html)
    assert len(page.scripts) == 3  # plotly, the data, the page's own
    assert not [tag for tag, _ in page.elements if tag == "i"]
    gains, *curves = json.loads(page.scripts[1])
    assert gains["layout"]["yaxis"]["ticktext"] == ["FedHQL, </script> = 3"]
    labels = {trace["meta"] for panel in curves for trace in panel["traces"]}
    assert labels == {"DQN alone", "FedHQL, </script> = 3"}
    boxes = [attributes["value"] for tag, attributes in page.elements if tag == "input"]
    assert boxes == ["DQN alone", "FedHQL, </script> = 3"]


def test_a_run_without_evaluations_has_a_page(tmp_path: Path) -> None:
    html, text = written([run_of({})], tmp_path)
    assert "CartPole-v1, 1 agent" in html
    assert "CartPole-v1, 1 agent" in text


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    assert written([BY_HAND], tmp_path / "a") == written([BY_HAND], tmp_path / "b")


def test_a_page_opens_with_the_answer(tmp_path: Path) -> None:
    html, text = written([BY_HAND], tmp_path)
    told = "FedHQL, λ = 1 is above DQN alone by 8 [1, 15] in max mean return"
    assert text.startswith(f"# FedHQL: mine\n\n{told}")
    body = html.partition("<body>")[2]
    assert body.index(told) < body.index('id="gains"') < body.index("<table>")
    html, text = written([BY_HAND, replace(BY_HAND, name="other")], tmp_path)
    assert f"# FedHQL: mine, other\n\nmine: {told}" in text
    assert f"\nother: {told}" in text


def test_many_runs_answer_where_they_stand(tmp_path: Path) -> None:
    html, text = written([replace(BY_HAND, name=f"run{n}") for n in range(5)], tmp_path)
    assert text.startswith(f"# FedHQL: 5 runs\n\n{LEGEND}\n\n## run0")
    assert text.count("FedHQL, λ = 1 is above DQN alone") == 5
    assert html.count("FedHQL, λ = 1 is above DQN alone") == 5
    assert 'id="gains"' not in html


def test_a_run_of_one_arm_has_no_picture_of_gains(tmp_path: Path) -> None:
    html, text = written([run_of({"fedhql": BY_HAND.arms["fedhql"]}, "mine")], tmp_path)
    assert "Federated and alone cannot be compared" in text
    assert 'id="gains"' not in html


ONE_SEED = learning_run(agents=2, seeds=1)
RUNS = [ONE_SEED, learning_run(agents=1, seeds=3, arms=["independent", "exploration=3"])]
CURVES = ["run0-best", "run0-each", "run0-agent1", "run0-agent2"]
CURVES += ["run1-best", "run1-each", "run1-agent1"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    out = tmp_path_factory.mktemp("page") / "report"
    RUNS[0].settings["environment"]["options"] = {"note": NASTY}
    page, _ = write_report(RUNS, out, np.random.default_rng(0), level=0.8)
    with chromium() as driver:
        driver.get(page.as_uri())
        yield driver


def drawn(browser: webdriver.Chrome, kind: str, property_: str) -> dict[str, list[str]]:
    """Panel -> a style of each of its paths that has something to draw."""
    found: dict[str, list[str]] = browser.execute_script(
        """const [kind, property] = arguments;
        return Object.fromEntries([...document.querySelectorAll(".panel:not(#gains)")].map(panel =>
          [panel.id, [...panel.querySelectorAll(`.scatterlayer path.${kind}`)]
            .filter(path => path.getAttribute("d") && path.getBoundingClientRect().width > 50)
            .map(path => getComputedStyle(path))
            .filter(style => style.fill !== "none" || style.strokeWidth !== "0px")
            .map(style => style[property])]));""",
        kind,
        property_,
    )
    return found


def rgb(label: str) -> str:
    colour, _ = styles(RUNS)[label]
    return "rgb({}, {}, {})".format(*bytes.fromhex(colour.removeprefix("#")))


def expected(*hidden: str) -> dict[str, list[str]]:
    labels = {
        panel: [*map(RUNS[int(panel[3])].label, RUNS[int(panel[3])].ordered_arms)]
        for panel in CURVES
    }
    return {panel: [rgb(each) for each in of if each not in hidden] for panel, of in labels.items()}


def click(browser: webdriver.Chrome, label: str) -> None:
    browser.find_element(By.CSS_SELECTOR, f'.toggles input[value="{label}"]').click()


def test_every_panel_has_its_curves(browser: webdriver.Chrome) -> None:
    assert drawn(browser, "js-line", "stroke") == expected()


def test_only_several_seeds_have_bands_and_curves_show_through(browser: webdriver.Chrome) -> None:
    opacities = drawn(browser, "js-fill", "fillOpacity")
    assert {panel for panel, found in opacities.items() if found} == set(CURVES[4:])
    for panel in CURVES[4:]:
        assert [float(each) for each in opacities[panel]] == pytest.approx([0.15, 0.15], abs=0.01)


def test_two_seeds_are_drawn_one_by_one() -> None:
    wide, small = run_panels(BY_HAND, "run0", styles([BY_HAND]), 0.95)
    for panel in wide + small:
        assert [trace for trace in panel["traces"] if "fill" in trace] == []
        assert [trace["line"]["width"] for trace in panel["traces"]] == [0.7, 0.7, 2] * 2
        assert panel["traces"][0]["meta"] == "DQN alone"  # so that its box hides it
    assert small[0]["traces"][0]["y"] == [10, 20]
    said = "2 seeds; thick lines: means; thin lines: single seeds"
    assert [panel["layout"]["title"]["text"].partition("<br>")[2] for panel in wide] == [said] * 2


@pytest.mark.parametrize("label", ["DQN alone", "FedHQL, λ = 1", "FedHQL, λ = 3"])
def test_a_toggle_hides_an_arm_everywhere_and_shows_it_again(
    label: str, browser: webdriver.Chrome
) -> None:
    bands = drawn(browser, "js-fill", "fill")
    click(browser, label)
    wait = WebDriverWait(browser, 5)
    wait.until(lambda _: drawn(browser, "js-line", "stroke") == expected(label))
    assert rgb(label) not in [
        fill for of in drawn(browser, "js-fill", "fill").values() for fill in of
    ]
    click(browser, label)
    wait.until(lambda _: drawn(browser, "js-line", "stroke") == expected())
    assert drawn(browser, "js-fill", "fill") == bands


def test_the_opening_picture_shows_every_gain(browser: webdriver.Chrome) -> None:
    panel = browser.find_element(By.ID, "gains")
    assert len(panel.find_elements(By.CSS_SELECTOR, ".scatterlayer .points path")) == 2 * 3
    rows = [row.text for row in panel.find_elements(By.CSS_SELECTOR, ".ytick text")]
    assert rows == [f"handmade: FedHQL, λ = {exploration}" for exploration in (0, 1, 3)]


def test_hovering_shows_the_values(browser: webdriver.Chrome) -> None:
    panel = browser.find_element(By.ID, "run0-agent1")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", panel)
    # The middle of the plot is the middle of the budget.
    ActionChains(browser).move_to_element(
        panel.find_element(By.CSS_SELECTOR, ".nsewdrag")
    ).perform()

    def shown() -> list[str]:
        return [found.text for found in panel.find_elements(By.CSS_SELECTOR, ".hoverlayer text")]

    # At 50, 49 and 48 env steps. The first text is where on the axis that is.
    values = ["DQN alone: 5.0", "FedHQL, λ = 0: 7.0", "FedHQL, λ = 1: 6.0"]
    WebDriverWait(browser, 5).until(lambda _: shown()[1:] == values)


def test_the_settings_are_there_as_they_are(browser: webdriver.Chrome) -> None:
    text = browser.find_element(By.CSS_SELECTOR, "pre").get_attribute("textContent")
    assert text is not None
    assert json.dumps(NASTY) in text


def test_the_browser_has_nothing_to_complain_about_and_fetched_nothing(
    browser: webdriver.Chrome,
) -> None:
    log: list[dict[str, Any]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    assert [entry for entry in log if entry["level"] == "SEVERE"] == []
    fetched = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert fetched == []


def wide_runs() -> list[Run]:
    """Ten agents, every λ, attacks, and eight readings of the paper."""
    attacks = [f"attack={name},attackers={k}" for name in "abcdef" for k in (1, 2)]
    attacked = learning_run(agents=10, arms=["independent", "fedhql", *attacks])
    large = {
        arm: {seed: curve(c.consumed_E, *(33 * c.returns_NE - 200)) for seed, c in seeds.items()}
        for arm, seeds in attacked.arms.items()
    }
    readings = [
        replace(of(CARTPOLE_10), name=f"cartpole-n10--{word}-uniform-constant-{word}")
        for word in ("adam", "sgd", "rmsprop", "momentum")
        for of in (the_papers, the_opposite)
    ]
    return [run_of(large, "attacked"), *readings]


def test_no_table_needs_a_scroll_bar(browser: webdriver.Chrome, tmp_path: Path) -> None:
    page, *_ = write_report(wide_runs(), tmp_path / "wide", np.random.default_rng(0), level=0.95)
    browser.set_window_size(1300, 900)
    browser.get(page.as_uri())
    # The page is large: once in six times, it had no tables yet.
    read = "return document.readyState === 'complete' && document.querySelector('td') !== null"
    WebDriverWait(browser, 30).until(lambda _: browser.execute_script(read))
    widths = browser.execute_script(
        "return [...document.querySelectorAll('table')].map("
        "table => [table.caption.textContent, table.scrollWidth - table.clientWidth])"
    )
    assert len(widths) > 20
    assert [each for each in widths if each[1] > 0] == []


def test_charts_fit_a_phone(browser: webdriver.Chrome, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    page, *_ = write_report([learning_run()], tmp_path / "run", rng, level=0.95)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get(page.as_uri())
        drawn = "return document.querySelectorAll('.main-svg').length > 3"
        WebDriverWait(browser, 30).until(lambda _: browser.execute_script(drawn))
        root = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        wanted, given = browser.execute_script(root)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wanted == given
