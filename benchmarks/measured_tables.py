"""docs/results/measurements.md: times, memory, a federation at work and the cost of privacy, from
kept records."""

import math
import statistics
from typing import Any

from benchmarks.markdown import DATA, figure, kept, percent, section, table

HEAD = """# Measurements

`python -m benchmarks tables` makes this page from the last run of every benchmark, kept in
[benchmarks/results](../../benchmarks/results) with its machine, versions and commit. "Times ours" says how many times
as long a rival takes in the same run. [Benchmarks](../../benchmarks/README.md) says what is measured and what it means,
[results](README.md) has recall and bytes."""


def page() -> str:
    parts = (
        HEAD,
        rounds(),
        compared(),
        ranking(),
        scale(),
        gpu(),
        secure_sums(),
        mechanisms(),
        federation(),
        nodes(),
        liveness(),
        starved(),
        soak(),
        year(),
        privacy(),
        told(),
        lies(),
        defences(),
    )
    return "\n\n".join(parts) + "\n"


def measured(name: str) -> dict[str, Any]:
    result: dict[str, Any] = kept(name)["result"]
    return result


def machine(name: str) -> str:
    about = kept(name)
    return f"{about['machine']['cores']} cores of an {about['machine']['cpu']}, {about['date'][:10]}".replace("(R)", "")


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.1f}"


# ------------------------------------------------------------------------------------------- one machine


def rounds() -> str:
    rows = [
        [
            str(kept(name)["machine"]["cores"]),
            what,
            ms(m["seconds"]["fedgrec"]),
            times(m["ratio"]["autograd"]),
            times(m["ratio"]["batched"]),
        ]
        for name in ("rounds", "rounds-10-cores")
        for what, m in measured(name)["rounds"].items()
    ]
    head = [
        "cores",
        "round",
        "ours",
        "a user at a time with autograd, times ours",
        "a padded batch in closed form, times ours",
    ]
    return section("Rounds", "One round of 400 users on Gowalla against PyTorch.", table(head, rows))


def compared() -> str:
    rows = [
        [
            str(kept("federated")["machine"]["cores"]),
            f"`{method}`",
            ms(m["seconds"]["fedgrec"]),
            ", ".join(f"{rival}: {ratio:.1f}" for rival, ratio in m["ratio"].items()),
        ]
        for method, m in measured("federated")["rounds"].items()
    ]
    found = measured("lightgcn")
    text = (
        f"{found['batches']} batches of LightGCN-{found['layers']} on Gowalla take "
        f"{found['seconds']['fedgrec']:.2f} s; the best plain PyTorch takes {found['ratio']:.1f} times as long."
    )
    head = ["cores", "method", "ours", "rivals in PyTorch, times ours"]
    return section("Rounds of the compared methods", "One round of 400 users on Gowalla.", table(head, rows), text)


def ranking() -> str:
    bare, recommend, memory = measured("evaluation"), measured("recommend"), measured("memory")
    rows = [
        ["ranking all users of Gowalla, times the bare matrix product", f"{bare['ratio']:.2f}"],
        *(
            [f"`FedGRec.recommend` for everybody, times {rival}", f"{ratio:.2f}"]
            for rival, ratio in recommend["ratio"].items()
        ),
        [
            f"peak memory at Amazon-Book's size: warm-up, {memory['rounds']} rounds, evaluation, checkpoint",
            f"{memory['peak_gb']:.2f} GB",
        ],
    ]
    return section("Ranking and memory", f"On {machine('evaluation')}.", table(["what", ""], rows))


def scale() -> str:
    rows = [
        [f"{int(users):,}", f"{m['round_ms']:.0f} ms", f"{m['peak_gb']:.1f} GB"]
        for users, m in measured("scale")["users"].items()
    ]
    text = f"Invented users with 20 of 100,000 items each, on {machine('scale')}."
    return section("Scale", text, table(["users", "a round", "peak memory"], rows))


def _or_dash(number: float) -> str:
    """The loop in PyTorch has no softmax: its time is not a number."""
    return "–" if math.isnan(number) else f"{number:,.0f}"


def gpu() -> str:
    found = measured("gpu")
    names = {
        "paper": "`paper`: τ = 10, Adam",
        "recipe": "`bpr`: τ = 1, 1,024 negatives",
        "softmax": "softmax on cosines",
    }
    rows = [
        [names[name], f"{m['ms']:.3f}", f"{m['floor_ms']:.3f}", _or_dash(m["loop_ms"])]
        for name, m in found["rounds"].items()
    ]
    head = ["round of Gowalla", "ms", "floor, ms", "a user at a time in PyTorch on one CPU core, ms"]
    others = [[f"`{name}`", f"{m['ms']:.1f}"] for name, m in found["compared"].items()]
    epochs = [[name, f"{seconds:.3f}"] for name, seconds in found["epoch_seconds"].items()]
    return section(
        "Speed on a GPU",
        f"One {found['gpu']}, {kept('gpu')['date'][:10]}. The floor: what the arithmetic or the bytes of a round take.",
        table(head, rows),
        table(["round of 400 users", "ms"], others),
        table(["an epoch of Gowalla", "seconds"], epochs),
    )


