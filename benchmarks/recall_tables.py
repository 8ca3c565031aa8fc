"""docs/results/README.md: the recall and the bytes of all kept runs, made from their records."""

import csv
import statistics
from typing import Any

from benchmarks.markdown import (
    DATA,
    DOCUMENTS,
    KEPT,
    Scores,
    figure,
    json_lines,
    kept,
    mean_pair,
    pair,
    quotient,
    section,
    table,
)

SUMS = {
    "two-parts-long": "`two-parts-long`: four sums, then `long`",
    "spectral": "`spectral`: four secure sums, no training",
}
# The highest figures on this split that we know of, all of them of centralized models.
HIGHEST = (("ChebyCF", ".1941 / .1616", "–"), ("LightGCN with BSL", ".1892 / .1590", ".0744 / .0617"))
RIVALS = {"ease": "EASE", "als": "ALS of `implicit`"}
LONG_BPR = "paper's loss (BPR), 60,000 rounds"
HEAD = """# Results of full runs

`python -m benchmarks tables` makes this page from the records beside it. Figures are Recall@20 / NDCG@20 of the full
ranking with train items masked. Under the protocol `honest` validation items choose the round and test items are
measured once; under `paper` the best round on test items counts ([two protocols](../compare.md#two-protocols)).
± is half of the 95 % interval over three seeds. [Reproduction](../reproduction.md) says what the figures mean, and
[measurements](measurements.md) has times, memory and privacy."""


def page() -> str:
    parts = (
        HEAD,
        everything(),
        table_2(),
        readings_long(),
        readings(),
        two_parts(),
        softmax(),
        centralized(),
        tried(),
        bpr(),
        lambdas(),
        compared(),
        words(),
        frontier(),
    )
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------- reading records


