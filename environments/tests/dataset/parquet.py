"""Writes the Parquet files of this folder: `python parquet.py`, with pyarrow."""

import datetime
import decimal

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = [
    {
        "question": "What is 1 + 1?",
        "answer": 2,
        "weight": 0.1,
        "options": ["two", "three"],
        "meta": {"source": "book", "page": 7},
        "chat": [{"role": "user", "content": "1 + 1"}],
        "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 8, 30),
        "price": decimal.Decimal("12.50"),
        "raw": b"\xff\x00",
        "hint": None,
    },
    {
        "question": "Wieviel ist 2⁶⁰?",
        "answer": 2**60,
        "weight": -1.5,
        "options": [],
        "meta": {"source": "—", "page": None},
        "chat": [{"role": "system", "content": "s"}, {"role": "user", "content": "2^60"}],
        "day": datetime.date(1969, 12, 31),
        "at": datetime.datetime(2026, 12, 31, 23, 59, 59),
        "price": decimal.Decimal("-0.01"),
        "raw": b"text",
        "hint": "a power",
    },
]
SCHEMA = pa.schema([
    ("question", pa.string()),
    ("answer", pa.int64()),
    ("weight", pa.float32()),
    ("options", pa.list_(pa.string())),
    ("meta", pa.struct([("source", pa.string()), ("page", pa.int32())])),
    ("chat", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ("day", pa.date32()),
    ("at", pa.timestamp("ms")),
    ("price", pa.decimal128(9, 2)),
    ("raw", pa.binary()),
    ("hint", pa.string()),
])
table = pa.Table.from_pylist(ROWS, schema=SCHEMA)
for codec in ["snappy", "zstd", "gzip"]:
    pq.write_table(table, f"{codec}.parquet", compression=codec)
