//! Tables as Parquet files.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type, TypePtr};

use super::table::{Column, Values};

/// Writes a table as one row group.
///
/// # Errors
///
/// If the file cannot be written.
pub(super) fn write(path: &Path, columns: &[Column]) -> io::Result<()> {
    write_table(path, columns).map_err(|error| io::Error::other(error.to_string()))
}

fn write_table(path: &Path, columns: &[Column]) -> Result<(), ParquetError> {
    let fields = columns.iter().map(field).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("samples")
        .with_fields(fields)
        .build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let file = File::create(path)?;
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut place) = group.next_column()? else {
            break;
        };
        match &column.values {
            Values::Text(values) => {
                let values: Vec<ByteArray> =
                    values.iter().map(|text| text.as_str().into()).collect();
                place
                    .typed::<ByteArrayType>()
                    .write_batch(&values, None, None)?;
            }
            Values::Whole(values) => {
                // The type says that the sign bit is none.
                let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
                place
                    .typed::<Int64Type>()
                    .write_batch(&values, None, None)?;
            }
            Values::Number(values) => {
                let present: Vec<f64> = values.iter().copied().flatten().collect();
                let levels: Vec<i16> = values.iter().map(|it| i16::from(it.is_some())).collect();
                place
                    .typed::<DoubleType>()
                    .write_batch(&present, Some(&levels), None)?;
            }
        }
        place.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// The type of a column.
fn field(column: &Column) -> Result<TypePtr, ParquetError> {
    let (physical, repetition, logical) = match column.values {
        Values::Text(_) => (
            Physical::BYTE_ARRAY,
            Repetition::REQUIRED,
            Some(LogicalType::String),
        ),
        Values::Whole(_) => (
            Physical::INT64,
            Repetition::REQUIRED,
            Some(LogicalType::integer(64, false)),
        ),
        Values::Number(_) => (Physical::DOUBLE, Repetition::OPTIONAL, None),
    };
    let field = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(field))
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let column = |name: &str, values| Column {
            name: name.to_owned(),
            values,
        };
        let columns = [
            column("link", Values::Text(vec!["wifi".into(), "lte, bad".into()])),
            column("seed", Values::Whole(vec![7, u64::MAX])),
            column("total_s", Values::Number(vec![None, Some(1.25)])),
        ];
        write(&path, &columns).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader
            .get_row_iter(None)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].get_string(0).unwrap(), "lte, bad");
        assert_eq!(rows[1].get_ulong(1).unwrap(), u64::MAX);
        assert!(rows[0].get_double(2).is_err());
        assert!((rows[1].get_double(2).unwrap() - 1.25).abs() < 1e-12);
    }
}
