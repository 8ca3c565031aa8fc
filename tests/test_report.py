"""The report agrees with the run's files, people can read it, and no text in it is run as code."""

import html
import itertools
import json
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.cable.core import size
from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load_for
from fedgrec.errors import RunError
from fedgrec.models.ranking import evaluate
from fedgrec.pages.report import write_report
from fedgrec.pages.report.charts import Figure, Series, axis, legend, own_file, plot
from fedgrec.pages.report.gather import read_run
from fedgrec.pages.report.page import render
from fedgrec.pages.report.run_page import promise
from fedgrec.pages.tables import Cell, Grid
from fedgrec.pages.tables import html as tables_html
from fedgrec.runs.resolve import chosen_options, decided, resolved
from fedgrec.runs.simulation import Simulation
from tests.browser import browsing, needs_browser
from tests.pages import checked, data_of, in_browser

QUICK = {
    "kernel": "reference",
    "dim": 8,
    "rounds": 4,
    "evaluate_every": 2,
    "users_per_round": 40,
    "negatives": 16,
}


def train(folder: Path, **changes: object) -> Path:
    config = Config().changed(QUICK | changes, "test")
    dataset = load_for(config)
    Simulation(resolved(config, dataset), dataset, folder).run()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """A file of clicks whose ids are an attack."""
    rng = np.random.default_rng(0)
    pairs = {(f"u{u}", f"<script>alert({i})</script>&{i}") for u, i in rng.integers(0, 30, (300, 2))}
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in sorted(pairs)))
    return path


def shown(path: Path) -> str:
    return checked(path.read_text(encoding="utf-8"))


def test_the_page_holds_the_result_and_names_the_protocol(run: Path) -> None:
    path = write_report(run)
    page, result = shown(path), json.loads((run / "result.json").read_text())
    assert path == run / "report.html"
    assert f"{result['recall@20']:.4f}" in page
    assert f"{result['ndcg@20']:.4f}" in page
    assert "chosen on validation items; test items were looked at once" in page
    assert size(result["bytes_up"] / 1500) in page
    assert size(result["bytes_up_secure"] / 1500) in page
    assert "users_per_round" in page.split("<details>")[0]  # it differs from the default
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        assert f"round {line['round']}\n" in page
        name = f"@20 on {line['split']}{', looked at once' if line['split'] == 'test' else ''}"
        assert f"{name}: {line['recall@20']:.4f}" in page
    assert not list(run.glob("*.part"))
    assert not list(run.glob("*.png"))


def test_every_number_comes_from_the_record(run: Path) -> None:
    """The mutant: a changed number in the record changes the number on the page."""
    changes = {
        ("result.json", "recall@20"): 0.98765, ("result.json", "ndcg@20"): 0.87654,
        ("metrics.jsonl", "recall@20"): 0.76543, ("metrics.jsonl", "bytes_down"): 987654321,
    }  # fmt: skip
    before = shown(write_report(run))
    for (name, key), new in changes.items():
        text = (run / name).read_text()
        first = re.search(rf'"{key}": ?[0-9.e-]+', text)
        assert first, key
        (run / name).write_text(text.replace(first[0], f'"{key}": {new}'))
    page = shown(write_report(run))
    for (_, key), new in changes.items():
        said = size(new / 1500) if key == "bytes_down" else f"{new:.4f}"
        assert said in page, key
        assert said not in before, key


def test_users_are_ranked_as_the_evaluation_did(run: Path) -> None:
    survey = read_run(run, None).survey
    assert survey is not None
    assert survey.recall(20).mean() == pytest.approx(json.loads((run / "result.json").read_text())["recall@20"])


def test_only_the_owner_may_read_what_people_have(run: Path) -> None:
    write_report(run)
    assert {stat.S_IMODE((run / name).stat().st_mode) for name in ("report.html", "users.safetensors")} == {0o600}


def test_people_have_what_the_data_says_and_get_nothing_of_it(run: Path) -> None:
    page = write_report(run).read_text()
    data, split = data_of(page), load_for(read_run(run).config).split
    assert len(data["people"]) in (200, 201)  # evenly spaced ones, and a good case
    assert "not a typical one" in page
    for person in data["people"]:
        user = int(person["id"])
        known = split.before_test.of(user).tolist()
        assert person["has"] == known[:50]
        assert len(person["has"]) + person["more"] == len(known)
        assert person["hidden"] == split.test.of(user).tolist()
        assert len(person["gets"]) == 10
        assert not set(person["gets"]) & set(known)
    degrees = split.train.degrees()
    assert all(degrees[int(item)] == about[1] for item, about in data["items"].items())


