//! Python's literals to JSON: numbers, strings, True, False, None, lists, dicts. JSON's true, false and null pass too.

use super::schema::Kind;
use super::{MAX_NAME_BYTES, MAX_VALUE_DEPTH, is_space};

/// A value as it was written.
pub(super) struct Literal<'a> {
    pub kind: Kind,
    /// The same as JSON.
    pub json: String,
    /// As written.
    pub text: &'a str,
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The value that `text` is, white space around it aside.
pub(super) fn whole(text: &str) -> Option<Literal<'_>> {
    let mut reader = Reader::new(text);
    let literal = reader.literal()?;
    reader.is_at_end().then_some(literal)
}

/// Reads names, marks and literals; white space before each is passed over.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Self {
        Reader { text, at: 0 }
    }

    /// Whether nothing follows.
    pub fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    /// Passes over `c`, if it comes next.
    pub fn take_if(&mut self, c: char) -> bool {
        self.skip_space();
        let there = self.rest().starts_with(c);
        self.at += if there { c.len_utf8() } else { 0 };
        there
    }

    /// Passes over `c`, which must come next.
    pub fn expect(&mut self, c: char) -> Option<()> {
        self.take_if(c).then_some(())
    }

    /// The name of a tool or a parameter.
    pub fn name(&mut self) -> Option<&'a str> {
        self.skip_space();
        let part_of = |c: char| !c.is_whitespace() && !c.is_control() && !"()[]{}<>,='\"`\\".contains(c);
        let name = self.take_while(part_of);
        (1..=MAX_NAME_BYTES).contains(&name.len()).then_some(name)
    }

    /// A value.
    pub fn literal(&mut self) -> Option<Literal<'a>> {
        self.skip_space();
        let (start, mut json) = (self.at, String::new());
        let kind = self.value(&mut json, MAX_VALUE_DEPTH)?;
        Some(Literal { kind, json, text: &self.text[start..self.at] })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest().chars().next()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn skip_space(&mut self) {
        self.take_while(is_space);
    }

    fn take_while(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !of(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// Appends the next value to `json`; lists and dicts may nest `depth` deep.
    fn value(&mut self, json: &mut String, depth: usize) -> Option<Kind> {
        self.skip_space();
        match self.rest().chars().next()? {
            '"' | '\'' => {
                json.push_str(&quoted(&self.string()?));
                Some(Kind::String)
            }
            '[' => self.items(json, depth, ['[', ']'], Self::item).map(|()| Kind::Array),
            '{' => self.items(json, depth, ['{', '}'], Self::entry).map(|()| Kind::Object),
            '0'..='9' | '.' | '-' | '+' => self.number(json),
            _ => {
                let (kind, word) = match self.take_while(|c| c.is_ascii_alphanumeric() || c == '_') {
                    "True" | "true" => (Kind::Boolean, "true"),
                    "False" | "false" => (Kind::Boolean, "false"),
                    "None" | "null" => (Kind::Null, "null"),
                    _ => return None,
                };
                json.push_str(word);
                Some(kind)
            }
        }
    }

    /// A list or a dict.
    fn items(
        &mut self,
        json: &mut String,
        depth: usize,
        [open, close]: [char; 2],
        item: fn(&mut Self, &mut String, usize) -> Option<()>,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.expect(open)?;
        json.push(open);
        let mut first = true;
        while !self.take_if(close) {
            if !std::mem::take(&mut first) {
                json.push(',');
            }
            item(self, json, depth)?;
            if !self.take_if(',') {
                self.expect(close)?;
                break;
            }
        }
        json.push(close);
        Some(())
    }

    fn item(&mut self, json: &mut String, depth: usize) -> Option<()> {
        self.value(json, depth).map(drop)
    }

    fn entry(&mut self, json: &mut String, depth: usize) -> Option<()> {
        if self.value(json, 0)? != Kind::String {
            return None;
        }
        self.expect(':')?;
        json.push(':');
        self.value(json, depth).map(drop)
    }

    /// A decimal number as JSON writes it.
    fn number(&mut self, json: &mut String) -> Option<Kind> {
        let start = json.len();
        let sign = self.take_while(|c| c == '-' || c == '+');
        json.push_str(if sign == "-" { "-" } else { "" });
        let digits = |reader: &mut Self| {
            let taken = reader.take_while(|c| c.is_ascii_digit() || c == '_');
            let split = taken.starts_with('_') || taken.ends_with('_') || taken.contains("__");
            (!split).then(|| taken.replace('_', ""))
        };
        let (whole, mut fraction) = (digits(self)?, None);
        if self.rest().starts_with('.') {
            self.at += 1;
            fraction = Some(digits(self)?);
        }
        let empty = whole.is_empty() && fraction.as_ref().is_none_or(String::is_empty);
        if sign.len() > 1 || empty || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let or_zero = |digits: &str| if digits.is_empty() { "0".to_owned() } else { digits.to_owned() };
        json.push_str(&or_zero(&whole));
        if let Some(fraction) = &fraction {
            json.push('.');
            json.push_str(&or_zero(fraction));
        }
        let exponent = self.rest().starts_with(['e', 'E']);
        if exponent {
            self.at += 1;
            let sign = self.take_while(|c| c == '-' || c == '+');
            let digits = digits(self).filter(|digits| sign.len() <= 1 && !digits.is_empty())?;
            json.extend(["e", sign, &digits]);
        }
        let runs_on = self.rest().starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        if runs_on || !json[start..].parse::<f64>().ok()?.is_finite() {
            return None;
        }
        Some(if exponent || fraction.is_some() { Kind::Number } else { Kind::Integer })
    }

    /// A string in one or three quotes of either kind. Line breaks may stand in each.
    fn string(&mut self) -> Option<String> {
        let quote = self.next()?;
        let three: String = [quote; 3].iter().collect();
        let end = if self.rest().starts_with(&three[1..]) { three.as_str() } else { &three[..1] };
        self.at += end.len() - 1;
        let mut out = String::new();
        loop {
            if self.rest().starts_with(end) {
                self.at += end.len();
                return Some(out);
            }
            match self.next()? {
                '\\' => self.escape(&mut out)?,
                c => out.push(c),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self, out: &mut String) -> Option<()> {
        let c = self.next()?;
        let c = match c {
            '\n' => return Some(()),
            '\\' | '\'' | '"' => c,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            'x' => char::from_u32(self.hex(2)?)?,
            'u' => self.utf16()?,
            'U' => char::from_u32(self.hex(8)?)?,
            'N' => return None,
            '0'..='7' => {
                let mut code = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.rest().chars().next().and_then(|c| c.to_digit(8)) else { break };
                    code = code * 8 + digit;
                    self.at += 1;
                }
                char::from_u32(code)?
            }
            other => {
                out.push('\\');
                other
            }
        };
        out.push(c);
        Some(())
    }

    /// Four hexadecimal digits, or twice that for a pair of surrogates, as JSON has them.
    fn utf16(&mut self) -> Option<char> {
        let first = self.hex(4)?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.at += self.rest().starts_with("\\u").then_some(2)?;
        let second = self.hex(4)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + second)
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let taken = self.rest().get(..digits).filter(|s| s.bytes().all(|b| b.is_ascii_hexdigit()))?;
        self.at += digits;
        u32::from_str_radix(taken, 16).ok()
    }
}
