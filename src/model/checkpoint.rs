//! A checkpoint folder: every file it needs, checked, without any tensor's data.

use super::config::{Config, GenerationDefaults};
use super::files::{ByTensor, format_error, read_file, read_optional_text, shown};
use super::header::{MAX_HEADER_BYTES, TensorFile};
use super::processor;
use super::tensors::is_vision;
use crate::error::{Code, Error, Result};
use crate::picture::config::{PictureConfig, VideoConfig};
use crate::text::{MAX_TEMPLATE_BYTES, MAX_TOKENIZER_BYTES};
use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Most bytes of config.json and of generation_config.json.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Most bytes of tokenizer_config.json.
pub const MAX_TOKENIZER_CONFIG_BYTES: u64 = 8 << 20;
/// Most files a checkpoint's tensors are spread over.
pub const MAX_SHARDS: usize = 256;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Where a tensor is stored.
#[derive(Debug)]
pub(super) struct Entry {
    /// Index in [`Checkpoint::files`].
    pub file: usize,
    /// Type, shape and offsets, which agree with one another.
    pub info: TensorInfo,
}

/// An open checkpoint folder. Its tensor files stay open, so what was checked is what is read.
#[derive(Debug)]
pub struct Checkpoint {
    /// The folder.
    pub folder: PathBuf,
    /// config.json. `vision` is there only where there are vision tensors too.
    pub config: Config,
    /// generation_config.json; all empty where there is none.
    pub generation: GenerationDefaults,
    /// tokenizer.json as it stands in the file.
    pub tokenizer_json: Vec<u8>,
    /// tokenizer_config.json as it stands in the file.
    pub tokenizer_config: Option<String>,
    /// chat_template.jinja.
    pub chat_template: Option<String>,
    /// How pictures become patches; only with a vision tower.
    pub picture: Option<PictureConfig>,
    /// How videos do.
    pub video: Option<VideoConfig>,
    /// Bytes of all tensors, vision's and text's.
    pub tensor_bytes: u64,
    pub(super) files: Vec<TensorFile>,
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Checkpoint {
    /// Opens the checkpoint in folder `path`, reading everything but the tensors' data.
    ///
    /// # Errors
    /// `Io` where the folder or a file is missing, unreadable or of the wrong kind; `Format` where a file's content is
    /// broken or over its limit; `Unsupported` where it is something this library does not run.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        let is_folder =
            fs::metadata(path).map_err(|e| Error::new(Code::Io, format!("{}: {e}", path.display())))?.is_dir();
        if !is_folder {
            return Err(Error::new(Code::Io, format!("{}: expected a folder, found a file", path.display())));
        }
        let named = |name: &str| (path.join(name), path.join(name).display().to_string());
        let (at, file) = named("config.json");
        let mut config = Config::parse(&file, &read_file(&at, MAX_CONFIG_BYTES)?)?;
        let (at, file) = named("generation_config.json");
        let generation = match read_optional_text(&at, MAX_CONFIG_BYTES)? {
            Some(json) => GenerationDefaults::parse(&file, json.as_bytes(), config.text.vocab_size)?,
            None => GenerationDefaults::default(),
        };
        let tokenizer_json = read_file(&path.join("tokenizer.json"), MAX_TOKENIZER_BYTES as u64)?;
        let tokenizer_config = read_optional_text(&path.join("tokenizer_config.json"), MAX_TOKENIZER_CONFIG_BYTES)?;
        let chat_template = read_optional_text(&path.join("chat_template.jinja"), MAX_TEMPLATE_BYTES as u64)?;
        let (files, entries) = open_tensors(path)?;
        config.vision = config.vision.filter(|_| entries.keys().any(|name| is_vision(name)));
        let vision = config.vision.as_ref();
        let picture = vision.map(|vision| processor::picture(path, vision)).transpose()?.flatten();
        let video = vision.map(|vision| processor::video(path, vision)).transpose()?.flatten();
        Ok(Checkpoint {
            folder: path.to_path_buf(),
            config,
            generation,
            tokenizer_json,
            tokenizer_config,
            chat_template,
            picture,
            video,
            tensor_bytes: files.iter().map(|f| f.data_bytes).sum(),
            files,
            entries,
        })
    }
}

/// The one file, or the shards of the index where there is no such file.
fn open_tensors(folder: &Path) -> Result<(Vec<TensorFile>, BTreeMap<String, Entry>)> {
    let index = folder.join(INDEX);
    let single = folder.join(SINGLE);
    if fs::exists(&single).unwrap_or(true) || !fs::exists(&index).unwrap_or(true) {
        let (file, tensors) = TensorFile::open(&single)?;
        let entries = tensors.into_iter().map(|(name, info)| (name, Entry { file: 0, info })).collect();
        return Ok((vec![file], entries));
    }
    open_shards(folder, &index)
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: ByTensor<String>,
}

fn open_shards(folder: &Path, index: &Path) -> Result<(Vec<TensorFile>, BTreeMap<String, Entry>)> {
    let at = &index.display();
    let json = read_file(index, MAX_HEADER_BYTES)?;
    let ShardIndex { weight_map: ByTensor(mut map) } =
        serde_json::from_slice(&json).map_err(|e| format_error(at, shown(e)))?;
    let shards: BTreeSet<String> = map.values().cloned().collect();
    if shards.len() > MAX_SHARDS {
        return Err(format_error(at, format!("expected at most {MAX_SHARDS} shards, found {}", shards.len())));
    }
    shards.iter().try_for_each(|shard| check_shard_name(shard).map_err(|what| format_error(at, what)))?;
    let mut files: Vec<TensorFile> = Vec::new();
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for shard in shards {
        let (file, tensors) = TensorFile::open(&folder.join(&shard))?;
        for (name, info) in tensors {
            if let Some(first) = entries.get(&name) {
                let first = &files[first.file].name;
                return Err(format_error(&file.name, format!("tensor {} is also in {first}", shown(name))));
            }
            match map.remove(&name) {
                Some(said) if said == shard => entries.insert(name, Entry { file: files.len(), info }),
                Some(said) => {
                    let what = format!("tensor {}: the index expects it in {}", shown(name), shown(said));
                    return Err(format_error(&file.name, what));
                }
                None => return Err(format_error(&file.name, format!("tensor {} is not in the index", shown(name)))),
            };
        }
        files.push(file);
    }
    match map.first_key_value() {
        Some((name, shard)) => {
            Err(format_error(at, format!("tensor {}: expected in {}, found in no shard", shown(name), shown(shard))))
        }
        None => Ok((files, entries)),
    }
}

/// A shard is a plain file name, so that an index cannot lead out of the folder.
fn check_shard_name(shard: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if shard.ends_with(".safetensors") && !shard.starts_with('.') && shard.chars().all(plain) {
        return Ok(());
    }
    Err(format!("shard: expected a plain name ending in .safetensors, found {}", shown(shard)))
}