# -------------------------------------------------------------------------------------- secure sums, federations


def secure_sums() -> str:
    found = measured("secagg")
    masks, whole, fuzz = found["masks"], found["round"], found["fuzz"]
    rows = [
        [f"{masks['neighbours']} masks on {masks['values']:,} words: {code}", ms(seconds)]
        for code, seconds in masks["seconds"].items()
    ]
    rows += [[what, f"{ratio:.2f}"] for what, ratio, _ in masks["ratios"]]
    rows += [
        [
            f"a round of {whole['clients']} clients with {whole['values']:,} words, {sum(whole['dropouts'])} dropouts",
            f"{whole['seconds']:.0f} s, {whole['peak_gb']:.2f} GB, the sum is {'exact' if whole['exact'] else 'WRONG'}",
        ],
        [f"{fuzz['inputs']:,} mangled messages", f"{fuzz['crashes']} crashes"],
    ]
    return section("Secure sums", f"On {machine('secagg')}.", table(["what", ""], rows))


def mechanisms() -> str:
    found = measured("mechanisms")
    rows = []
    for name, m in found["mechanisms"].items():
        costs = list(m["lost"].values())
        of = costs[0]
        server = " / ".join("no sum" if cost is None else f"{cost['server_seconds']:.2f}" for cost in costs)
        rows.append(
            [
                name,
                f"{of['bytes_up'] / 1e6:.2f} MB",
                f"{of['bytes_down'] / 1e6:.2f} MB",
                f"{of['client_seconds']:.3f}",
                server,
            ]
        )
    vectors = f"{found['clients']} clients with {found['values']:,} values of {found['bits']} bits"
    text = f"{vectors}, on one thread of {machine('mechanisms')}."
    head = [
        "mechanism",
        "up, a client",
        "down, a client",
        "seconds, a client",
        "server's seconds, 0 / 10 / 33 clients lost",
    ]
    return section("Mechanisms of secure aggregation", text, table(head, rows))


def federation() -> str:
    found = measured("federation")
    rows = []
    for nodes, m in found["rounds"].items():
        seconds = (m[name] for name in ("seconds", "bound_seconds", "empty_exchange_seconds", "clear_seconds"))
        rows.append(
            [
                nodes,
                *(f"{s:.2f} s" for s in seconds),
                f"{m['bytes_up_a_node'] / 1e6:.2f} / {m['bytes_down_a_node'] / 1e6:.2f} MB",
            ]
        )
    head = ["nodes", "secure round", "allowed", "an empty exchange", "in the clear", "up / down, a node"]
    gateway, flower = found["gateway"], found["flower"]["3"]
    wire = kept("federation-words")
    speed = [
        [nodes, f"{wire['before']['rounds'][nodes]['seconds']:.1f} s", f"{m['seconds']:.1f} s"]
        for nodes, m in wire["after"]["rounds"].items()
    ]
    over, gowalla = wire["after"]["wire"]["over_percent"], kept("wire")["result"]["wire"]
    values = next(iter(found["rounds"].values()))["values"]
    return section(
        "Federation",
        f"A round over Flower with {values:,} values, all processes on {machine('federation')}.",
        table(head, rows),
        f"A gateway with {gateway['users']:,} users peaks at {gateway['peak_mb']:.0f} MB. Flower's SecAgg+ takes "
        f"{flower['seconds']:.1f} s for {flower['nodes']} nodes with vectors of the same length.",
        "A round of the demo:",
        table(["nodes", "32-bit words", "words as small as the sum needs"], speed),
        f"On the wire are {over['up']:.1f} % more bytes up and {over['down']:.1f} % more bytes down than computed. "
        f"Gowalla's people on three nodes and the sums of `spectral`, counted on the wire for a node: "
        f"{gowalla['up'] / 3e6:.1f} MB up and {gowalla['down'] / 3e6:.1f} MB down, the served model included.",
    )


