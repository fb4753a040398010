//! Reads the rows of a Parquet file, by the row interface of the `parquet` crate.

use super::{Columns, DataRow, RowPlace};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Number, Value};
use std::fs::File;
use std::sync::Arc;

/// Reads all rows.
///
/// # Errors
/// The file is not Parquet, or is compressed in a way that is not supported.
pub(super) fn read(name: &str, file: File) -> Result<Vec<DataRow>, String> {
    let failed = |error: parquet::errors::ParquetError| {
        let text = error.to_string();
        if text.contains("Disabled feature") {
            return format!(
                "{name} is compressed in a form that is not supported: write it with snappy, zstd or none"
            );
        }
        format!("failed to read {name} as Parquet: {text}")
    };
    let shown: Arc<str> = name.into();
    let reader = SerializedFileReader::new(file).map_err(failed)?;
    let rows = reader.get_row_iter(None).map_err(failed)?;
    let mut read = Vec::new();
    for (number, row) in (1..).zip(rows) {
        let columns = columns(row.map_err(failed)?.into_columns());
        read.push(DataRow { place: RowPlace::row(shown.clone(), number), columns });
    }
    if read.is_empty() { Err(format!("{name} has no rows")) } else { Ok(read) }
}

fn columns(fields: Vec<(String, Field)>) -> Columns {
    fields.into_iter().map(|(name, field)| (name, value(field))).collect()
}

/// A value as JSON. Bytes that are not text and non-finite numbers are null; times and decimals are
/// texts, which lose nothing.
fn value(field: Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(value) => value.into(),
        Field::Short(value) => value.into(),
        Field::Int(value) => value.into(),
        Field::Long(value) => value.into(),
        Field::UByte(value) => value.into(),
        Field::UShort(value) => value.into(),
        Field::UInt(value) => value.into(),
        Field::ULong(value) => value.into(),
        // The shortest decimal of the narrow number, not the digits of a wider one.
        Field::Float16(value) => number(&value.to_string()),
        Field::Float(value) => number(&value.to_string()),
        Field::Double(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => bytes.as_utf8().map_or(Value::Null, Value::from),
        Field::Group(row) => Value::Object(columns(row.into_columns())),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        Field::MapInternal(map) => {
            let entry = |(key, field): &(Field, Field)| {
                let key = if let Field::Str(key) = key { key.clone() } else { key.to_string() };
                (key, value(field.clone()))
            };
            Value::Object(map.entries().iter().map(entry).collect::<Map<_, _>>())
        }
        other @ (Field::Decimal(_)
        | Field::Date(_)
        | Field::TimeMillis(_)
        | Field::TimeMicros(_)
        | Field::TimestampMillis(_)
        | Field::TimestampMicros(_)) => other.to_string().into(),
    }
}

fn number(decimal: &str) -> Value {
    let finite = decimal.parse().ok().and_then(Number::from_f64);
    finite.map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use crate::rows;
    use serde_json::json;

    fn file(codec: &str) -> String {
        format!("{}/tests/dataset/{codec}.parquet", env!("CARGO_MANIFEST_DIR"))
    }

    /// `tests/dataset/parquet.py` writes these rows with pyarrow.
    #[test]
    fn values_of_every_type_become_json() {
        for codec in ["snappy", "zstd"] {
            let name = file(codec);
            let rows = rows::read(&name).unwrap();
            assert_eq!(rows[1].place.to_string(), format!("{name}, row 2"));
            let values: Vec<_> = rows.into_iter().map(|row| json!(row.columns)).collect();
            assert_eq!(
                values,
                [
                    json!({
                        "question": "What is 1 + 1?", "answer": 2, "weight": 0.1, "options": ["two", "three"],
                        "meta": {"source": "book", "page": 7}, "chat": [{"role": "user", "content": "1 + 1"}],
                        "day": "2026-01-31", "at": "2026-01-31 08:30:00.000 +00:00", "price": "12.50", "raw": null,
                        "hint": null,
                    }),
                    json!({
                        "question": "Wieviel ist 2⁶⁰?", "answer": 1_152_921_504_606_846_976_i64, "weight": -1.5,
                        "options": [], "meta": {"source": "—", "page": null},
                        "chat": [{"role": "system", "content": "s"}, {"role": "user", "content": "2^60"}],
                        "day": "1969-12-31", "at": "2026-12-31 23:59:59.000 +00:00", "price": "-0.01", "raw": "text",
                        "hint": "a power",
                    }),
                ],
                "{codec}"
            );
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_refused_with_the_reason() {
        let error = rows::read(&file("gzip")).unwrap_err();
        assert!(error.contains("write it with snappy, zstd or none"), "{error}");
        let mut broken = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
        std::io::Write::write_all(&mut broken, b"{}").unwrap();
        let error = rows::read(&broken.path().display().to_string()).unwrap_err();
        assert!(error.starts_with("failed to read ") && error.contains(" as Parquet: "), "{error}");
    }
}
