//! Finds the plan's weights among a checkpoint's tensors and checks every tensor's type and shape.

use super::checkpoint::{Checkpoint, Entry};
use super::files::{format_error, read_at, shown, unsupported};
use super::quantization::Affine;
use super::vision::{PATCHES, PROJECTOR, TOWER};
use super::vision_config::{CHANNELS, KERNEL};
use crate::backend::{Band, Encoding, Float, TensorDesc, WeightSource};
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, WeightRole, WeightSpec};
use safetensors::Dtype;
use std::collections::BTreeSet;

/// What stands before a text tensor's name: released VL, MLX's VL, text only, bare.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "model.", ""];
/// What stands before the head's name.
const HEAD_PREFIXES: [&str; 2] = ["", "language_model."];
/// What stands before a vision tensor's name: released, MLX's.
const VISION_PREFIXES: [&str; 2] = ["model.", ""];
const TABLE: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
/// Most bytes of one read; progress is told between reads.
pub const READ_BYTES: usize = 2 << 20;

/// Whether a tensor belongs to the vision tower or its projector.
pub(super) fn is_vision(name: &str) -> bool {
    VISION_PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix)).any(is_bare_vision)
}

/// Whether a name without the checkpoint's prefix belongs there.
fn is_bare_vision(name: &str) -> bool {
    name.starts_with(TOWER) || name.starts_with(PROJECTOR)
}

/// Some tensor's bytes in a file.
#[derive(Clone, Copy, Debug)]
struct Span {
    file: usize,
    offset: u64,
    bytes: u64,
}

/// A checked weight and where it is stored.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// What a backend needs to size and pack it.
    pub desc: TensorDesc,
    data: Span,
    /// Scales and biases of an affine tensor.
    affine: Option<(Span, Span)>,
}

impl Tensor {
    /// Bytes in the file, scales and biases included.
    pub fn bytes(&self) -> u64 {
        self.data.bytes + self.affine.map_or(0, |(scales, biases)| scales.bytes + biases.bytes)
    }

    /// Values it stands for.
    pub fn parameters(&self) -> u64 {
        self.desc.rows as u64 * self.desc.cols as u64
    }
}

/// Bits per value in which most of the parameters of `tensors` are stored; 0 for no tensors.
pub fn stored_bits(tensors: &[Tensor]) -> u32 {
    let mut counts = std::collections::BTreeMap::<u32, u64>::new();
    for tensor in tensors {
        let bits = match tensor.desc.encoding {
            Encoding::Dense(float) => 8 * float.bytes() as u32,
            Encoding::Affine { bits, .. } => u32::from(bits),
        };
        *counts.entry(bits).or_default() += tensor.parameters();
    }
    counts.into_iter().max_by_key(|(_, parameters)| *parameters).map_or(0, |(bits, _)| bits)
}

/// The tensors of a checkpoint's plans, each in the order of its plan's weights.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The text plan's.
    pub text: Vec<Tensor>,
    /// The vision plan's; none without one.
    pub vision: Vec<Tensor>,
}

impl Checkpoint {
    /// Finds and checks one tensor for each weight of the plans. Without a vision plan, what the checkpoint has of a
    /// vision tower is passed over.
    ///
    /// # Errors
    /// `Format` where a tensor is missing, unknown, of the wrong shape, or at odds with config.json; `Unsupported`
    /// where its type is none this library reads.
    pub fn bind(&self, text: &Plan, vision: Option<&Plan>) -> Result<Bound> {
        let mut binder = Binder { checkpoint: self, prefix: self.text_prefix()?, used: BTreeSet::new() };
        let bound = Bound {
            text: binder.bind_all(text)?,
            vision: vision.map(|plan| binder.bind_all(plan)).transpose()?.unwrap_or_default(),
        };
        let passed = |name: &str| vision.is_none() && self.config.vision.is_some() && is_vision(name);
        match self.entries.keys().find(|name| !binder.used.contains(*name) && !passed(name)) {
            Some(name) if name.contains("lm_head.") && self.config.text.tied => {
                Err(self.wrong(name, "no head, since tie_word_embeddings is true", "one"))
            }
            Some(name) => Err(self.wrong(name, "only tensors that the config asks for", "an unknown one")),
            None => Ok(bound),
        }
    }

