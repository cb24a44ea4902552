"""Pages in a real browser: they are drawn, they answer, they ask nothing of the network."""

import csv
import json
import shutil
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

import coterie
import toy
from browser import Browser, assert_drawn, assert_narrow, assert_quiet, figure
from coterie.cli.main import main
from coterie.engine.record import Event, RoundEvent
from coterie.report import write_report
from coterie.report.live import LivePage

pytestmark = pytest.mark.slow
QUICK = {"run.rounds": 2, "executor.kind": "serial", "local.epochs": 1, "record.embedding": 60}
RUNS = {
    "supervised": ("digits/moon", {}),
    "unlabelled": ("digits/simsiam", {}),
    "personal": ("digits/per_ssfl", {}),
    "mfcl": (
        "digits/mfcl",
        {
            "method.share_representations": True,
            "method.sense_rounds": 1,
            "evaluate.last": [],  # probes take longer than all the rest
        },
    ),
}
AROUND = ["What left the clients", "Run it again", "Configuration and digests"]
MIDDLE = ["Partition", "Representations", "Losses and diagnostics", *AROUND]
SECTIONS = {
    "supervised": ["Course", "Clients", "Classes", *MIDDLE],
    "unlabelled": ["Course", "Clients", "Classes", *MIDDLE],
    "personal": ["Course", "Clients", "Classes", *MIDDLE],
    "mfcl": ["Course", "Classes", *MIDDLE],
    "partition": ["Partition", "How much the clients differ"],
}
EVIL = '<img src=x onerror="window.hurt=1"></script><b>&'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, (config, more) in RUNS.items():
        result = coterie.run(config, out=folder / name, progress=False, **(QUICK | more))
        made[name] = result.folder / "report.html"
    made["partition"] = folder / "partition.html"
    with pytest.raises(SystemExit):
        main(["partition", "digits/fedavg", "--out", str(made["partition"])])
    return made


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_there_and_every_figure_is_drawn(
    name: str, browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[name])
    assert_drawn(browser, SECTIONS[name])
    assert_quiet(browser, pages[name])