def matching(lines: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [line for line in lines if line.items() >= wanted.items()]


def softmax_runs(label: str, data: str, protocol: str) -> list[Scores]:
    lines = json_lines(DOCUMENTS / "softmax" / "runs.jsonl")
    return scores_of(matching(lines, label=label, data=data, protocol=protocol))


def summed_runs(label: str, data: str, protocol: str) -> list[dict[str, Any]]:
    lines = json_lines(DOCUMENTS / "two-parts" / "runs.jsonl")
    return matching(lines, label=label, data=data, protocol=protocol)


def scores_of(runs: list[dict[str, Any]]) -> list[Scores]:
    return [(run["result"][1], run["result"][2]) for run in runs]


def exact_runs(method: str, data: str) -> list[Scores]:
    """Runs without a promise of privacy in the record of the privacy frontier: the defaults, `honest`."""
    rows = matching(kept("frontier")["result"]["rows"], data=data, method=method, unit="")
    return [(row["recall"], row["ndcg"]) for row in rows if "recall" in row]


def rival_scores(method: str, data: str, protocol: str) -> list[Scores]:
    rows = matching(kept("rivals")["result"]["rows"], method=method, data=data, protocol=protocol)
    return [(row["recall"], row["ndcg"]) for row in rows]


def mean_or_one(scores: list[Scores]) -> str:
    return mean_pair(scores) if len(scores) > 1 else pair(scores[0])


def long_runs(data: str, protocol: str) -> list[Scores]:
    lines = json_lines(DOCUMENTS / "long" / "runs.jsonl")
    of = [line["result.json"] for line in lines if line["run"].startswith(f"{data}-{protocol}-")]
    return [(line["recall@20"], line["ndcg@20"]) for line in of]


def last(lines: list[dict[str, Any]], split: str) -> Scores:
    line = [line for line in lines if line["split"] == split][-1]
    return line["recall@20"], line["ndcg@20"]


def best(lines: list[dict[str, Any]], split: str) -> Scores:
    return max((line["recall@20"], line["ndcg@20"]) for line in lines if line["split"] == split)


def reproduced(folder: str) -> list[dict[str, str]]:
    with (DOCUMENTS / "reproduce" / folder / "table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_row(row: dict[str, str], suffix: str = "") -> Scores | None:
    recall, ndcg = row[f"recall@20{suffix}"], row[f"ndcg@20{suffix}"]
    return (float(recall), float(ndcg)) if recall else None


def in_table_2(label: str, data: str) -> dict[str, str]:
    return next(row for row in reproduced("table2") if (row["label"], row["data"]) == (label, data))


def honest_lightgcn(data: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]]
    lines = next(r for r in json_lines(DOCUMENTS / "lightgcn-honest" / "runs.jsonl") if r["run"] == data)[
        "metrics.jsonl"
    ]
    return lines


# ------------------------------------------------------------------------------------------------- sections


def everything() -> str:
    rows = [
        ["`best`, 14-bit words, the defaults", "honest", *(mean_pair(exact_runs("fedgrec", d)) for d in DATA)],
        *(
            [f"`{label}`, 32-bit words", protocol, *(mean_pair(softmax_runs(label, d, protocol)) for d in DATA)]
            for label in ("best", "long")
            for protocol in ("honest", "paper")
        ),
        *(
            [name, protocol, *(mean_pair(scores_of(summed_runs(label, d, protocol))) for d in DATA)]
            for label, name in SUMS.items()
            for protocol in ("honest", "paper")
        ),
        *([LONG_BPR, p, *(mean_pair(long_runs(d, p)) for d in DATA)] for p in ("honest", "paper")),
        *(
            [f"{name}, not federated", protocol, *(mean_or_one(rival_scores(method, d, protocol)) for d in DATA)]
            for method, name in RIVALS.items()
            for protocol in ("honest", "paper")
            if rival_scores(method, "gowalla", protocol)
        ),
        ["LightGCN-3, not federated, seed 0", "honest", *(pair(last(honest_lightgcn(d), "test")) for d in DATA)],
    ]
    for label in ("FedGRec-1", "FedGRec-2", "FedGRec-3", "LightGCN-3"):
        found = [in_table_2(label, data) for data in DATA]
        rows.append([f"{label}, seed 0", "paper", *(pair(of_row(row) or ()) for row in found)])
        published = (of_row(row, "_published") or () for row in found)
        rows.append([f"{label}, as published", "paper", *(pair(scores) for scores in published)])
    rows += [[f"{name}, as published", "paper", *scores] for name, *scores in HIGHEST]
    return section("All results in one table", table(["system", "protocol", *DATA.values()], rows))


def headline() -> str:
    """The few rows of the README."""
    rows = [
        [f"{name}, {protocol}", *(pair_of_means(scores_of(summed_runs(label, d, protocol))) for d in DATA)]
        for label, name in SUMS.items()
        for protocol in ("honest", "paper")
    ]
    rows.append(["fedgrec, preset `long`, paper", *(pair_of_means(softmax_runs("long", d, "paper")) for d in DATA)])
    published = (of_row(in_table_2("FedGRec-2", data), "_published") or () for data in DATA)
    rows.append(["FedGRec-2, as published", *(pair(scores) for scores in published)])
    rows += [[f"{name}, not federated, as published", *scores] for name, *scores in HIGHEST]
    return table(["system, protocol", *DATA.values()], rows)


def pair_of_means(scores: list[Scores]) -> str:
    return pair([statistics.fmean(values) for values in zip(*scores, strict=True)])


def table_2() -> str:
    rows = []
    for data, title in DATA.items():
        for row in (row for row in reproduced("table2") if row["data"] == data):
            ours, theirs = of_row(row), of_row(row, "_published")
            assert ours
            assert theirs
            chosen = f"{int(row['chosen']):,} of {int(row['length']):,}"
            rows.append([title, row["label"], pair(ours), pair(theirs), quotient(ours[0], theirs[0]), chosen])
    head = ["data", "system", "here", "in the paper", "difference in recall", "round or epoch"]
    text = (
        "Protocol `paper`, seed 0. Rows called best have this project's own settings "
        "([the whole table](reproduce/table2/table.md))."
    )
    return section("Table 2 of the paper", text, table(head, rows))


def readings_long() -> str:
    names = ("FedGRec-1", "FedGRec-2", "FedGRec-3")
    rows = []
    for folder, name in (("", "none"), ("epsilon-1e-4",) * 2, ("sgd-10",) * 2, ("sgd-3",) * 2):
        table_of = {
            r["label"]: r for r in reproduced("table2" + (f"-{folder}" if folder else "")) if r["data"] == "gowalla"
        }
        rows.append([f"`{name}`", *(pair(of_row(table_of[label]) or ()) for label in names)])
    text = "Gowalla, 100,000 rounds, protocol `paper`, seed 0; `fedgrec reproduce table2 --reading NAME` runs one."
    return section("Readings over the paper's 100,000 rounds", text, table(["reading", *names], rows))


def readings() -> str:
    rounds = (1000, 4000, 10000)
    lines = json_lines(DOCUMENTS / "readings" / "10000-rounds.jsonl")
    found = []
    for line in lines:
        at = {metric["round"]: (metric["recall@20"], metric["ndcg@20"]) for metric in line["metrics"]}
        found.append([line["label"], *(at[count] for count in rounds)])
    found.sort(key=lambda row: row[-1], reverse=True)
    rows = [[label, *(pair(scores) for scores in of)] for label, *of in found]
    head = ["what is read otherwise", *(f"{count:,} rounds" for count in rounds)]
    text = "Gowalla, K = 2, protocol `paper`, seed 0 ([every evaluation](readings/10000-rounds.jsonl))."
    return section("Readings after 1,000 to 10,000 rounds", text, table(head, rows))


def two_parts() -> str:
    rows = []
    for label in SUMS:
        for data, title in DATA.items():
            runs = summed_runs(label, data, "honest")
            last = [run["metrics"][-1] for run in runs]
            up, down = (
                statistics.fmean(line[f"bytes_{way}"] / run["users"] for line, run in zip(last, runs, strict=True))
                / 1e6
                for way in ("up", "down")
            )
            cells = [
                f"{max(round_of['round'] for round_of in last):,}",
                mean_pair(scores_of(runs)),
                f"{up:,.0f}",
                f"{down:,.0f}",
            ]
            rows.append([f"`{label}`", title, *cells])
    head = ["", "data", "rounds", "test", "MB up", "MB down"]
    text = (
        "What a user sends in secure sums and receives, protocol `honest`, three seeds; `long`'s words have 32 bits "
        "([every evaluation](two-parts/runs.jsonl)). The rule of `spectral` was chosen on "
        "[validation items of ten data sets](../../benchmarks/results/spectral-rule.jsonl)."
    )
    return section("Sums, and two parts", text, table(head, rows), others(), rule())


def others() -> str:
    """Smaller data: both parts beside each of them."""
    lines = json_lines(DOCUMENTS / "two-parts" / "others.jsonl")
    methods = ("two-parts", "spectral", "fedgrec")
    rows = []
    for data in dict.fromkeys(line["data"] for line in lines):
        of = {name: [line for line in lines if (line["data"], line["method"]) == (data, name)] for name in methods}
        seeds = min(map(len, of.values()))
        rows.append([data, str(seeds), *(pair_of_means(scores_of(of[name][:seeds])) for name in methods)])
    text = "The defaults on smaller data, `honest`, means over seeds ([every evaluation](two-parts/others.jsonl)):"
    return text + "\n\n" + table(["data", "seeds", *(f"`{name}`" for name in methods)], rows)


def rule() -> str:
    """How far each change is from the default, over both seeds and all data sets."""
    runs = json_lines(KEPT / "spectral-rule.jsonl")[1:]
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        found.setdefault(run["label"], {}).setdefault(run["data"], []).append(run["validation"][0])
    usual = {data: statistics.fmean(values) for data, values in found["default"].items()}
    rows = []
    for label in sorted(found):
        shares = [statistics.fmean(values) / usual[data] for data, values in found[label].items()]
        rows.append([label, *(quotient(share, 1) for share in (statistics.fmean(shares), min(shares), max(shares)))])
    head = ["`spectral` with", "mean recall", "worst data set", "best data set"]
    return table(head, rows)


def softmax() -> str:
    validation = {
        (r["label"], r["data"]): r["metrics"]
        for r in json_lines(DOCUMENTS / "softmax" / "runs.jsonl")
        if (r["protocol"], r["seed"]) == ("honest", 0)
    }
    rows = [
        [
            DATA[data],
            f"`{label}`",
            pair(best(metrics, "validation")),
            *(mean_pair(softmax_runs(label, data, p)) for p in ("honest", "paper")),
        ]
        for (label, data), metrics in sorted(validation.items(), key=lambda item: item[0][::-1])
    ]
    head = ["data", "preset", "validation, seed 0", "test, honest", "test, paper"]
    text = "Three seeds on one H200, 32-bit words ([every evaluation](softmax/runs.jsonl))."
    pictures = (
        "![Recall over rounds](softmax/recall-over-rounds.png)\n![Recall over bytes](softmax/recall-over-bytes.png)"
    )
    return section("Softmax", text, table(head, rows), pictures)


def centralized() -> str:
    """The runs with pairs drawn evenly and the setting that validation items chose."""
    runs = [
        run
        for run in json_lines(DOCUMENTS / "softmax" / "centralized.jsonl")
        if run.get("pairs") == "uniform"
        and (run["model"], run["epochs"]) in {("lightgcn", 60), ("mf", 100)}
        and "t" in run["lines"][-1]
    ]
    rows = []
    for model, name in (("lightgcn", "LightGCN"), ("mf", "MF")):
        cells = []
        for data in DATA:
            of = [run["lines"] for run in runs if (run["model"], run["data"]) == (model, data)]
            chosen = [max((line["v"][0], line["v"], line["t"]) for line in lines if "t" in line) for lines in of]
            cells += [f"{mean_pair([v for _, v, _ in chosen])}", mean_pair([t for *_, t in chosen])]
        rows.append([f"{name}, softmax", *cells])
    for method, name in RIVALS.items():
        found = [rival_scores(method, data, protocol) for data in DATA for protocol in ("validation", "honest")]
        if all(found):
            best_on = [[max(scores)] if at % 2 == 0 else scores for at, scores in enumerate(found)]
            rows.append([name, *map(mean_or_one, best_on)])
    head = ["", *(f"{title}, {split}" for title in DATA.values() for split in ("validation", "test"))]
    text = (
        "Models of all data in one place, `honest`: with the same loss ([every run](softmax/centralized.jsonl)), and "
        "with settings that validation items chose ([search](../../benchmarks/results/rivals.json))."
    )
    return section("Centralized models", text, table(head, rows))


# By kind of run: its option, and what that is called.
TRIED = {
    "K": ("layers", "layers"),
    "d128": ("dim", "dim"),
    "w": ("negative_weight", "negative_weight"),
    "negatives": ("negatives", "negatives"),
    "hl": ("hl", "half-life, of the rounds"),
    "init": ("init_std", "init_std"),
    "spectral-start": ("start", "spectral start of e⁰, σ"),
    "tau10": ("item_rate", "ten local SGD steps, rate"),
}


def tried() -> str:
    names, runs = (*DATA, "demo"), json_lines(KEPT / "softmax-rule.jsonl")[1:]
    rows = []
    for kind, (option, what) in TRIED.items():
        found: dict[Any, dict[str, float]] = {}
        for run in (run for run in matching(runs, kind=kind) if run["data"] in names):
            found.setdefault(run["o"][option], {})[run["data"]] = run["inner"][0]
        for value, recall in sorted(found.items()):
            rows.append([f"{what} {value:g}", *(figure(recall[d]) if d in recall else "–" for d in names)])
    text = (
        "Recall@20 on validation items after 53 turns with T = .11, seed 0, where one option differs from `best` "
        "([record](../../benchmarks/results/softmax-rule.jsonl))."
    )
    return section("Options of softmax that were tried", text, table(["", *DATA.values(), "demo"], rows))


def bpr() -> str:
    rows = []
    for data, rate in (("gowalla", "1e-4"), ("yelp2018", "2e-4")):
        plain = long_runs(data, "honest")
        lines = json_lines(DOCUMENTS / "long-l2" / "runs.jsonl")
        chosen = [
            last(line["metrics"], "test")
            for line in lines
            if (line["options"]["data"], line["options"]["l2"]) == (data, float(rate))
            and line["rounds"] == 60000
            and "layers" not in line["options"]
        ]
        other = next(
            line["metrics"]
            for line in json_lines(DOCUMENTS / "lightgcn-l2" / "runs.jsonl")
            if (line["options"]["data"], line["options"]["layers"]) == (data, 3)
        )
        rows += [
            [DATA[data], "long BPR", mean_pair(plain)],
            [DATA[data], f"long BPR, λ = {rate}", mean_pair(chosen)],
            [DATA[data], "LightGCN-3, λ = 1e-4, seed 0", pair(last(honest_lightgcn(data), "test"))],
            [DATA[data], "LightGCN-3, λ = 3e-4, seed 0", pair(last(other, "test"))],
        ]
    twice = next(r for r in json_lines(DOCUMENTS / "long-l2" / "runs.jsonl") if r["rounds"] == 120000)["metrics"]
    rows.append(["Yelp2018", "long BPR, λ = 2e-4, 120,000 rounds, seed 0", pair(last(twice, "test"))])
    text = "The paper's loss against centralized LightGCN, protocol `honest`, test items."
    return section("Long BPR", text, table(["data", "system", "test"], rows))


def lambdas() -> str:
    runs = [r for r in json_lines(DOCUMENTS / "lightgcn-l2" / "runs.jsonl") if r["options"]["layers"] == 1]
    rows = []
    for data, title in DATA.items():
        stated = in_table_2("LightGCN-1", data)
        found = {r["options"]["l2"]: pair(best(r["metrics"], "test")) for r in runs if r["options"]["data"] == data}
        rows.append(
            [title, pair(of_row(stated) or ()), found[3e-4], found[1e-3], pair(of_row(stated, "_published") or ())]
        )
    head = ["LightGCN-1, λ =", "1e-4", "3e-4", "1e-3", "published"]
    return section("LightGCN with one layer", "Protocol `paper`, seed 0.", table(head, rows))


def compared() -> str:
    with (DOCUMENTS / "compare-gowalla" / "compare.csv").open(encoding="utf-8") as file:
        rows = [[f"`{row['label']}`", beside(row, "recall@20"), beside(row, "ndcg@20")] for row in csv.DictReader(file)]
    text = (
        "Gowalla, `honest`, three seeds, each tuned by twenty trials on validation items; in brackets the difference "
        "from Table 2 ([runs](compare-gowalla/runs.jsonl), [trials](compare-gowalla/trials.json))."
    )
    return section("The compared federated systems, tuned", text, table(["method", "Recall@20", "NDCG@20"], rows))


def beside(row: dict[str, str], name: str) -> str:
    """A mean, its interval, and the difference from what was published."""
    ours, half, theirs = (float(row[name + end]) for end in ("", "_half_width", "_published"))
    return f"{figure(ours)} ± {figure(half)} ({quotient(ours, theirs)})"


def words() -> str:
    runs = [
        r
        for r in json_lines(KEPT / "words.jsonl")
        if r["protocol"] == "honest"
        and r["seed"] == 0
        and len(r["lines"]) in (8, 9)
        and not r.get("test")
        and "preset" not in r
    ]
    named = (
        ("latents in every round, 32 bits, float32", {"latents_every": 1, "item_levels": 0, "download": "float32"}),
        *(
            (f"latents in every {n}th round", {"latents_every": n, "item_levels": 0, "download": "float32"})
            for n in (5, 10, 20, 40)
        ),
        *(
            (
                f"±{levels} levels, the step {spread} times what is usual",
                {"latents_every": 1, "item_levels": levels, "download": "float32", "spread": spread},
            )
            for levels, spread in ((20, 2), (20, 4), (20, 8), (20, 16), (81, 8))
        ),
        *((f"{kind} down", {"latents_every": 1, "item_levels": 0, "download": kind}) for kind in ("bfloat16", "int8")),
    )
    rows = []
    for what, options in named:
        cells = []
        for data in DATA:
            of = [
                r
                for r in runs
                if r["data"] == data and {k: v for k, v in r["options"].items() if k != "evaluate_every"} == options
            ]
            top = max((line["recall"], line["ndcg"]) for line in of[0]["lines"] if line["split"] == "validation")
            cells.append(pair(top))
        rows.append([what, *cells])
    text = (
        "Preset `best`, best round on validation items, seed 0, one change at a time, with steps that do not use an "
        "item's degree ([every run](../../benchmarks/results/words.jsonl))."
    )
    return section("Words, latents and downloads", text, table(["", *DATA.values()], rows), long_words())


def long_words() -> str:
    """`long` with latents in every 20th round, ±81 levels of a step of its own, and int8 down."""
    runs = matching(json_lines(KEPT / "words.jsonl"), preset="long", steps={"spread": 4.02, "power_of_share": 1})
    rows = []
    for protocol in ("honest", "paper"):
        cells = []
        for data in DATA:
            of = [run["lines"] for run in runs if (run["data"], run["protocol"]) == (data, protocol)]
            tests = [[(x["recall"], x["ndcg"]) for x in lines if x["split"] == "test"] for lines in of]
            cells.append(mean_pair([max(found) for found in tests]))
        rows.append([protocol, *cells])
    text = "Preset `long` with latents in every 20th round, ±81 levels and int8 down, three seeds:"
    return text + "\n\n" + table(["protocol", *DATA.values()], rows)


def frontier() -> str:
    with (DOCUMENTS / "frontier.csv").open(encoding="utf-8") as file:
        rows = [
            [row["method"], f"{int(row['megabytes_up']):,}", figure(float(row["recall"]))]
            for row in csv.DictReader(file)
        ]
    text = "Whole runs on Gowalla, protocol `honest`, means of three seeds: what a user sends in secure sums."
    return section(
        "Recall and bytes",
        text,
        table(["method", "MB up", "Recall@20"], rows),
        "![Recall over megabytes sent](frontier.png)",
    )
