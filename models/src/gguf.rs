//! Reads GGUF files (version 2 and 3, little-endian): metadata, tensor list, tensor data.
//!
//! A truncated or hostile file is a [`ModelError::Damaged`], never a panic: every count is checked against the
//! bytes that are left before anything is allocated for it, every tensor against the end of the file.
//! Layout: github.com/ggml-org/ggml, docs/gguf.md.

use crate::bounded_file::BoundedFile;
use crate::error::ModelError;
use crate::tensor_type::TensorType;
use minds_core::tensor::Tensor;
use std::collections::HashMap;
use std::path::Path;

/// Most headers are shorter: SmolLM2's takes 1.8 MB.
const USUAL_HEADER: u64 = 8 << 20;
/// The rest is read only for a header that does not end within the first part.
const MAX_HEADER: u64 = 256 << 20;
const DEFAULT_ALIGNMENT: u64 = 32;

/// An open GGUF file.
#[derive(Debug)]
pub(crate) struct GgufFile {
    bytes: BoundedFile,
    header: GgufHeader,
}

#[derive(Debug)]
struct GgufHeader {
    metadata: HashMap<String, GgufValue>,
    tensors: HashMap<String, GgufTensor>,
    len: u64,
}

/// A metadata value. Numbers keep their sign and are widened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GgufValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Vec<GgufValue>),
}

/// Location of a tensor. `shape` is in row-major order: outermost first, the reverse of the order in the file.
#[derive(Clone, Debug)]
pub(crate) struct GgufTensor {
    pub(crate) shape: Vec<usize>,
    kind: TensorType,
    offset: u64,
    len: u64,
}

impl GgufFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let bytes = BoundedFile::open(path)?;
        let usual = bytes.len().min(USUAL_HEADER);
        match Self::parse(path, bytes.len(), &bytes.read(0, usual, "the header")?) {
            Err(_) if usual < bytes.len() => {
                let longest = bytes.len().min(MAX_HEADER);
                Self::parse(path, bytes.len(), &bytes.read(0, longest, "the header")?)
            }
            parsed => parsed,
        }
        .map(|header| Self { bytes, header })
    }

    fn parse(path: &Path, file_len: u64, header: &[u8]) -> Result<GgufHeader, ModelError> {
        let mut cursor = GgufCursor { path, rest: header };
        if cursor.take(4, "the magic")? != b"GGUF" {
            return Err(ModelError::damaged(path, "it does not begin with `GGUF`"));
        }
        let version = cursor.u32("the version")?;
        if version != 2 && version != 3 {
            return Err(ModelError::unsupported(
                path,
                format!("it is GGUF version {version}; 2 and 3 are read"),
            ));
        }
        let tensor_count = cursor.u64("the tensor count")?;
        let metadata_count = cursor.u64("the metadata count")?;
        // A key takes at least 8 + 4 + 1 bytes, a tensor at least 8 + 4 + 4 + 8.
        cursor.room_for(metadata_count, 13, "metadata")?;
        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = cursor.string("a metadata key")?;
            let kind = cursor.u32("a metadata type")?;
            let value = cursor.value(kind, &key, 0)?;
            metadata.insert(key, value);
        }
        cursor.room_for(tensor_count, 24, "tensors")?;
        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let (name, tensor) = cursor.tensor()?;
            tensors.insert(name, tensor);
        }
        let alignment = match metadata.get("general.alignment") {
            Some(GgufValue::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 20 => *n,
            None => DEFAULT_ALIGNMENT,
            Some(other) => {
                return Err(ModelError::damaged(path, format!("general.alignment is {other:?}")));
            }
        };
        let header_len = (header.len() - cursor.rest.len()) as u64;
        let data = header_len.next_multiple_of(alignment);
        for (name, tensor) in &mut tensors {
            let end = data.checked_add(tensor.offset).and_then(|start| {
                tensor.offset = start;
                start.checked_add(tensor.len)
            });
            if end.is_none_or(|end| end > file_len) {
                let reason = format!(
                    "tensor `{name}` should be {} bytes at {}, the file has {} bytes",
                    tensor.len, tensor.offset, file_len
                );
                return Err(ModelError::damaged(path, reason));
            }
        }
        Ok(GgufHeader { metadata, tensors, len: header_len })
    }

    pub(crate) fn bytes(&self) -> &BoundedFile {
        &self.bytes
    }

    pub(crate) fn header_len(&self) -> u64 {
        self.header.len
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.header.tensors.get(name)
    }

    /// The tensor's numbers in row-major order.
    pub(crate) fn data(&self, name: &str, tensor: &GgufTensor) -> Result<Tensor, ModelError> {
        let raw = self.bytes.read(tensor.offset, tensor.len, name)?;
        Ok(tensor.kind.decode(&raw))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&GgufValue> {
        self.header.metadata.get(key)
    }

    /// A string, or `None` where the key is absent.
    pub(crate) fn string(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong_type(key, "a string", other)),
        }
    }

    /// A whole number, or `None` where the key is absent.
    pub(crate) fn integer(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let value = match self.get(key) {
            None => return Ok(None),
            Some(GgufValue::Unsigned(n)) => usize::try_from(*n).ok(),
            Some(GgufValue::Signed(n)) => usize::try_from(*n).ok(),
            Some(_) => None,
        };
        match (value, self.get(key)) {
            (Some(n), _) => Ok(Some(n)),
            (None, Some(other)) => Err(self.wrong_type(key, "a whole number", other)),
            (None, None) => Ok(None),
        }
    }

    /// A number, or `None` where the key is absent.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(GgufValue::Float(x)) => Ok(Some(*x)),
            Some(GgufValue::Unsigned(n)) => Ok(Some(*n as f64)),
            Some(other) => Err(self.wrong_type(key, "a number", other)),
        }
    }

    /// An array of strings; an error where the key is absent.
    pub(crate) fn strings(&self, key: &str) -> Result<Vec<&str>, ModelError> {
        let Some(GgufValue::Array(items)) = self.get(key) else {
            return Err(ModelError::damaged(self.bytes.path(), format!("the array `{key}` is missing")));
        };
        items
            .iter()
            .map(|item| match item {
                GgufValue::String(s) => Ok(s.as_str()),
                other => Err(self.wrong_type(key, "an array of strings", other)),
            })
            .collect()
    }

    fn wrong_type(&self, key: &str, expected: &str, found: &GgufValue) -> ModelError {
        let shown: String = format!("{found:?}").chars().take(60).collect();
        ModelError::damaged(self.bytes.path(), format!("`{key}` should be {expected}, it holds {shown}"))
    }
}

