"""`python -m benchmarks [name ...] [--quick]`: measure, print tables, keep results; `tables` writes pages of them."""

import argparse
from typing import Any

from benchmarks import common
from fedgrec.kernels.devices import gpu_is_there

TABLES, FIELD = "tables", "field"
BUSY = 0.5  # load average
NAMES = (
    "reading", "rounds", "evaluation", "recommend", "serving", "memory", "scale", "lightgcn", "federated",
    "mechanisms", "order", "secagg",
    "federation", "scale_nodes", "liveness", "starved", "soak", "year", "batches", "frontier", "poison", "owners",
    "negatives", "rivals", "gpu",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure; results stay in benchmarks/results."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="name",
        help=f"what to measure: {', '.join(NAMES)}; default: all; or {TABLES} or {FIELD} alone",
    )
    parser.add_argument("--quick", action="store_true", help="one repetition of each, and nothing is kept")
    options, more = parser.parse_known_args()
    if options.names == [FIELD]:
        from benchmarks import field

        field.main(more, options.quick)
        return
    if more:
        parser.error(f"{' '.join(more)}: unknown")
    if options.names == [TABLES]:
        from benchmarks import tables

        tables.write()
        return
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    about = common.about()  # now, before the benchmarks load the machine
    if about["machine"]["load"] > BUSY:
        print(f"note: this machine is busy (load {about['machine']['load']}): wait, for ratios that count")
    for name in options.names or [name for name in NAMES if name not in ("gpu", "rivals") or gpu_is_there()]:
        result, lines = RUN[name](options.quick)
        where = f"{about['machine']['cpu']}, {about['machine']['cores']} cores"
        print(f"\n{name} ({where})", *lines, sep="\n")
        if not options.quick:
            print(f"kept in {common.write(name, result, about)}")


