"""Prints the results of the queries in queries.sql as JSON, for both examples."""

import json
from pathlib import Path

QUERIES = [
    query.strip()
    for query in "\n".join(
        line for line in (Path(__file__).parent / "queries.sql").read_text().splitlines() if not line.startswith("--")
    ).split(";")
    if query.strip()
]


def straggler(ranks):
    """Returns the straggler. The rank that arrives last at a collective waits for no other rank, so it is the one with
    the least communication. If some ranks do not communicate, the straggler is the rank with the most work."""
    if all(row["communication_ns"] > 0 for row in ranks):
        return min(ranks, key=lambda row: (row["communication_ns"], row["rank"]))["rank"]
    return min(ranks, key=lambda row: (-row["work_ns"], row["rank"]))["rank"]


def show(ask):
    """Prints the answers. `ask` runs a query and returns its rows as dictionaries."""
    for query in QUERIES:
        ask(query)
    ranks = ask("SELECT * FROM rank_work JOIN rank_busy USING (rank) ORDER BY rank")
    answers = {
        "ranks": ranks,
        "straggler": straggler(ranks),
        "stacks": ask("SELECT * FROM top_stacks ORDER BY total_ns DESC, stack LIMIT 10"),
        "idle": ask("SELECT * FROM idle_causes ORDER BY total_ns DESC, cause"),
    }
    print(json.dumps(answers, indent=1))
