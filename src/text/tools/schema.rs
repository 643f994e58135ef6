//! What the tools of a chat say of their parameters, and values made to fit it.

use super::literal::{self, Literal};
use serde_json::Value;
use std::collections::HashMap;

/// Most schemas looked at for one chat, with the values and types they list; parameters past it have no type.
const MAX_SCHEMAS: usize = 100_000;
/// So many bytes of a listed string count as one more.
const COUNTED_BYTES: usize = 64;
/// Longest `$ref`, in bytes; of a longer one any kind fits.
const MAX_REF_BYTES: usize = 1024;
/// Deepest chain of schemas that refer to or are made of others.
const MAX_SCHEMA_DEPTH: usize = 16;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    String = 1,
    Integer = 2,
    Number = 4,
    Boolean = 8,
    Null = 16,
    Array = 32,
    Object = 64,
}

impl Kind {
    fn named(name: &str) -> Option<Kind> {
        Some(match name {
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            "null" => Kind::Null,
            "array" => Kind::Array,
            "object" => Kind::Object,
            _ => return None,
        })
    }

    fn of(value: &Value) -> Kind {
        match value {
            Value::String(_) => Kind::String,
            Value::Number(n) if n.is_f64() => Kind::Number,
            Value::Number(_) => Kind::Integer,
            Value::Bool(_) => Kind::Boolean,
            Value::Null => Kind::Null,
            Value::Array(_) => Kind::Array,
            Value::Object(_) => Kind::Object,
        }
    }
}

/// Kinds a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds(u8);

impl Kinds {
    const NONE: Kinds = Kinds(0);
    const ANY: Kinds = Kinds(127);

    fn of(kinds: impl IntoIterator<Item = Kind>) -> Kinds {
        Kinds(kinds.into_iter().fold(0, |all, kind| all | kind as u8))
    }

    fn has(self, kind: Kind) -> bool {
        self.0 & kind as u8 != 0
    }

    fn and(self, other: Kinds) -> Kinds {
        // A whole number is a number too.
        let wide = |kinds: Kinds| if kinds.has(Kind::Number) { kinds.0 | Kind::Integer as u8 } else { kinds.0 };
        Kinds(wide(self) & wide(other))
    }

    fn or(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

/// What a schema says of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    kinds: Kinds,
    /// Strings its lists of values name.
    strings: Vec<String>,
}

impl Parameter {
    /// `value` as JSON, if it fits.
    fn fit(&self, value: &Literal) -> Option<String> {
        let kinds = self.kinds;
        match value.kind {
            kind if kinds.has(kind) => Some(value.json.clone()),
            Kind::Integer if kinds.has(Kind::Number) => Some(value.json.clone()),
            Kind::Number if kinds.has(Kind::Integer) => {
                let (whole, fraction) = value.json.split_once('.')?;
                fraction.bytes().all(|b| b == b'0').then(|| whole.to_owned())
            }
            _ => None,
        }
    }
}

/// The parameters of a chat's tools, by name. Empty: every tool is unknown.
///
/// Of a schema, `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `nullable` and `$ref` within it count: they say
/// what kind of value a parameter is. What a value holds inside, and which parameters there must be, is the host's to
/// check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchemas {
    tools: HashMap<String, HashMap<String, Parameter>>,
}

impl ToolSchemas {
    /// Reads `tools` of a chat: a list of `{"type": "function", "function": {…}}` or of the inner objects alone.
    pub fn new(tools: &Value) -> ToolSchemas {
        let mut left = MAX_SCHEMAS;
        let tools = tools.as_array().into_iter().flatten().filter_map(|tool| {
            let function = tool.get("function").filter(|inner| inner.is_object()).unwrap_or(tool);
            let root = function.get("parameters").unwrap_or(&Value::Null);
            let properties = root.get("properties").and_then(Value::as_object).into_iter().flatten();
            let parameters = properties.map(|(key, schema)| {
                let mut strings = Vec::new();
                let kinds = kinds_of(schema, root, &mut strings, &mut left, MAX_SCHEMA_DEPTH);
                (key.clone(), Parameter { kinds, strings })
            });
            Some((function.get("name")?.as_str()?.to_owned(), parameters.collect()))
        });
        ToolSchemas { tools: tools.collect() }
    }

    /// What is said of a parameter; nothing where any kind would do, or none.
    fn parameter(&self, tool: &str, key: &str) -> Option<&Parameter> {
        self.tools.get(tool)?.get(key).filter(|parameter| ![Kinds::ANY, Kinds::NONE].contains(&parameter.kinds))
    }

