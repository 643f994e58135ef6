//! The `quantization` entry of config.json: bits and groups, with exceptions by layer.

use super::files::Fields;
use crate::error::Result;
use std::collections::HashMap;

/// Prefixes of text tensors: released VL, MLX's VL, MLX's head, text only. Longer ones first.
const TEXT_PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Bits and group of affine tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    /// 4, 6 or 8.
    pub bits: u8,
    /// 32 or 64 columns that share a scale and a bias.
    pub group: usize,
}

/// How a checkpoint's quantized tensors are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// What holds where no exception does.
    pub global: Affine,
    /// By [`canonical`] stem; `None` is a layer that is not quantized.
    exceptions: HashMap<String, Option<Affine>>,
}

/// A tensor's stem (its name without `.weight`) in one naming, whichever its file uses.
pub fn canonical(stem: &str) -> String {
    let bare = TEXT_PREFIXES.iter().find_map(|p| stem.strip_prefix(p)).unwrap_or(stem);
    bare.replace(".g_proj", ".gate_proj").replace("patch_embed", "patchifier")
}

impl Quantization {
    /// The entry of a config's parts; several must agree.
    pub(super) fn find(parts: &[Fields]) -> Result<Option<Quantization>> {
        let mut found: Option<Quantization> = None;
        for part in parts {
            for key in ["quantization", "quantization_config"] {
                let Some(fields) = part.object(key)? else { continue };
                let this = Quantization::parse(part, key, &fields)?;
                if found.as_ref().is_some_and(|earlier| *earlier != this) {
                    return Err(part.wrong(key, "the same as in quantization", "something else"));
                }
                found = Some(this);
            }
        }
        Ok(found)
    }

    fn parse(part: &Fields, key: &str, fields: &Fields) -> Result<Quantization> {
        if let Some(method) = fields.get("quant_method") {
            return Err(part.refused(&format!("{key}.quant_method"), method, "MLX affine quantization"));
        }
        let global = affine(fields, None)?;
        let mut exceptions = HashMap::new();
        for (name, value) in fields.entries() {
            let affine = match value {
                _ if matches!(name, "group_size" | "bits" | "mode") || value.is_null() => continue,
                serde_json::Value::Bool(quantized) => quantized.then_some(global),
                serde_json::Value::Object(_) => match fields.object(name)? {
                    Some(entry) => Some(affine(&entry, Some(global))?),
                    None => continue,
                },
                _ => return Err(fields.refused(name, value, "group_size, bits, mode and layers' names")),
            };
            if exceptions.insert(canonical(name), affine).is_some_and(|earlier| earlier != affine) {
                return Err(fields.wrong(name, "one entry a layer", "another one under its other name"));
            }
        }
        Ok(Quantization { global, exceptions })
    }

    /// What holds for a tensor's stem; `None` if it must not be quantized.
    pub fn of(&self, stem: &str) -> Option<Affine> {
        self.exceptions.get(&canonical(stem)).copied().unwrap_or(Some(self.global))
    }

    /// Whether the config asks by name for this stem to be quantized.
    pub fn demands(&self, stem: &str) -> bool {
        matches!(self.exceptions.get(&canonical(stem)), Some(Some(_)))
    }
}

fn affine(fields: &Fields, default: Option<Affine>) -> Result<Affine> {
    if let Some(mode) = fields.get("mode").filter(|m| m.as_str() != Some("affine")) {
        return Err(fields.refused("mode", mode, "affine"));
    }
    let read =
        |key, default: Option<u64>, choices: &[u64], text: &str| match fields.whole(key, 0..=u64::MAX)?.or(default) {
            Some(n) if choices.contains(&n) => Ok(n),
            Some(n) => Err(fields.refused(key, n, text)),
            None => Err(fields.wrong(key, text, "none")),
        };
    Ok(Affine {
        bits: read("bits", default.map(|a| u64::from(a.bits)), &[4, 6, 8], "4, 6 or 8")? as u8,
        group: read("group_size", default.map(|a| a.group as u64), &[32, 64], "32 or 64")? as usize,
    })
}
