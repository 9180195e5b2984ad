"""Prints the top stacks over all ranks, the straggler, and idle time by cause, with DuckDB:

    gpuflame convert traces/ --to parquet -o data --run A
    python duckdb_ranks.py data
"""

import sys

import duckdb

from answers import show

connection = duckdb.connect()
connection.sql(
    f"CREATE VIEW activities AS SELECT * FROM read_parquet('{sys.argv[1]}/**/*.parquet', hive_partitioning = true)"
)


def ask(query):
    relation = connection.execute(query)
    names = [column[0] for column in relation.description or []]
    return [dict(zip(names, row)) for row in relation.fetchall()]


show(ask)