    /// A value given as bare text, as JSON. Of a string the text is the value; other kinds are read as JSON or, where
    /// it is not that, as Python writes it. `None` where it does not fit.
    pub(super) fn typed_text(&self, tool: &str, key: &str, text: &str) -> Option<String> {
        let string = || Some(literal::quoted(text));
        let Some(parameter) = self.parameter(tool, key) else { return string() };
        let only_string = parameter.kinds == Kinds::of([Kind::String]);
        if only_string || parameter.strings.iter().any(|s| s == text) {
            return string();
        }
        let value = json(text.trim()).or_else(|| literal::whole(text));
        let fit = value.filter(|value| value.kind != Kind::String).and_then(|value| parameter.fit(&value));
        fit.or_else(|| parameter.kinds.has(Kind::String).then(string)?)
    }

    /// A value given as a literal, as JSON. Where only a string fits, a number is taken as it was written. `None` where
    /// it does not fit.
    pub(super) fn typed_literal(&self, tool: &str, key: &str, value: Literal) -> Option<String> {
        let Some(parameter) = self.parameter(tool, key) else { return Some(value.json) };
        parameter.fit(&value).or_else(|| {
            let number = matches!(value.kind, Kind::Integer | Kind::Number);
            (number && parameter.kinds.has(Kind::String)).then(|| literal::quoted(value.text))
        })
    }
}

/// Kinds of value that fit `schema`, a part of `root`; strings it lists are added to `strings`.
fn kinds_of(schema: &Value, root: &Value, strings: &mut Vec<String>, left: &mut usize, depth: usize) -> Kinds {
    if *left == 0 {
        return Kinds::ANY;
    }
    let list = |key| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    let listed = list("enum").chain(schema.get("const")).filter_map(Value::as_str);
    let cost = 1 + list("enum").count() + list("type").count() + listed.map(str::len).sum::<usize>() / COUNTED_BYTES;
    *left = left.saturating_sub(cost);
    if *left == 0 || depth == 0 {
        return Kinds::ANY;
    }
    let Value::Object(schema) = schema else { return Kinds::ANY };
    if let Some(place) = schema.get("$ref").and_then(Value::as_str) {
        let place = place.strip_prefix('#').filter(|place| place.len() <= MAX_REF_BYTES);
        let target = place.and_then(|place| root.pointer(place));
        return target.map_or(Kinds::ANY, |target| kinds_of(target, root, strings, left, depth - 1));
    }
    let listed = schema.get("enum").and_then(Value::as_array);
    let listed: Vec<&Value> = listed.into_iter().flatten().chain(schema.get("const")).collect();
    strings.extend(listed.iter().filter_map(|value| value.as_str().map(str::to_owned)));
    let named = |name: &Value| name.as_str().and_then(Kind::named);
    let mut kinds = match schema.get("type") {
        Some(Value::Array(names)) => names.iter().map(named).collect::<Option<Vec<_>>>().map(Kinds::of),
        Some(name) => named(name).map(|kind| Kinds::of([kind])),
        None if listed.is_empty() => None,
        None => Some(Kinds::of(listed.into_iter().map(Kind::of))),
    }
    .unwrap_or(Kinds::ANY);
    for any in ["anyOf", "oneOf"] {
        if let Some(Value::Array(parts)) = schema.get(any) {
            let parts = parts.iter().map(|part| kinds_of(part, root, strings, left, depth - 1));
            kinds = kinds.and(parts.fold(Kinds::NONE, Kinds::or));
        }
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        kinds = kinds.and(kinds_of(part, root, strings, left, depth - 1));
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        kinds = kinds.or(Kinds::of([Kind::Null]));
    }
    kinds
}

/// The value that `text` is as JSON, white space outside strings left out.
fn json(text: &str) -> Option<Literal<'_>> {
    let value: Value = serde_json::from_str(text).ok()?;
    // Numbers are kept as they are written, so that none loses digits.
    let kind = match Kind::of(&value) {
        Kind::Integer | Kind::Number if text.contains(['.', 'e', 'E']) => Kind::Number,
        Kind::Integer | Kind::Number => Kind::Integer,
        kind => kind,
    };
    let (mut in_string, mut escaped) = (false, false);
    let compact = text.chars().filter(|&c| {
        let kept = in_string || !super::is_space(c);
        in_string ^= c == '"' && !escaped;
        escaped = c == '\\' && in_string && !escaped;
        kept
    });
    let json = compact.collect();
    Some(Literal { kind, json, text })
}
