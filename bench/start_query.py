"""The job of ``bench/start.py`` in Structured Streaming: rows counted by user and minute."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("start").getOrCreate()
rows = spark.readStream.schema("id LONG, user STRING, at TIMESTAMP").json("in")
counted = (
    rows.withWatermark("at", "5 seconds")
    .groupBy("user", F.window("at", "1 minute").alias("window"))
    .agg(F.count("*").alias("n"))
    .selectExpr("user", "date_format(window.start, 'yyyy-MM-dd HH:mm') AS minute", "n")
)
writer = counted.writeStream.format("json").outputMode("append").option("checkpointLocation", "state")
writer.trigger(availableNow=True).start("out").awaitTermination()
spark.stop()