def test_one_may_ask_for_people_and_for_nobody(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(run), "--user", "3", "--user", "7", "--people", "0"]) == 0
    data = data_of((run / "report.html").read_text())
    assert [person["id"] for person in data["people"]] == ["3", "7"]
    assert data["first"] == 0
    assert cli.main(["report", str(run), "--people", "0"]) == 0
    page = (run / "report.html").read_text()
    assert 'id="data"' not in page
    assert "People" not in shown(run / "report.html")
    before = page
    for words, said in ((["--user", "ann"], "ann"), (["--people", "-1"], "--people cannot be '-1'")):
        assert cli.main(["report", str(run), *words]) == 2
        assert said in capsys.readouterr().err
    assert (run / "report.html").read_text() == before


def test_popularity_is_in_every_report_and_is_what_the_full_ranking_says(run: Path) -> None:
    page, split = shown(write_report(run)), load_for(read_run(run).config).split
    likes = split.train.degrees().astype(np.float32)[:, None]
    whole = evaluate(np.ones((split.train.n_users, 1), np.float32), likes, split.before_test, split.test).metrics
    assert json.loads((run / "baselines.json").read_text())["popularity"] == pytest.approx(whole)
    assert f"{whole['recall@20']:.4f}" in page


def test_baselines_are_shown_in_order_and_kept(clicks: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", data=str(clicks))
    baselines = {"a <b>bad</b> one": {"recall@20": 0.0001}, "oracle": {"recall@20": 0.9, "ndcg@20": 0.8}}
    first = write_report(run, baselines).read_bytes()
    page = shown(write_report(run))  # written again without them
    assert page.index("oracle") < page.index("FedGRec, this run") < page.index("a &lt;b&gt;bad&lt;/b&gt; one")
    assert "0.9000" in page
    assert (run / "report.html").read_bytes() == first  # equal runs, equal pages


def test_of_very_many_users_some_are_looked_at(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgrec.pages.report.gather.MOST_USERS", 10)
    page = shown(write_report(train(tmp_path / "run", data=str(clicks))))
    assert "for 10 evenly spaced users" in page
    assert "The average over 10 users" in page


def test_ids_are_text_and_never_markup(clicks: Path, tmp_path: Path) -> None:
    path = write_report(train(tmp_path / "run", data=str(clicks), topk=[5, 20]))
    assert "recall@20" in shown(path)  # the other list length
    names = [about[0] for about in data_of(path.read_text())["items"].values()]
    assert all(name.startswith("<script>alert(") for name in names)
    assert 'id="near"' not in path.read_text()  # there is no map


@pytest.mark.parametrize(
    ("options", "spent", "said"),
    [
        ({"dp_epsilon": 8.0}, [2.0, 7.9], ("ε spent", "7.9", "of 8 for every user, at δ = 1e-06")),
        ({"dp_epsilon": 4.0, "dp_unit": "interaction"}, [], ("ε spent", "4", "of 4 for every interaction, at δ = 0")),
        ({}, [], None),
    ],
)
def test_the_page_says_what_all_sums_of_the_run_have_spent(options: Any, spent: list[float], said: Any) -> None:
    lines = [{"dp_epsilon_spent": epsilon} for epsilon in spent]
    run = SimpleNamespace(metrics=lines, config=Config().changed(options, "test"))
    assert promise(cast(Any, run)) == ([said] if said else [])


def test_paper_protocol_says_so(clicks: Path, tmp_path: Path) -> None:
    page = shown(write_report(train(tmp_path / "run", data=str(clicks), protocol="paper")))
    assert "the best round on test, as published numbers are" in page


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_a_run_without_test_items(validation: float, clicks: Path, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", data=str(clicks), test_ratio=0.0, validation=validation)
    page = shown(write_report(folder, {"popularity": {"recall@20": 0.1}}))
    assert "no test items" in page
    assert "FedGRec, this run" not in page
    assert ("<h2>Learning</h2>" in page) == bool(validation)


def test_a_run_whose_data_is_gone_still_has_its_numbers(clicks: Path, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", data=str(clicks))
    clicks.unlink()
    page = shown(write_report(folder))
    assert f"{json.loads((folder / 'result.json').read_text())['recall@20']:.4f}" in page
    assert "Left out:" in page


def test_an_unfinished_run_is_refused(run: Path) -> None:
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        write_report(run)
    assert not (run / "report.html").exists()


@pytest.mark.keep(8)
@pytest.mark.parametrize("text", ["[]", "{}", '{"popularity": 3}', '{"round": 3}', "{"])
@pytest.mark.parametrize("name", ["result.json", "data.json", "metrics.jsonl", "baselines.json"])
def test_a_damaged_file_is_named(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text)
    if name == "baselines.json" and text in ("[]", "{}"):  # no baselines
        write_report(run)
        return
    with pytest.raises(RunError, match=rf"{name}(:1)? is damaged .*: restore it"):
        write_report(run)


def test_the_demo_after_a_k_core_keeps_its_places(tmp_path: Path) -> None:
    run = read_run(train(tmp_path / "run", k_core=12, rounds=1), None)
    assert run.places is not None
    assert 0 < len(run.model.item_ids) < len(run.places.names)  # renumbered
    for item in (0, len(run.model.item_ids) - 1):
        assert run.places.names[run.model.item_ids[item]] in run.names.title(item)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (7.08e6, "7.08 MB"), (2e15, "2,000 TB")],
)
def test_sizes_are_said_as_people_say_them(n: float, text: str) -> None:
    assert size(n) == text


# -------------------------------------------------------------------------------------------------- charts


def test_marks_are_where_the_axes_say() -> None:
    assert [round(t, 6) for t in axis([0.07, 0.31], 0, 100).ticks()] == [0, 0.1, 0.2, 0.3]
    assert list(axis([30, 4_000], 0, 100, log=True).ticks()) == [10, 100, 1_000, 10_000]
    assert axis([30, 4_000], 0, 90, log=True).at(100) == pytest.approx(30)  # the first of three decades
    assert list(axis([0.0, float("nan")], 0, 100).ticks()) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    body = plot("Recall", "round", [Series("x", [(0, 0.0), (40, 0.2)], "c0")]).body
    # Both axes leave a twentieth of room: 40 of 42 on 336 units beside 52, and 0.2 of 0.21 on 190 units above 224.
    assert 'd="M52.0 224.0L372.0 43.0"' in body


def test_a_file_of_a_figure_is_sound_and_a_page_has_the_same_panels() -> None:
    panel = plot("A <b>", "round", [Series("x & y", [(1, 0.25), (2, 0.5)], "c0")])
    figure = Figure("f", [panel, panel, panel], "1 < 2", legend({"x & y": ("c0", "")}))
    root = ElementTree.fromstring(figure.file())
    assert [child.get("aria-label") for child in root if child.tag.endswith("}svg")] == ["A <b>"] * 3 + ["Legend"]
    assert figure.html().count('aria-label="A &lt;b&gt;"') == 3


# --------------------------------------------------------------------------------------------- in a browser


@needs_browser
def test_one_can_choose_a_person(run: Path, tmp_path: Path) -> None:
    page = write_report(run, users=["7", "8"]).read_text()
    data = data_of(page)
    person = next(person for person in data["people"] if person["id"] == "8")
    seen = in_browser(page, tmp_path, fragment="#user=8")
    assert f"User 8 has {len(person['has'])} items. Hidden from the model: {len(person['hidden'])}" in seen
    for item in person["has"] + person["gets"] + person["hidden"]:
        assert html.escape(data["items"][str(item)][0], quote=False) in seen
    gets = seen.split('id="gets"')[1].split("</tbody>")[0]
    assert gets.count(">hit</td>") == len(set(person["gets"]) & set(person["hidden"]))
    near = seen.split('id="near"')[1].split("</svg>")[0]
    assert near.count('class="c0 tip"') == len(person["has"])  # on the map
    assert near.count('class="rank"') == 10
    spots = [tuple(map(float, xy)) for xy in re.findall(r'class="c[12] tip"[^>]*translate\(([\d.]+) ([\d.]+)\)', near)]
    side = float(re.findall(r'viewBox="\S+ \S+ (\S+) ', near)[0])
    assert min(np.hypot(a[0] - b[0], a[1] - b[1]) for a, b in itertools.combinations(spots, 2)) > 0.99 * 21 * side / 400


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"rounds": 40, "half_life": 7.0},
        {"method": "spectral", "dp_epsilon": 8.0},
        {"method": "spectral", "dp_epsilon": 8.0, "shift": 0.5},
        {"method": "two-parts", "turns": 9, "topk": (5, 20)},
    ],
    ids=str,
)
def test_only_what_somebody_set_differs_from_the_default(asked: dict[str, Any]) -> None:
    """Not what follows from it: rounds, steps of a schedule, a device, the options that suit noise."""
    config = decided(Config().changed(asked, "test"), 1500)
    config = replace(config, run=replace(config.run, device="cpu"))
    found = {option.name: value for option, value, _ in chosen_options(config, 1500)}
    assert found == {name: value for name, value in asked.items() if name != "method"}


