"""Spark on streams beside Spark on Parquet files and on Kafka."""