    /// Reads a bound tensor in bands of rows.
    ///
    /// # Errors
    /// `InvalidArgument` where the tensor was bound by another checkpoint.
    pub fn source<'a>(&'a self, tensor: &'a Tensor) -> Result<TensorSource<'a>> {
        if !self.entries.contains_key(&tensor.desc.name) || tensor.data.file >= self.files.len() {
            let what = format!("tensor {} is not of {}", shown(&tensor.desc.name), self.folder.display());
            return Err(Error::new(Code::InvalidArgument, what));
        }
        Ok(TensorSource { checkpoint: self, tensor, watch: None })
    }

    /// The prefix under which the embedding table stands.
    fn text_prefix(&self) -> Result<&'static str> {
        let has_table = |prefix: &&str| self.entries.contains_key(&format!("{prefix}{TABLE}"));
        let mut found = PREFIXES.into_iter().filter(has_table);
        match (found.next(), found.next()) {
            (Some(prefix), None) => Ok(prefix),
            (Some(a), Some(b)) => {
                Err(self.wrong(&format!("{a}{TABLE}"), "one embedding table", format!("{b}{TABLE} too")))
            }
            (None, _) => {
                let accepted = PREFIXES.map(|p| format!("{p}{TABLE}")).join(", ");
                Err(format_error(self.place(), format!("expected one of the tensors {accepted}, found none")))
            }
        }
    }

    /// What config.json says of the quantized tensor `name`.
    fn affine(&self, name: &str, stem: &str) -> Result<Affine> {
        let quantization = self.config.quantization.as_ref();
        let quantization = quantization
            .ok_or_else(|| self.wrong(name, "no .scales, since config.json has no quantization", "some"))?;
        quantization
            .of(stem)
            .ok_or_else(|| self.wrong(name, "no .scales, since config.json says it is not quantized", "some"))
    }

    /// Checks the three parts of a quantized matrix.
    fn check_affine(&self, name: &str, stem: &str, rows: usize, cols: usize) -> Result<(Affine, Float)> {
        let affine = self.affine(name, stem)?;
        let bits = usize::from(affine.bits);
        if !cols.is_multiple_of(affine.group) {
            return Err(self.wrong(name, format!("columns in groups of {}", affine.group), cols));
        }
        let weight = self.entry(name, "")?;
        if weight.info.dtype != Dtype::U32 {
            return Err(self.wrong(name, "U32 words, since it has .scales", format!("{:?}", weight.info.dtype)));
        }
        let said = format!("{} bits in groups of {}", affine.bits, affine.group);
        // 32 columns are `bits` words, and a group is a multiple of 32 columns.
        self.check_shape(name, weight, &[&[rows, cols / 32 * bits]], &said)?;
        let part = |end: &str| {
            let name = format!("{stem}{end}");
            let entry = self.entry(&name, &format!("for {said}"))?;
            self.check_shape(&name, entry, &[&[rows, cols / affine.group]], &said)?;
            self.float(&name, entry)
        };
        let (scales, biases) = (part(".scales")?, part(".biases")?);
        if biases != scales {
            let name = format!("{stem}.biases");
            return Err(self.wrong(&name, format!("the scales' type {scales:?}"), format!("{biases:?}")));
        }
        Ok((affine, scales))
    }

    fn check_shape(&self, name: &str, entry: &Entry, accepted: &[&[usize]], why: &str) -> Result<()> {
        if accepted.contains(&&entry.info.shape[..]) {
            return Ok(());
        }
        let accepted: Vec<String> = accepted.iter().map(|shape| format!("{shape:?}")).collect();
        let expected = format!("shape {} for {why}", accepted.join(" or "));
        Err(self.wrong(name, expected, format!("{:?}", entry.info.shape)))
    }

    fn float(&self, name: &str, entry: &Entry) -> Result<Float> {
        match entry.info.dtype {
            Dtype::BF16 => Ok(Float::Bf16),
            Dtype::F16 => Ok(Float::F16),
            Dtype::F32 => Ok(Float::F32),
            Dtype::U32 => Err(self.wrong(name, "BF16, F16 or F32, since it has no .scales", "U32")),
            other => {
                let what =
                    format!("tensor {}: type {other:?} is not supported, expected BF16, F16 or F32", shown(name));
                Err(unsupported(&self.files[entry.file].name, what))
            }
        }
    }

    fn entry(&self, name: &str, why: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| self.missing(name, why))
    }

    fn missing(&self, name: &str, why: &str) -> Error {
        format_error(self.place(), format!("tensor {} is missing {why}", shown(name)))
    }

    /// A format error about a tensor, naming its file.
    fn wrong(&self, name: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Error {
        let file = self.entries.get(name).map_or(self.place(), |entry| self.files[entry.file].name.clone());
        format_error(file, format!("tensor {}: expected {expected}, found {}", shown(name), shown(found)))
    }

    /// The one tensor file, or the folder of several.
    fn place(&self) -> String {
        match &self.files[..] {
            [file] => file.name.clone(),
            _ => self.folder.display().to_string(),
        }
    }

    fn span(&self, name: &str) -> Result<Span> {
        let entry = self.entry(name, "")?;
        let (first, last) = entry.info.data_offsets;
        let offset = self.files[entry.file].data_start + first as u64;
        Ok(Span { file: entry.file, offset, bytes: (last - first) as u64 })
    }
}

