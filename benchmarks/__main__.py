"""`python -m benchmarks [rounds|evaluation|memory ...] [--quick]`: measure, print a table, keep results."""

import argparse
from typing import Any

from benchmarks import common, evaluation, memory, rounds

BUSY = 0.5  # load average
NAMES = ("rounds", "evaluation", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure; results stay in benchmarks/results."
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"what to measure: {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="one repetition of each, and nothing is kept")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    about = common.about()  # before we load the machine ourselves
    if about["machine"]["load"] > BUSY:
        print(f"note: this machine is busy (load {about['machine']['load']}): wait, for ratios that count")
    for name in options.names or NAMES:
        result, lines = RUN[name](options.quick)
        where = f"{about['machine']['cpu']}, {about['machine']['cores']} cores"
        print(f"\n{name} ({where})", *lines, sep="\n")
        if not options.quick:
            print(f"kept in {common.write(name, result, about)}")


def run_rounds(quick: bool) -> tuple[dict[str, Any], list[str]]:
    result = rounds.bench(1 if quick else 5)
    lines = [f"data: {result['data']}", f"{'round':<24}{'code':<12}{'ms':>9}{'times ours':>12}{'asked':>8}"]
    for name, measured in result["rounds"].items():
        for code, seconds in measured["seconds"].items():
            ratio, asked = measured["ratio"].get(code), measured["required_ratio"].get(code)
            lines.append(f"{name:<24}{code:<12}{1e3 * seconds:>9.1f}{_number(ratio):>12}{_number(asked):>8}")
    return result, lines


def run_evaluation(quick: bool) -> tuple[dict[str, Any], list[str]]:
    result = evaluation.bench(1 if quick else 3)
    return result, [
        f"{key:<24}{value if isinstance(value, str) else _number(value):>12}" for key, value in result.items()
    ]


def run_memory(quick: bool) -> tuple[dict[str, Any], list[str]]:
    result = memory.bench(2 if quick else memory.ROUNDS)
    lines = [f"{'until the end of':<24}{'seconds':>12}{'peak GB':>12}"]
    lines += [f"{name:<24}{p['seconds']:>12.1f}{p['peak_gb']:>12.2f}" for name, p in result["phases"].items()]
    return result, [*lines, f"{'asked: less than':<36}{result['limit_gb']:>12.2f}"]


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"


RUN = {"rounds": run_rounds, "evaluation": run_evaluation, "memory": run_memory}

if __name__ == "__main__":
    main()