def nodes() -> str:
    found = measured("scale_nodes")
    rows = [
        [
            count,
            f"{m['users']:,}",
            f"{m['seconds']:.1f} s",
            *(f"{m['cpu_seconds'][party]:.1f}" for party in ("superlink", "app", "nodes")),
            f"{m['cpu_seconds_in_all']:.1f}",
            f"{m['superlink_idle_mb']:.0f} / {m['superlink_peak_mb']:.0f} MB",
            f"{m['superlink_mb_a_node']:.1f} MB",
        ]
        for how in ("processes", "threads")
        for count, m in found[how].items()
    ]
    head = ["nodes", "people", "a round", "SuperLink", "the server's app", "all nodes", "in all"]
    head += ["SuperLink at rest / peak", "more, a node"]
    light, load = next(iter(found["threads"])), kept("scale_nodes")["machine"]["load"]
    busy = found["threads"][light].get("load", load)  # if it was measured at another time
    return section(
        "Cost of a node",
        f"Training rounds of the demo with the defaults, on {machine('scale_nodes')}, load {load:.1f} at the start, "
        f"{busy:.1f} at that of {light} nodes. Four columns are processor seconds of a round. The "
        f"{light} nodes are light: a few processes hold them, with a thread for each, and the server cannot tell.",
        table(head, rows),
        "![Processor seconds of a round and the SuperLink's memory over the number of nodes](../nodes.png)",
    )


def liveness() -> str:
    found = measured("liveness")
    rows = [
        [
            what,
            f"{m['usual']:.1f}",
            f"{m['struck']:.1f}",
            f"{min(m['after']):.1f}–{max(m['after']):.1f}",
            str(m["back"]),
        ]
        for what, m in ((f"the node is {what}", found[what]) for what in ("killed", "hung"))
    ]
    head = [
        "one node of five",
        "usual round, s",
        "the struck round, s",
        "the six after it, s",
        "rounds until it takes part again",
    ]
    return section("Liveness", f"On {machine('liveness')}, beside other work.", table(head, rows))


def starved() -> str:
    found = measured("starved")
    rows = []
    for loops, m in ((name, run) for name, run in found.items() if name.endswith("loops")):
        joined, summed = ("–" if m[key] is None else f"{m[key]:.0f}" for key in ("joined", "summed"))
        rows.append([loops, f"{m['load']:.0f}", joined, summed, str(m["apps"]), f"{max(m['gone'].values()):.0f}"])
    head = [
        "beside it", "load", "all nodes joined, s", "first sum, s", "times that the app was started",
        "all processes gone after SIGTERM, s",
    ]  # fmt: skip
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in found["imports"].items())
    text = f"Three nodes, on {machine('starved')}. CPU-seconds of imports: {parts}."
    return section("Start on a busy machine", text, table(head, rows))


def soak() -> str:
    found = measured("soak")
    law, verdicts, lost, stores = found["law"], found["verdicts"], found["lost"], found["stores"]
    rows = [
        ["strikes", ", ".join(f"{what} {count}" for what, count in sorted(found["strikes"].items()))],
        ["seasons, sums, sums that count", f"{found['seasons']}, {sum(found['sums'].values())}, {found['counted']}"],
        *([f"sums lost because {why}", str(count)] for why, count in lost["known"].items()),
        ["sums lost for other reasons", str(len(lost["unknown"]))],
        [
            "sums that count twice, verdicts that differ, values put back into their range",
            f"{verdicts['twice']}, {verdicts['disagree']}, {found['put_back']}",
        ],
        [
            "degrees and latents that differ from the users' stores",
            f"{law['degrees_differ']}, {law['latents_differ']} of {law['latents']}",
        ],
    ]
    if "stalls" in found:  # since servers are lost with their disks
        stalls, ends = found["stalls"], found["ends"]
        rows += [
            ["sums that lost servers took along; latents of these", f"{found['forgotten']}; {law['latents_lost']}"],
            ["the longest stall, and what the rule allows", f"{stalls['longest']:.0f} s, {stalls['limit']:.0f} s"],
            ["processes that nobody had struck and that ended", f"{len(found['ended_by_themselves'])}"],
            ["until a server's processes were gone", ", ".join(f"{how} {ends[how]:.0f} s" for how in sorted(ends))],
        ]
    rows.append(
        [
            "stores at the end, server and node",
            f"{stores['server_bytes'] / 1e3:.0f} kB, {stores['node_bytes'] / 1e3:.0f} kB",
        ]
    )
    text = f"{found['nodes']} nodes over Flower for {found['seconds'] / 60:.0f} minutes, on {machine('soak')}."
    return section("Soak", text, table(["what", ""], rows))


def year() -> str:
    found = measured("year")
    rows = [
        [
            str(m["month"]),
            str(m["rounds"]),
            str(m["users"]),
            str(m["places"]),
            str(m["changed"] or "–"),
            *(f"{m[name]:.3f}" for name in ("served", "scratch", "popularity")),
            f"{(m['bytes_up'] + m['bytes_down']) / found['nodes'] / 1e6:.1f} MB",
        ]
        for m in found["months"]
    ]
    head = [
        "month",
        "rounds",
        "users",
        "places",
        "users with changes",
        "federation",
        "trained anew",
        "most visited",
        "bytes of a node",
    ]
    text = (
        f"Recall@20 on the next month's visits. From the second month on the federation reaches at least "
        f"{percent(found['least_share'], 1)} of the recall of a model that is trained anew, "
        f"{percent(found['mean_share'], 1)} on average."
    )
    picture = (
        "![Recall over the months: the federation, a model trained anew, and the most visited places](../year.png)"
    )
    return section("A year", text, picture, table(head, rows))


