"""Prints the top stacks over all ranks, the straggler, and idle time by cause, with Spark:

    gpuflame convert traces/ --to parquet -o data --run A
    spark-submit spark_ranks.py data
"""

import sys

from pyspark.sql import SparkSession

from answers import show

spark = SparkSession.builder.appName("gpuflame").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.read.parquet(sys.argv[1]).createOrReplaceTempView("activities")


def ask(query):
    return [row.asDict() for row in spark.sql(query).collect()]


show(ask)
spark.stop()
