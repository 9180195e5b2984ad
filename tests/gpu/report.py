"""Writes report.json and report.md from the facts that the kit's steps have written into a folder. The script runs
after each step, so that an aborted run leaves a report about the finished steps."""

import json
import os
import statistics
import sys

KIT = os.path.dirname(os.path.abspath(__file__))
NOT_MEASURED = "**Nothing here was measured on hardware**: "
SIMULATED = "the simulated CUDA stack only tests the kit itself."


def lines_of(path):
    """Reads a file of JSON lines. If a line is truncated because its step was stopped, the report shows the truncated
    line."""
    try:
        with open(path, errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    yield {"unreadable": line.strip()[:400]}
    except OSError:
        return


def tail(path, count=12):
    try:
        with open(path, errors="replace") as file:
            return [line.rstrip()[:400] for line in file.readlines()[-count:]]
    except OSError:
        return []


def steps_of(folder):
    order = {name[:-3].split("-", 1)[1]: name for name in os.listdir(os.path.join(KIT, "steps"))}
    names = os.listdir(os.path.join(folder, "steps")) if os.path.isdir(os.path.join(folder, "steps")) else []
    for name in sorted(names, key=lambda name: order.get(name, "99-" + name)):
        inside = os.path.join(folder, "steps", name)
        outcome = next(lines_of(os.path.join(inside, "outcome.json")), None)
        if outcome is None:
            continue
        facts = list(lines_of(os.path.join(inside, "facts.jsonl")))
        yield {
            **outcome,
            "checks": [fact for fact in facts if "check" in fact],
            "facts": [fact for fact in facts if "fact" in fact],
            "missing": [fact["missing"] for fact in facts if "missing" in fact],
            "costs": [fact for fact in facts if "cost" in fact],
            "answers": [fact for fact in facts if "answer" in fact],
            "unreadable": [fact["unreadable"] for fact in facts if "unreadable" in fact],
            "log": tail(os.path.join(inside, "log")),
        }


def machine(steps):
    for step in steps:
        if step["name"] == "machine":
            return {fact["fact"]: fact["value"] for fact in step["facts"]}
    return {}


def cell(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")[:300]


def cost_tables(steps):
    """Returns a table per program. Its columns are the median, minimum and maximum, and the ratio to the run without a
    tool."""
    programs = {}
    for step in steps:
        for row in step["costs"]:
            values = [value for value in row["values"] if isinstance(value, (int, float))]
            programs.setdefault((row["cost"], row["unit"]), {}).setdefault(row["with"], []).extend(values)
    for (program, unit), rows in programs.items():
        yield f"\n### {program}\n"
        yield f"| with | median {unit} | least | most | runs | to nothing |"
        yield "|---|---|---|---|---|---|"
        plain = statistics.median(rows["nothing"]) if rows.get("nothing") else None
        for tool, values in rows.items():
            if not values:
                yield f"| {tool} | no value |  |  | 0 |  |"
                continue
            median = statistics.median(values)
            ratio = f"{median / plain:.2f}" if plain else ""
            yield f"| {tool} | {median:,.1f} | {min(values):,.1f} | {max(values):,.1f} | {len(values)} | {ratio} |"


def markdown(report):
    about = report["machine"]
    yield "# What was seen" + ("" if report["simulated"] else " on a GPU")
    yield ""
    if report["simulated"]:
        yield NOT_MEASURED + SIMULATED
    elif not report["measured_on_hardware"]:
        yield f"{NOT_MEASURED}no GPU could be used: {about.get('gpu', 'the step machine did not end')}."
    else:
        yield f"{about['gpu']}, driver {about.get('driver') or 'unknown'}, {report['date']}."
    yield "\n## Steps\n\n| step | outcome | checks | seconds |\n|---|---|---|---|"
    for step in report["steps"]:
        held = sum(check["ok"] for check in step["checks"])
        yield f"| {step['name']} | {step['status']} | {held} of {len(step['checks'])} hold | {step['seconds']} |"
    failed = [(step["name"], check) for step in report["steps"] for check in step["checks"] if not check["ok"]]
    if failed:
        yield "\n## What does not hold\n\n| step | check | expected | found |\n|---|---|---|---|"
        for name, check in failed:
            yield f"| {name} | {cell(check['check'])} | {cell(check['expected'])} | {cell(check['found'])} |"
    absent = [(step["name"], what) for step in report["steps"] for what in step["missing"] + step["unreadable"]]
    if absent:
        yield "\n## What was missing\n"
        yield from (f"- {name}: {cell(what)}" for name, what in absent)
    tables = list(cost_tables(report["steps"]))
    if tables:
        yield "\n## What it costs\n"
        if report["simulated"]:
            yield NOT_MEASURED + SIMULATED
        yield from tables
    answers = sorted((row for step in report["steps"] for row in step["answers"]), key=lambda row: row["answer"])
    if answers:
        yield "\n## The questions\n\n| | asked | how | observed |\n|---|---|---|---|"
        for row in answers:
            yield f"| {row['answer']} | {cell(row['asked'])} | {cell(row['how'])} | {cell(row['observed'])} |"
    yield "\n## The machine\n\n| | |\n|---|---|"
    yield from (f"| {cell(name)} | {cell(value)} |" for name, value in about.items())
    yield "\n## Notes\n"
    for step in report["steps"]:
        if step["name"] != "machine":
            yield from (f"- {step['name']}: {cell(fact['fact'])}: {cell(fact['value'])}" for fact in step["facts"] if fact["fact"] != "built")
    for step in report["steps"]:
        if step["status"] not in ("done", "skipped", "running"):
            yield f"\n### The end of {step['name']}'s log\n\n```"
            yield from step["log"]
            yield "```"


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def main(folder):
    steps = list(steps_of(folder))
    simulated = any(step["simulated"] for step in steps)
    date = "".join(tail(os.path.join(folder, "date")))
    about = machine(steps)
    # Name of the GPU from nvidia-smi or, if nvidia-smi is missing, from the driver.
    gpu = next((about[name] for name in ("gpu", "GPU 0 by libcuda") if about.get(name)), "none: no step found one")
    if os.path.exists(os.path.join(folder, "no-gpu")):
        gpu = "none: " + "".join(tail(os.path.join(folder, "no-gpu")))
    about["gpu"] = gpu
    report = {"kit": 1, "date": date, "simulated": simulated,
              "measured_on_hardware": not simulated and not gpu.startswith("none"), "machine": about, "steps": steps}
    write(os.path.join(folder, "report.json"), json.dumps(report, indent=1) + "\n")
    write(os.path.join(folder, "report.md"), "\n".join(markdown(report)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
