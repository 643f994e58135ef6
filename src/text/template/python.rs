//! Values as Python shows them: `str`, `repr` and `json.dumps`.

use super::budget::Budget;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// A string under construction whose growth is counted.
pub(super) struct Text<'a> {
    text: String,
    budget: &'a Budget,
    counted: usize,
}

/// Bytes between two looks at the budget.
const COUNT_EVERY: usize = 4096;

impl<'a> Text<'a> {
    pub fn new(budget: &'a Budget) -> Self {
        Text { text: String::new(), budget, counted: 0 }
    }

    pub fn push(&mut self, s: &str) -> Result<(), Error> {
        if self.text.len() + s.len() - self.counted > COUNT_EVERY {
            self.budget.build(self.text.len() + s.len())?;
            self.counted = self.text.len() + s.len();
        }
        self.text.push_str(s);
        Ok(())
    }

    pub fn finish(self) -> String {
        self.text
    }
}

/// `str(value)`; undefined is empty.
pub(super) fn text_of(budget: &Budget, value: &Value) -> Result<String, Error> {
    if let Some(s) = value.as_str() {
        budget.build(s.len())?;
        return Ok(s.to_owned());
    }
    budget.read(value)?;
    let mut out = Text::new(budget);
    if !value.is_undefined() {
        repr(&mut out, value)?;
    }
    Ok(out.finish())
}

/// Appends `repr(value)`. The value's depth was checked before.
fn repr(out: &mut Text, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::None => out.push("None"),
        ValueKind::Bool => out.push(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push(&number(value)),
        ValueKind::String => repr_string(out, value.as_str().unwrap_or("")),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push("[")?;
            for (i, item) in value.try_iter()?.enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(out, &item)?;
            }
            out.push("]")
        }
        ValueKind::Map => {
            out.push("{")?;
            for (i, (key, item)) in pairs(value).enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                repr(out, &key)?;
                out.push(": ")?;
                repr(out, &item)?;
            }
            out.push("}")
        }
        _ => out.push(&value.to_string()),
    }
}

/// Pairs of a mapping in order; none for anything else.
pub(super) fn pairs(value: &Value) -> Box<dyn Iterator<Item = (Value, Value)> + '_> {
    match value.as_object().and_then(|o| o.try_iter_pairs()) {
        Some(pairs) => Box::new(pairs),
        None => Box::new(std::iter::empty()),
    }
}

fn repr_string(out: &mut Text, s: &str) -> Result<(), Error> {
    let quote = if s.contains('\'') && !s.contains('"') { "\"" } else { "'" };
    out.push(quote)?;
    let mut buffer = [0; 4];
    for c in s.chars() {
        match c {
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            c if quote == "'" && c == '\'' => out.push("\\'")?,
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) => {
                out.push(&format!("\\x{:02x}", c as u32))?
            }
            c => out.push(c.encode_utf8(&mut buffer))?,
        }
    }
    out.push(quote)
}

/// A number as Python writes it.
pub(super) fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `repr(float)`: the shortest digits, an exponent below 1e-4 and from 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let magnitude = x.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |e| ("-", e));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{x:?}")
}

/// How `json.dumps` is to write.
pub(super) struct JsonStyle {
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ascii: bool,
    /// A character that is written as it is, also with `ascii`.
    pub mark: Option<char>,
}

/// `json.dumps(value)`.
pub(super) fn json(budget: &Budget, value: &Value, style: &JsonStyle) -> Result<String, Error> {
    budget.read(value)?;
    let mut out = Text::new(budget);
    json_value(&mut out, value, style, 0)?;
    Ok(out.finish())
}

fn json_value(out: &mut Text, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push("null"),
        ValueKind::Bool => out.push(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push(match number(value).as_str() {
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            other => other,
        }),
        ValueKind::String => json_string(out, value.as_str().unwrap_or(""), style),
        ValueKind::Seq | ValueKind::Iterable => json_list(out, value, style, depth),
        ValueKind::Map => json_map(out, value, style, depth),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a value of type {kind} is not JSON"))),
    }
}

fn line_break(out: &mut Text, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if let Some(indent) = &style.indent {
        out.push("\n")?;
        for _ in 0..depth {
            out.push(indent)?;
        }
    }
    Ok(())
}

fn json_list(out: &mut Text, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    out.push("[")?;
    let mut any = false;
    for item in value.try_iter()? {
        out.push(if any { &style.item_separator } else { "" })?;
        line_break(out, style, depth + 1)?;
        json_value(out, &item, style, depth + 1)?;
        any = true;
    }
    if any {
        line_break(out, style, depth)?;
    }
    out.push("]")
}

fn json_map(out: &mut Text, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    out.push("{")?;
    let mut items: Vec<(Value, Value)> = pairs(value).collect();
    if style.sort_keys {
        items.sort_by(|a, b| a.0.cmp(&b.0));
    }
    let any = !items.is_empty();
    for (i, (key, item)) in items.into_iter().enumerate() {
        out.push(if i > 0 { &style.item_separator } else { "" })?;
        line_break(out, style, depth + 1)?;
        match key.kind() {
            ValueKind::String => json_string(out, key.as_str().unwrap_or(""), style)?,
            ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                out.push("\"")?;
                json_value(out, &key, style, depth)?;
                out.push("\"")?;
            }
            kind => return Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a key of type {kind}"))),
        }
        out.push(&style.key_separator)?;
        json_value(out, &item, style, depth + 1)?;
    }
    if any {
        line_break(out, style, depth)?;
    }
    out.push("}")
}

fn json_string(out: &mut Text, s: &str, style: &JsonStyle) -> Result<(), Error> {
    out.push("\"")?;
    let mut plain = 0;
    for (i, c) in s.char_indices() {
        let escaped = match c {
            '"' => "\\\"".to_string(),
            '\\' => "\\\\".to_string(),
            '\n' => "\\n".to_string(),
            '\r' => "\\r".to_string(),
            '\t' => "\\t".to_string(),
            '\u{8}' => "\\b".to_string(),
            '\u{c}' => "\\f".to_string(),
            c if (c as u32) < 0x20 => format!("\\u{:04x}", c as u32),
            c if style.ascii && c as u32 > 0x7e && style.mark != Some(c) => {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => continue,
        };
        out.push(&s[plain..i])?;
        out.push(&escaped)?;
        plain = i + c.len_utf8();
    }
    out.push(&s[plain..])?;
    out.push("\"")
}
