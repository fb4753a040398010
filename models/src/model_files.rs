//! The files of one model, whatever their format.
//!
//! [`ModelFiles::open`] checks that every tensor that the architecture needs exists in the right shape and within its
//! file. Names and layouts are always Hugging Face's, so that code that loads weights does not depend on the file
//! format.

use crate::bounded_file::hex;
use crate::error::ModelError;
use crate::folder::ModelFolder;
use crate::gguf::{GgufFile, GgufValue};
use crate::gguf_model;
use crate::tokenizer::ModelTokenizer;
use crate::weights::expected_tensors;
use minds_core::architecture::Architecture;
use minds_core::tensor::Tensor;
use sha2::{Digest, Sha256};
use std::path::Path;

/// An open model, complete for its architecture.
#[derive(Debug)]
pub struct ModelFiles {
    files: FileFormat,
    arch: Architecture,
    fingerprint: String,
}

#[derive(Debug)]
enum FileFormat {
    Gguf(GgufFile),
    Folder(ModelFolder),
}

impl ModelFiles {
    /// Opens a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// Names the file and what is wrong with it: damaged, of an unsupported kind, or incomplete.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let (files, arch) = if path.is_dir() {
            let (folder, arch) = ModelFolder::open(path)?;
            (FileFormat::Folder(folder), arch)
        } else {
            let gguf = GgufFile::open(path)?;
            let arch = gguf_model::architecture(&gguf)?;
            (FileFormat::Gguf(gguf), arch)
        };
        let model_files = Self { fingerprint: files.fingerprint()?, files, arch };
        model_files.check_tensors()?;
        Ok(model_files)
    }

    /// The shape of the network.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.arch
    }

    /// A tensor by its Hugging Face name, row-major, in Hugging Face layout.
    ///
    /// # Errors
    /// There is no such tensor, its type is not supported, or the file cannot be read.
    pub fn tensor(&self, name: &str) -> Result<Tensor, ModelError> {
        let found = match &self.files {
            FileFormat::Gguf(gguf) => gguf_model::tensor(gguf, &self.arch, name)?,
            FileFormat::Folder(folder) => match folder.shards.tensor(name) {
                Some(tensor) => Some(folder.shards.data(name, tensor)?),
                None => None,
            },
        };
        found.ok_or_else(|| ModelError::NoTensor { path: self.path().to_owned(), name: name.to_owned() })
    }

    /// Reads the tokenizer of the model.
    ///
    /// # Errors
    /// There is none, or it is of an unsupported kind.
    pub fn tokenizer(&self) -> Result<ModelTokenizer, ModelError> {
        match &self.files {
            FileFormat::Folder(folder) => folder.tokenizer(),
            FileFormat::Gguf(gguf) => {
                let parts = gguf_model::tokenizer_parts(gguf)?;
                let eos = gguf_model::token_id(gguf, "tokenizer.ggml.eos_token_id")?;
                let eot = gguf_model::token_id(gguf, "tokenizer.ggml.eot_token_id")?;
                let wants_bos = gguf.get("tokenizer.ggml.add_bos_token") == Some(&GgufValue::Bool(true));
                let bos = gguf_model::token_id(gguf, "tokenizer.ggml.bos_token_id")?.filter(|_| wants_bos);
                let stops = eos.into_iter().chain(eot).collect();
                let template = gguf_model::chat_template(gguf, &parts.tokens)?;
                let tokenizer = ModelTokenizer::from_parts(self.path(), parts)?;
                Ok(tokenizer.with_ids(stops, bos).with_template(template))
            }
        }
    }

    /// The Jinja template that turns a conversation into text, if the files hold one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        match &self.files {
            FileFormat::Gguf(gguf) => gguf.string("tokenizer.chat_template").ok().flatten(),
            FileFormat::Folder(folder) => folder.chat_template.as_deref(),
        }
    }

    /// Twelve hexadecimal digits of a hash over headers, configs and samples of the data.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The file or folder that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.files {
            FileFormat::Gguf(gguf) => gguf.bytes().path(),
            FileFormat::Folder(folder) => &folder.path,
        }
    }

    fn check_tensors(&self) -> Result<(), ModelError> {
        for (name, expected) in expected_tensors(&self.arch) {
            let found = match &self.files {
                FileFormat::Gguf(gguf) => gguf_model::shape(gguf, &name),
                FileFormat::Folder(folder) => folder.shards.tensor(&name).map(|t| t.info.shape.as_slice()),
            };
            let Some(found) = found else {
                return Err(ModelError::NoTensor { path: self.path().to_owned(), name });
            };
            if found != expected {
                let reason =
                    format!("tensor `{name}` has the shape {found:?}, the architecture needs {expected:?}");
                return Err(ModelError::damaged(self.path(), reason));
            }
        }
        Ok(())
    }
}

impl FileFormat {
    fn fingerprint(&self) -> Result<String, ModelError> {
        let mut digest = Sha256::new();
        match self {
            Self::Gguf(gguf) => gguf.bytes().sample_into(&mut digest, gguf.header_len())?,
            Self::Folder(folder) => {
                digest.update(&folder.config_json);
                for (bytes, header) in folder.shards.files() {
                    bytes.sample_into(&mut digest, header)?;
                }
            }
        }
        Ok(hex(&digest.finalize()[..6]))
    }
}