/// The unread rest of the header.
struct GgufCursor<'a> {
    path: &'a Path,
    rest: &'a [u8],
}

impl<'a> GgufCursor<'a> {
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], ModelError> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = split else {
            let reason = format!("it ends within {what}: {len} bytes wanted, {} left", self.rest.len());
            return Err(ModelError::damaged(self.path, reason));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], ModelError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32, ModelError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, ModelError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str) -> Result<String, ModelError> {
        let len = self.u64(what)?;
        let raw = self.take(len, what)?;
        String::from_utf8(raw.to_vec())
            .map_err(|e| ModelError::damaged(self.path, format!("{what} is not UTF-8: {e}")))
    }

    /// Refuses a count whose smallest encoding is longer than the rest of the header.
    fn room_for(&self, count: u64, smallest: u64, what: &str) -> Result<(), ModelError> {
        if count.checked_mul(smallest).is_some_and(|needed| needed <= self.rest.len() as u64) {
            return Ok(());
        }
        let reason = format!("it claims {count} {what}, {} bytes are left of the header", self.rest.len());
        Err(ModelError::damaged(self.path, reason))
    }

    fn value(&mut self, kind: u32, key: &str, depth: u8) -> Result<GgufValue, ModelError> {
        Ok(match kind {
            0 => GgufValue::Unsigned(u64::from(self.array::<1>(key)?[0])),
            1 => GgufValue::Signed(i64::from(i8::from_le_bytes(self.array(key)?))),
            2 => GgufValue::Unsigned(u64::from(u16::from_le_bytes(self.array(key)?))),
            3 => GgufValue::Signed(i64::from(i16::from_le_bytes(self.array(key)?))),
            4 => GgufValue::Unsigned(u64::from(self.u32(key)?)),
            5 => GgufValue::Signed(i64::from(i32::from_le_bytes(self.array(key)?))),
            6 => GgufValue::Float(as_written(f32::from_le_bytes(self.array(key)?))),
            7 => GgufValue::Bool(self.array::<1>(key)?[0] != 0),
            8 => GgufValue::String(self.string(key)?),
            9 => self.list(key, depth)?,
            10 => GgufValue::Unsigned(self.u64(key)?),
            11 => GgufValue::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => GgufValue::Float(f64::from_le_bytes(self.array(key)?)),
            other => {
                return Err(ModelError::damaged(self.path, format!("`{key}` has the unknown type {other}")));
            }
        })
    }

    fn list(&mut self, key: &str, depth: u8) -> Result<GgufValue, ModelError> {
        if depth == 4 {
            return Err(ModelError::damaged(self.path, format!("`{key}` nests arrays more than 4 deep")));
        }
        let kind = self.u32(key)?;
        let count = self.u64(key)?;
        let smallest = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        self.room_for(count, smallest, key)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.value(kind, key, depth + 1)?);
        }
        Ok(GgufValue::Array(items))
    }

    fn tensor(&mut self) -> Result<(String, GgufTensor), ModelError> {
        let name = self.string("a tensor name")?;
        let damaged = |reason: String| ModelError::damaged(self.path, format!("tensor `{name}` {reason}"));
        let path = self.path;
        let what = "a tensor entry";
        let dimensions = self.u32(what)?;
        if !(1..=4).contains(&dimensions) {
            return Err(damaged(format!("has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64(what)?;
            let size = usize::try_from(size).ok().filter(|size| *size > 0);
            shape.push(size.ok_or_else(|| damaged("has a dimension of size 0 or beyond memory".into()))?);
        }
        let id = self.u32(what)?;
        let kind = TensorType::from_gguf(id).ok_or_else(|| {
            let reason = format!("tensor `{name}` has type {id}; F32, F16, BF16, Q8_0 and Q4_1 are read");
            ModelError::unsupported(path, reason)
        })?;
        let offset = self.u64(what)?;
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let len = elements.filter(|_| shape[0] % kind.block() == 0).and_then(|n| kind.bytes_of(n));
        let len = len.ok_or_else(|| damaged(format!("has the impossible shape {shape:?} for its type")))?;
        shape.reverse();
        Ok((name, GgufTensor { shape, kind, offset, len }))
    }
}

/// The decimal that was rounded to this f32: 1e-5, not 9.999999747378752e-6. Configs state it in full.
fn as_written(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
