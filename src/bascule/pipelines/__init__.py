"""Pipelines on Spark: streams into tables and back, checked and queried. One file of configuration each."""
