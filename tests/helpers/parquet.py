"""Small question files in the layout of the ARPO authors' train_10k.parquet."""

import pyarrow as pa
import pyarrow.parquet as pq


def parquet(path, rows) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def row(question: str = "What is 1 + 1?", answer: str = "2") -> dict:
    return {
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"ground_truth": answer},
        "extra_info": {"index": 0},
    }