@pytest.mark.parametrize("name", SECTIONS)
def test_nothing_is_wider_than_a_phone(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    assert_narrow(browser, pages[name])


def test_a_figure_is_saved_as_data_and_as_a_picture(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = pages["supervised"]
    browser.open(page, dark=True)
    titles = browser.run("[...document.querySelectorAll('figure h3')].map(h => h.textContent)")
    for title in ("Accuracy", "Accuracy by client", "Confusion", "Representations"):
        assert title in titles
        save = f"{figure(title)}.querySelectorAll('.save')[%d].click()"
        rows = list(csv.reader(browser.download(save % 0, ".csv").splitlines()))
        assert len(rows) > 5 and {len(row) for row in rows} == {len(rows[0])}
        text = browser.download(save % 1, ".svg")
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("}svg") and len(list(root.iter())) > 20
        assert "var(" not in text and "#ffffff" in text  # colours of the light theme
        assert title in "".join(root.itertext())
    held = json.loads((page.parent / "metrics.jsonl").read_text().splitlines()[-1])
    save = f"{figure('Accuracy')}.querySelector('.save').click()"
    rows = list(csv.reader(browser.download(save, ".csv").splitlines()))
    assert rows[0] == ["series", "round", "accuracy", "low", "high"]
    last = next(row for row in rows if row[:2] == ["global test set", "2"])
    assert float(last[2]) == pytest.approx(held["metrics"]["accuracy"], abs=1e-5)
    assert_quiet(browser, page)


def test_pointer_keys_legend_and_switch_answer(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["supervised"])
    browser.run(
        f"window.fig = {figure('Accuracy')}; window.svg = () => fig.querySelector('.plot > svg')"
    )
    browser.run(
        "const box = svg().getBoundingClientRect(); svg().dispatchEvent(new PointerEvent("
        "'pointermove', { clientX: box.left + box.width / 4, clientY: box.top + 80 }))"
    )
    said = "fig.querySelector('.readout').hidden ? '' : fig.querySelector('.readout').textContent"
    assert browser.run(said).startswith("round 1global test set0.")
    press = "svg().dispatchEvent(new KeyboardEvent('keydown', {{ key: '{}' }}))"
    browser.run(press.format("ArrowRight"))
    assert browser.run(said).startswith("round 2")
    browser.run(press.format("Escape"))
    assert browser.run(said) == ""
    curves = "fig.querySelectorAll('.plot path[fill=none]').length"
    before = browser.run(curves)
    browser.run("fig.querySelector('.legend button').click()")
    assert browser.run(curves) == before - 1
    assert (
        browser.run("fig.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    )
    browser.run("fig.querySelectorAll('.switch button')[1].click()")
    assert "sent so far, up and down (MB)" in browser.run("svg().textContent")
    confusion = figure("Confusion")
    numbers = f"{confusion}.querySelector('.plot').textContent"
    everyone = browser.run(numbers)
    browser.run(
        f"const list = {confusion}.querySelector('select'); list.value = '3';"
        "list.dispatchEvent(new Event('change'))"
    )
    assert browser.run(numbers) != everyone


def test_pointing_at_a_sample_marks_it_in_every_panel(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["unlabelled"])
    browser.run(f"window.fig = {figure('Representations')}")
    rings = "fig.querySelectorAll('.plot > svg > g:last-child circle').length"
    assert browser.run(rings) == 0
    browser.run(
        "fig.querySelector('.plot > svg').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    )
    assert browser.run(rings) == 2
    assert "client" in browser.run("fig.querySelector('.readout').textContent")


def test_the_theme_is_that_of_the_browser_and_a_printer_gets_the_light_one(
    browser: Browser, pages: dict[str, Path]
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    grounds = []
    for dark, media in ((False, ""), (True, ""), (True, "print")):
        browser.open(pages["mfcl"], dark=dark, media=media)
        grounds.append(browser.run(ground))
    assert grounds[2] == "rgb(255, 255, 255)" and grounds[1] != grounds[0]
    browser.run("dispatchEvent(new Event('beforeprint'))")
    widths = browser.run(
        "[...document.querySelectorAll('.plot > svg')].map(s => s.viewBox.baseVal.width)"
    )
    assert max(widths) == 680
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("document.querySelector('.plot > svg').viewBox.baseVal.width") > 680


def test_names_from_files_are_shown_as_text(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(pages["supervised"].parent, folder)
    split = json.loads((folder / "partition.json").read_text())
    split["class_names"][0] = split["clients"][0]["name"] = split["dataset"] = EVIL
    (folder / "partition.json").write_text(json.dumps(split))
    page = write_report(folder)
    browser.open(page)
    browser.run(
        f"{figure('Who holds what')}.querySelector('.plot > svg').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    )
    assert EVIL in browser.run(f"{figure('Who holds what')}.querySelector('.readout').textContent")
    assert browser.run("window.hurt === undefined && !document.querySelector('img')")
    assert_quiet(browser, page)


def test_a_figure_is_drawn_again_in_another_width(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["partition"])
    width = "document.querySelector('.plot > svg').viewBox.baseVal.width"
    wide = browser.run(width)
    size = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.wait(lambda: browser.run(width) < wide)
    assert browser.run("document.documentElement.scrollWidth") == 700


class Reader:
    """A recorder that reads the served page in a browser between the rounds of a run."""

    def __init__(self, browser: Browser, live: LivePage) -> None:
        self.browser, self.live = browser, live
        self.scrolled = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEvent) and event.round == 0:
            self.browser.open(self.live.url)
            self.browser.run(f"{figure('Accuracy')}.querySelectorAll('.switch button')[1].click()")
            self.browser.run(f"{figure('Accuracy')}.querySelector('.legend button').click()")
            self.browser.run("document.querySelector('section details').open = true")
            self.browser.run("window.stayed = true; scrollTo({top: 900, behavior: 'instant'})")
            focus = (
                f"{figure('Accuracy')}.querySelector('.plot > svg').focus({{preventScroll: true}})"
            )
            self.browser.run(focus)
            self.scrolled = self.browser.run("scrollY")
        elif isinstance(event, RoundEvent) and event.round == 2:
            shown = f"{figure('Accuracy')}.querySelector('script').textContent.includes('[1.0,2.0'"
            self.browser.wait(lambda: self.browser.run(f"{shown})"))


def test_a_page_follows_a_growing_run_and_keeps_the_place_of_its_reader(
    browser: Browser, toy_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with LivePage(folder) as live:
        reader = Reader(browser, live)
        toy.run(toy_data, folder, recorders=[live, reader])
        ended = threading.Thread(target=live.finish)
        ended.start()
        end = "document.querySelector('.live').textContent"
        browser.wait(lambda: "The run has ended" in browser.run(end))
        ended.join()
        kept = browser.run(
            f"[stayed, {figure('Accuracy')}.querySelectorAll('.switch button')[1].ariaPressed,"
            f" {figure('Accuracy')}.querySelector('.legend button').ariaPressed,"
            " document.querySelector('section details').open, scrollY,"
            f" {figure('Accuracy')}.contains(document.activeElement)]"
        )
        assert kept == [True, "true", "false", True, reader.scrolled, True]
        rounds = f"JSON.parse({figure('Accuracy')}.querySelector('script').textContent).views[0]"
        assert browser.run(f"{rounds}.series[0].x.length") == 4
        assert browser.run(
            "[...document.querySelectorAll('figure')].every(f => f.querySelector('svg'))"
        )
        titles = browser.run("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert titles == browser.run(
            "[...document.querySelectorAll('.contents a')].map(a => a.textContent)"
        )
    assert browser.problems == [] and browser.events.count("Page.frameNavigated") == 1
    assert {url.rpartition("/")[0] + "/" for url in browser.requests} == {live.url}
    assert toy.trace(folder) == toy.trace(toy.run(toy_data, tmp_path / "alone").folder)


def test_a_page_says_when_nobody_answers_any_more(browser: Browser, tmp_path: Path) -> None:
    with LivePage(tmp_path) as live:
        browser.open(live.url)
        assert browser.run("document.querySelector('h1').textContent") == "A run"
    gone = "document.querySelector('.live.gone')?.textContent ?? ''"
    browser.wait(lambda: "No answer any more" in browser.run(gone))
