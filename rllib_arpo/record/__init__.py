"""Writes and reads the record of a run: parquet files with a row for every turn of the questions' trees."""