# -------------------------------------------------------------------------------------------------- privacy


def frontier(data: str, method: str, unit: str, epsilon: float) -> list[dict[str, Any]]:
    wanted = {"data": data, "method": method, "unit": unit, "epsilon": epsilon}
    return [row for row in measured("frontier")["rows"] if row.items() >= wanted.items()]


def recall(data: str, method: str, unit: str, epsilon: float) -> float:
    return statistics.fmean(row["recall"] for row in frontier(data, method, unit, epsilon) if "recall" in row)


def privacy() -> str:
    tables = []
    for unit, title in (("interaction", "ε for each interaction (decoys)"), ("user", "ε for each user (noise)")):
        steps = sorted({row["epsilon"] for row in measured("frontier")["rows"] if row["unit"] == unit}, reverse=True)
        rows = []
        for data, name in DATA.items():
            for method in ("spectral", "fedgrec"):
                exact = recall(data, method, "", 0.0)
                rows.append(
                    [
                        f"{name}, `{method}` ({figure(exact)})",
                        *(percent(recall(data, method, unit, e) / exact) for e in steps),
                    ]
                )
        tables.append(table([title, *(f"{step:g}" for step in steps)], rows))
    text = (
        "Recall@20 on test items, protocol `honest`, means of three seeds, as a share of the recall without a promise, "
        "which is in brackets."
    )
    picture = "![Recall against ε, and against what the model tells about people](../privacy-frontier.png)"
    return section("Privacy and recall", text, picture, *tables)


def told() -> str:
    attacks = ("your other items, from the model", "the same for people who were in no sum")
    cases = [("", 0.0), ("interaction", 8.0), ("interaction", 6.0), ("user", 32.0), ("user", 8.0), ("user", 2.0)]
    rows = []
    for data, name in DATA.items():
        for method in ("spectral", "fedgrec"):
            cells = []
            for unit, epsilon in cases:
                found = [
                    row["attacks"]
                    for row in frontier(data, method, unit, epsilon)
                    if attacks[0] in row.get("attacks", {})
                ]
                cells.append(" / ".join(f"{100 * found[0][name][0]:.1f}" for name in attacks) if found else "–")
            rows.append([f"{name}, `{method}`", *cells])
    head = ["", "no promise", "decoys, ε = 8", "decoys, ε = 6", "noise, ε = 32", "noise, ε = 8", "noise, ε = 2"]
    text = (
        "How many of 100 other items of a person the attack on the model names: for people in its sums / for people in "
        "none. First seed."
    )
    return section("What the model tells", text, table(head, rows))


def lies() -> str:
    rows = [
        [data, f"`{run['method']}`", run["lie"], str(run["liars"])]
        + [
            cell
            for way in ("all", "usual")
            for cell in (
                f"{percent(run[way]['exposure'], 1)} ({percent(run[way]['most'], 1)})",
                figure(run[way]["recall"]),
                percent(run[way]["popular"], 1),
            )
        ]
        for data, world in measured("poison").items()
        for run in world["trainings"]
    ]
    half = ["exposed", "Recall@20", "popular"]
    head = ["data", "method", "lie", "liars", *half, *(f"{name}, bound" for name in half)]
    text = (
        "Exposed: the share of honest users to whom the target is recommended, the mean of three targets and seeds and "
        "the highest. Recall is theirs. Popular: the share of their lists that the 20 most popular items hold. Bound: "
        "with [the bound on items' lengths](../security.md#clients-that-lie), in the same training."
    )
    return section("Clients that lie", text, table(head, rows))


def defences() -> str:
    closed = [
        [negatives, *(" / ".join(percent(share, 1) for share in m["closed"][least]) for least in ("2", "3", "5"))]
        for negatives, m in measured("owners")["rounds"].items()
    ]
    names = {"fresh": "drawn anew in every round", "fixed": "drawn once", "common": "the same for everybody"}
    ways = [
        [names[way], figure(m["validation recall@20"]), figure(m["recall@20"]), percent(m["rows of one person"], 1)]
        for way, m in measured("negatives")["ways"].items()
    ]
    return section(
        "Defences",
        "Rows of a first round on Gowalla that fewer than m people touch: of all rows / of rows of people's own items.",
        table(["negatives of a user", "m = 2", "m = 3", "m = 5"], closed),
        "Other negatives, `fedgrec` on Gowalla:",
        table(["negatives", "Recall@20, validation", "Recall@20, test", "rows of one person"], ways),
    )
