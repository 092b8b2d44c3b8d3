"""The record of a run: every turn of the questions' trees as a row of parquet files (docs/watch.md)."""