@needs_browser
def test_the_options_fit_a_telephone_and_a_long_list_scrolls_with_a_shadow(run: Path, tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as (browser, _):
        for width in (390, 1280):
            browser.open(write_report(run).as_uri())
            browser.picture(tmp_path / "page.png", width)
            whole = "document.querySelector('.options .wide')"
            assert browser.look(f"{whole}.scrollWidth <= {whole}.clientWidth")
            assert browser.look("document.getElementById('has').tabIndex") == 0
            shadows = browser.look("getComputedStyle(document.getElementById('has')).backgroundAttachment")
            assert shadows == "local, local, scroll, scroll"


@needs_browser
def test_names_are_shown_as_text_and_nothing_of_them_runs(clicks: Path, tmp_path: Path) -> None:
    page = write_report(train(tmp_path / "run", data=str(clicks))).read_text()
    script = """
      const names = [...document.querySelectorAll('#gets td:nth-child(2)')].map((cell) => cell.textContent);
      document.title = names.length > 5 && names.every((name) => name.startsWith('<scr' + 'ipt>alert('));"""
    seen = in_browser(page, tmp_path, script)
    assert "<title>true</title>" in seen


@needs_browser
def test_a_click_sorts_a_table_and_a_chart_says_its_values(tmp_path: Path) -> None:
    rows = [["a", Cell("9 kB", 9e3)], ["b", Cell("–")], ["c", Cell("1 MB", 1e6)], ["d", "7"]]
    grid = Grid("", ["name", "size"], rows)
    chart = plot("Recall", "round", [Series("x", [(1, 0.25), (2, 0.5)], "c0")])
    page = render("t", "", [("table", tables_html(grid)), ("chart", chart.svg())])
    script = """
      const [name, size] = document.querySelectorAll(".sortable button"), said = [];
      const names = () => [...document.querySelectorAll("tbody th")].map((cell) => cell.textContent).join("");
      for (const button of [size, size, name, name]) { button.focus(); button.click(); said.push(names()); }
      said.push(name.parentElement.getAttribute("aria-sort"));
      document.querySelector(".tip").focus();
      document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
      // A window that does not have the focus yet, as on a busy machine, sends no such event by itself.
      document.activeElement.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
      document.title = said.join(" ") + "; " + document.getElementById("tip").textContent.replace("\\n", ", ");"""
    assert "<title>cadb dacb abcd dcba descending; round 2, x: 0.5000</title>" in in_browser(page, tmp_path, script)


# ------------------------------------------------------------------------------------------------- colours


def colours(css: str) -> list[dict[str, tuple[float, ...]]]:
    """Light and dark: name → red, green and blue, linear."""

    def linear(text: str) -> tuple[float, ...]:
        parts = (int(text[i : i + 2], 16) / 255 for i in (0, 2, 4))
        return tuple(v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)

    return [
        {name: linear(value) for name, value in re.findall(r"--(card|soft|ink|c\d): #(\w{6})", part)}
        for part in css.split("@media")
    ]


def test_colours_stand_out_from_the_card_and_from_each_other_for_colour_blind_people_too() -> None:
    # Machado, Oliveira and Fernandes (2009), severity 1: red-blind and green-blind.
    sight = [np.eye(3), np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
             [-0.003882, -0.048116, 1.051998]]), np.array([[0.367322, 0.860646, -0.227968],
             [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])]  # fmt: skip
    for mode in colours(own_file("charts.css")):
        light = {name: 0.2126 * r + 0.7152 * g + 0.0722 * b for name, (r, g, b) in mode.items()}
        for name in [name for name in mode if name != "card"]:
            low, high = sorted((light[name], light["card"]))
            assert (high + 0.05) / (low + 0.05) >= 4.5, name  # WCAG 2.1, AA for text
        for seen in sight:
            series = {
                name: np.clip(seen @ rgb, 0, 1) ** (1 / 2.4)
                for name, rgb in mode.items()
                if name[0] == "c" and name[1].isdigit()
            }
            for (a, one), (b, other) in itertools.combinations(series.items(), 2):
                assert np.linalg.norm(one - other) > 0.2, (a, b)