struct Binder<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
    used: BTreeSet<String>,
}

impl Binder<'_> {
    fn bind_all(&mut self, plan: &Plan) -> Result<Vec<Tensor>> {
        plan.weights.iter().map(|spec| self.bind(spec)).collect()
    }

    fn bind(&mut self, spec: &WeightSpec) -> Result<Tensor> {
        let checkpoint = self.checkpoint;
        let name = self.find(spec)?;
        let entry = checkpoint.entry(&name, "")?;
        let stem = name.strip_suffix(".weight").unwrap_or(&name).to_string();
        let scales_name = format!("{stem}.scales");
        let quantized = spec.role == WeightRole::Matrix && checkpoint.entries.contains_key(&scales_name);
        let (encoding, affine) = if quantized {
            let (affine, scales) = checkpoint.check_affine(&name, &stem, spec.rows, spec.cols)?;
            let biases_name = format!("{stem}.biases");
            let spans = (checkpoint.span(&scales_name)?, checkpoint.span(&biases_name)?);
            self.used.extend([scales_name, biases_name]);
            (Encoding::Affine { bits: affine.bits, group: affine.group, scales }, Some(spans))
        } else {
            (self.dense(spec, &name, &stem, entry)?, None)
        };
        let data = checkpoint.span(&name)?;
        self.used.insert(name.clone());
        Ok(Tensor { desc: TensorDesc { name, rows: spec.rows, cols: spec.cols, encoding }, data, affine })
    }

    fn dense(&self, spec: &WeightSpec, name: &str, stem: &str, entry: &Entry) -> Result<Encoding> {
        let checkpoint = self.checkpoint;
        if spec.role == WeightRole::Matrix && checkpoint.config.quantization.as_ref().is_some_and(|q| q.demands(stem)) {
            return Err(checkpoint.missing(&format!("{stem}.scales"), "though config.json says it is quantized"));
        }
        let float = checkpoint.float(name, entry)?;
        let (n, k) = (spec.rows, spec.cols);
        let check = |accepted: &[&[usize]], what| checkpoint.check_shape(name, entry, accepted, what);
        match spec.role {
            WeightRole::Matrix => match self.patch_shape(spec) {
                Some(shape) => check(&[&[n, k], &shape], "the patches of this config")?,
                None => check(&[&[n, k]], "a matrix of this config")?,
            },
            WeightRole::Vector => check(&[&[n]], "a vector of this config")?,
            WeightRole::Taps => check(&[&[n, 1, k], &[n, k, 1], &[n, k]], "the taps of this config")?,
            WeightRole::GridTaps => {
                let taps: [&[usize]; 2] = [&[n, 1, KERNEL, KERNEL], &[n, KERNEL, KERNEL, 1]];
                check(&taps, "the taps of this config")?
            }
        }
        Ok(Encoding::Dense(float))
    }

    /// The shape as a convolution's kernel, in the same order, of the matrix that takes patches in.
    fn patch_shape(&self, spec: &WeightSpec) -> Option<[usize; 5]> {
        let takes_patches = spec.names.iter().any(|name| name.starts_with(PATCHES[0]));
        let vision = self.checkpoint.config.vision.as_ref().filter(|_| takes_patches)?;
        Some([spec.rows, CHANNELS, vision.frames, vision.patch, vision.patch])
    }

    /// The one name of a weight that the checkpoint has.
    fn find(&self, spec: &WeightSpec) -> Result<String> {
        let full = |name: &String| match &name[..] {
            HEAD => HEAD_PREFIXES.iter().map(|p| format!("{p}{HEAD}")).collect(),
            _ if is_bare_vision(name) => VISION_PREFIXES.iter().map(|p| format!("{p}{name}")).collect(),
            _ => vec![format!("{}{name}", self.prefix)],
        };
        let accepted: Vec<String> = spec.names.iter().flat_map(full).collect();
        let mut found = accepted.iter().filter(|name| self.checkpoint.entries.contains_key(*name));
        match (found.next(), found.next()) {
            (Some(name), None) => Ok(name.clone()),
            (Some(a), Some(b)) => Err(self.checkpoint.wrong(a, "one tensor for this weight", format!("{b} too"))),
            (None, _) => {
                let why = format!("(expected {} x {} values)", spec.rows, spec.cols);
                Err(self.checkpoint.missing(&accepted.join(" or "), &why))
            }
        }
    }
}