def run_reading(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import reading

    result = reading.bench(1 if quick else 5)
    lines = []
    for kind in reading.LINES:
        found = result[kind]
        lines.append(f"ids as {kind}, {found['megabytes']:.0f} MB; over pandas: {_number(found['ratio'])}")
        lines += [f"  {way:<26}{one['seconds']:>7.2f} s{one['gb']:>7.2f} GB" for way, one in found["ways"].items()]
    return result, lines


def run_rounds(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import rounds

    result = rounds.bench(1 if quick else 5)
    lines = [f"data: {result['data']}", f"{'round':<24}{'code':<12}{'ms':>9}{'times ours':>12}{'asked':>8}"]
    for name, measured in result["rounds"].items():
        for code, seconds in measured["seconds"].items():
            ratio, asked = measured["ratio"].get(code), measured["required_ratio"].get(code)
            lines.append(f"{name:<24}{code:<12}{1e3 * seconds:>9.1f}{_number(ratio):>12}{_number(asked):>8}")
    lines += [f"{'loss ' + name:<36}{1e3 * seconds:>9.1f}" for name, seconds in result["losses"]["seconds"].items()]
    losses = result["losses"]
    return result, [
        *lines,
        f"softmax over bpr: {losses['ratio']:.2f}, at most 1.6 is asked",
        f"words in public steps over 32 bits: {losses['words_ratio']:.2f}, at most 1.3 is asked",
    ]


def run_evaluation(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import evaluation

    result = evaluation.bench(1 if quick else 3)
    return result, [
        f"{key:<24}{value if isinstance(value, str) else _number(value):>12}" for key, value in result.items()
    ]


def run_recommend(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import recommend

    result = recommend.bench(1 if quick else 3)
    lines = [f"data: {result['data']}, {result['users']:,} users, the best {result['N']}"]
    lines += [f"{code:<40}{seconds:>8.2f} s" for code, seconds in result["seconds"].items()]
    lines += [f"{'recommend over ' + name:<40}{ratio:>8.2f}" for name, ratio in result["ratio"].items()]
    return result, [*lines, *([result["skipped"]] if result["skipped"] else [])]


def run_serving(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import serving

    result = serving.bench(2_000 if quick else 100_000)
    memory = " ".join(f"{mb:.0f}" for mb in result["memory_mb"])
    return result, [*_flat(result), f"memory on the way, in MB: {memory}"]


def run_lightgcn(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import lightgcn

    result = lightgcn.bench(1 if quick else 3)
    lines = [f"data: {result['data']}, {result['batches']} batches of {result['batch']}, {result['layers']} layers"]
    lines += [f"{code:<40}{seconds:>8.2f} s" for code, seconds in result["seconds"].items()]
    return result, [
        *lines,
        f"{'the best of them, times ours':<40}{result['ratio']:>8.2f}   asked: {result['required_ratio']:.1f}",
    ]


def run_memory(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import memory

    result = memory.bench(2 if quick else memory.ROUNDS)
    lines = [f"{'until the end of':<24}{'seconds':>12}{'peak GB':>12}"]
    lines += [f"{name:<24}{p['seconds']:>12.1f}{p['peak_gb']:>12.2f}" for name, p in result["phases"].items()]
    return result, [*lines, f"{'asked: less than':<36}{result['limit_gb']:>12.2f}"]


def run_scale(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import scale

    result = scale.bench(scale.SIZES[:2] if quick else scale.SIZES)
    lines = [f"{'users':>10}{'round ms':>12}{'peak GB':>12}{'all s':>12}"]
    for users, m in result["users"].items():
        seconds = sum(phase["seconds"] for phase in m["phases"].values())
        lines.append(f"{int(users):>10,}{m['round_ms']:>12.1f}{m['peak_gb']:>12.2f}{seconds:>12.1f}")
    lines.append(f"a round with the most users, times the fewest: {result['round_ratio']:.2f}   asked: 1.2 at most")
    return result, [*lines, f"asked: at most {result['limit_gb']:.0f} GB"]


def run_federated(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import federated

    result = federated.bench(1 if quick else 5)
    return result, _flat(result)


def _flat(result: dict[str, Any], before: str = "") -> list[str]:
    """Numbers and words of a nested result, one per line."""
    lines = []
    for key, value in result.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{before}{key}, ")
        elif isinstance(value, float):
            lines.append(f"{before + str(key):<64}{value:>12.4f}")
        elif isinstance(value, str | int):
            lines.append(f"{before + str(key):<64}{value!s:>12}")
    return lines


def run_mechanisms(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import mechanisms

    result = mechanisms.bench(80, 2_000, 1) if quick else mechanisms.bench()
    lines = [
        f"{result['clients']} clients, {result['values']:,} values",
        f"{'mechanism':<26}{'lost':>5}{'up KB':>10}{'down KB':>10}{'client s':>10}{'server s':>10}",
    ]
    for name, measured in result["mechanisms"].items():
        for lost, cost in measured["lost"].items():
            numbers = (
                f"{cost['bytes_up'] / 1e3:>10.0f}{cost['bytes_down'] / 1e3:>10.0f}"
                f"{cost['client_seconds']:>10.3f}{cost['server_seconds']:>10.3f}"
                if cost
                else f"{'no sum':>10}"
            )
            lines.append(f"{name:<26}{lost:>5}{numbers}")
    return result, lines


def run_secagg(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import secagg

    result = secagg.bench(quick)
    masks, whole, fuzz = result["masks"], result["round"], result["fuzz"]
    lines = [f"{masks['neighbours']} masks on {masks['values']:,} words"]
    lines += [f"{code:<52}{1e3 * seconds:>8.1f} ms" for code, seconds in masks["seconds"].items()]
    lines += [f"{code:<52}{_number(ratio):>8}   asked: {asked}" for code, ratio, asked in masks["ratios"]]
    lines += [
        f"a round of {whole['clients']} clients, {whole['values']:,} words: {whole['seconds']:.0f} s, "
        f"exact: {'yes' if whole['exact'] else 'NO'}, all parties' memory {whole['peak_gb']:.2f} GB (asked: under 1)",
        f"{fuzz['inputs']:,} mangled messages: {fuzz['crashes']} crashes, {fuzz['taken']:,} taken as valid",
    ]
    return result, lines


def run_federation(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import federation, wire

    result = federation.bench(quick) | {"wire": wire.measure(4 if quick else 40)}
    heads = ("round s", "bound s", "empty s", "clear s", "up MB", "down MB", "SecAgg+ s")
    lines = [f"{'nodes':>5}" + "".join(f"{head:>10}" for head in heads)]
    for nodes, m in result["rounds"].items():
        numbers = [m[f"{name}seconds"] for name in ("", "bound_", "empty_exchange_", "clear_")]
        numbers += [m["bytes_up_a_node"] / 1e6, m["bytes_down_a_node"] / 1e6]
        numbers.append(result["flower"].get(nodes, {}).get("seconds"))
        lines.append(f"{nodes:>5}" + "".join(f"{_number(number):>10}" for number in numbers))
    g = result["gateway"]
    lines.append(f"a gateway with {g['users']:,} users: {g['peak_mb']:.0f} MB (asked: under {g['limit_mb']:.0f})")
    over = result["wire"]["over_percent"]
    lines.append(
        f"on the wire {over['up']:.1f} % more up and {over['down']:.1f} % more down (asked: 3), looks for work apart"
    )
    return result, lines


def run_scale_nodes(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import scale_nodes

    result = scale_nodes.bench(quick)
    return result, scale_nodes.summary(result)


def run_liveness(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import liveness

    result = liveness.bench(quick)
    return result, _flat(result)


def run_starved(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import starved

    result = starved.bench(quick)
    return result, _flat(result)


def run_soak(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import soak

    result = soak.bench(quick)
    return result, _flat(result)


def run_year(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import year

    result = year.bench(quick)
    return result, year.summary(result)


def run_batches(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import batches

    result = batches.bench(quick)
    return result, batches.summary(result)


def run_frontier(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import frontier

    result = frontier.bench(quick)
    return result, frontier.table(result["rows"])


def run_rivals(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import rivals

    result = rivals.bench(quick)
    return result, rivals.lines(result)


def run_poison(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import poison

    result = poison.bench(quick)
    return result, poison.summary(result)


def run_owners(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import owners

    result = owners.bench(quick)
    return result, owners.summary(result)


def run_negatives(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import negatives

    result = negatives.bench(quick)
    return result, negatives.summary(result)


def run_order(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import order

    result = order.bench(1 if quick else 5)
    return result, order.summary(result)


def run_gpu(quick: bool) -> tuple[dict[str, Any], list[str]]:
    from benchmarks import gpu

    result = gpu.bench(1 if quick else 5)
    lines = [f"{result['gpu']}, data: {result['data']}", f"{'round':<10}{'ms':>9}{'asked':>8}{'floor':>8}{'loop':>10}"]
    for name, m in result["rounds"].items():
        asked = result["limit_ms"][name]
        lines.append(f"{name:<10}{m['ms']:>9.3f}{asked:>8.2f}{m['floor_ms']:>8.3f}{m['loop_ms']:>10.1f}")
    lines.append(f"{'compared methods':<24}{'ms':>9}")
    lines += [f"{name:<24}{m['ms']:>9.2f}" for name, m in result["compared"].items()]
    lines.append(f"{'not federated':<24}{'s an epoch':>12}")
    return result, lines + [f"{name:<24}{seconds:>12.3f}" for name, seconds in result["epoch_seconds"].items()]


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"


RUN = {
    "reading": run_reading,
    "rounds": run_rounds,
    "evaluation": run_evaluation,
    "recommend": run_recommend,
    "serving": run_serving,
    "lightgcn": run_lightgcn,
    "memory": run_memory,
    "scale": run_scale,
    "federated": run_federated,
    "mechanisms": run_mechanisms,
    "order": run_order,
    "secagg": run_secagg,
    "federation": run_federation,
    "scale_nodes": run_scale_nodes,
    "liveness": run_liveness,
    "starved": run_starved,
    "soak": run_soak,
    "year": run_year,
    "batches": run_batches,
    "frontier": run_frontier,
    "poison": run_poison,
    "owners": run_owners,
    "negatives": run_negatives,
    "rivals": run_rivals,
    "gpu": run_gpu,
}

if __name__ == "__main__":
    main()