/// Told of bytes read; an error stops the reading.
pub(super) type Watch<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Reads one tensor of a checkpoint.
pub struct TensorSource<'a> {
    checkpoint: &'a Checkpoint,
    tensor: &'a Tensor,
    watch: Option<Watch<'a>>,
}

impl<'a> TensorSource<'a> {
    /// The same source, which tells `watch` of the bytes it reads.
    pub(super) fn watched(self, watch: Watch<'a>) -> TensorSource<'a> {
        TensorSource { watch: Some(watch), ..self }
    }

    /// Reads rows of one of the tensor's parts; `bytes` is a buffer to use again.
    fn read(&mut self, span: Span, first: usize, count: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let file = &self.checkpoint.files[span.file];
        let row_bytes = span.bytes / self.tensor.desc.rows as u64;
        let mut offset = span.offset + first as u64 * row_bytes;
        bytes.resize(count * row_bytes as usize, 0);
        for piece in bytes.chunks_mut(READ_BYTES) {
            let at = |what: String| format!("{}: tensor {}: {what}", file.name, self.tensor.desc.name);
            let got = read_at(&file.file, offset, piece).map_err(|e| Error::new(Code::Io, at(e.to_string())))?;
            if got < piece.len() {
                let end = offset + got as u64;
                let what =
                    format!("expected {} more bytes at byte {end}, found the end of the file", piece.len() - got);
                return Err(Error::new(Code::Format, at(what)));
            }
            offset += got as u64;
            if let Some(watch) = &mut self.watch {
                watch(got as u64)?;
            }
        }
        Ok(())
    }
}

impl WeightSource for TensorSource<'_> {
    fn desc(&self) -> &TensorDesc {
        &self.tensor.desc
    }

    fn read_rows(&mut self, first: usize, count: usize, band: &mut Band) -> Result<()> {
        let tensor = self.tensor;
        if first.checked_add(count).is_none_or(|end| end > tensor.desc.rows) {
            let what = format!("tensor {}: rows {first} + {count} of {}", tensor.desc.name, tensor.desc.rows);
            return Err(Error::new(Code::InvalidArgument, what));
        }
        self.read(tensor.data, first, count, &mut band.data)?;
        band.scales.clear();
        band.biases.clear();
        if let Some((scales, biases)) = tensor.affine {
            self.read(scales, first, count, &mut band.scales)?;
            self.read(biases, first, count, &mut band.biases)?;
        }
        Ok(())
    }
}
