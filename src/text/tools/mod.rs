//! Tool calls in a reply: found while it streams, their arguments typed by the tools' schemas.
//!
//! Two forms. `xml` reads `<tool_call>`, with a tag for each parameter; `pythonic` reads the older one, a list of
//! Python calls between `<|tool_call_start|>` and `<|tool_call_end|>`, whose values `literal` reads. Each watches a
//! call grow, every character once, and says at once when it can be none. `schema` holds what the chat said of tools.

mod literal;
mod pythonic;
mod schema;
mod xml;

use pythonic::Block;
pub use schema::ToolSchemas;
use xml::Xml;

/// Longest call, or block of calls, in bytes as written.
pub const MAX_CALL_BYTES: usize = 1 << 20;
/// Most calls of one block.
pub const MAX_BLOCK_CALLS: usize = 256;
/// Longest name of a tool or a parameter, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// Deepest nesting of lists and objects in a value: as the JSON reader has it.
const MAX_VALUE_DEPTH: usize = 127;

/// What begins a call.
pub(super) const CALL_STARTS: [&str; 2] = [xml::START, pythonic::START];

/// A call that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The tool.
    pub name: String,
    /// A JSON object.
    pub arguments: String,
}

/// What one more character makes of an open call.
enum Seen {
    /// It goes on.
    More,
    /// It ended.
    End,
    /// It is none. The character, or the tag it belongs to, begins at this byte and may belong to something else.
    Not(usize),
}

/// What became of an open call.
pub(super) enum Outcome {
    /// It goes on.
    Open,
    /// It ended.
    Calls {
        /// In order, at least one.
        calls: Vec<Call>,
        /// As written.
        text: String,
    },
    /// It was none.
    None {
        /// Plain text.
        text: String,
        /// Follows it, a few characters, and is to be read anew.
        again: String,
    },
}

enum Form {
    Xml(Xml),
    Pythonic(Block),
}

/// A call that began and has not ended.
pub(super) struct OpenCall {
    text: String,
    form: Form,
}

impl OpenCall {
    /// A call that begins with `start`, one of [`CALL_STARTS`].
    pub fn new(start: &str) -> OpenCall {
        let form = if start == xml::START { Form::Xml(Xml::new()) } else { Form::Pythonic(Block::new()) };
        OpenCall { text: start.to_owned(), form }
    }

    /// Takes the next character.
    pub fn take(&mut self, c: char, tools: &ToolSchemas) -> Outcome {
        let at = self.text.len();
        self.text.push(c);
        let seen = match &mut self.form {
            Form::Xml(xml) => xml.take(c, at, &self.text),
            Form::Pythonic(block) => block.take(c, at, &self.text),
        };
        let none_from = match seen {
            Seen::Not(from) => from,
            _ if self.text.len() > MAX_CALL_BYTES => at,
            Seen::More => return Outcome::Open,
            Seen::End => match self.calls(tools) {
                Some(calls) => return Outcome::Calls { calls, text: std::mem::take(&mut self.text) },
                None => self.text.len(),
            },
        };
        let again = self.text.split_off(none_from);
        Outcome::None { text: std::mem::take(&mut self.text), again }
    }

    /// The text so far, of a call that never ended.
    pub fn into_text(self) -> String {
        self.text
    }

    fn calls(&self, tools: &ToolSchemas) -> Option<Vec<Call>> {
        match &self.form {
            Form::Xml(xml) => xml.call(&self.text, tools).map(|call| vec![call]),
            Form::Pythonic(_) => pythonic::calls(&self.text, tools),
        }
    }
}

/// How far a text agrees with one of several tags, of which none begins another.
pub(super) enum Tag {
    /// It is this one of them.
    Whole(usize),
    /// It begins one.
    Begun,
    /// It is none.
    None,
}

/// Compares `text`, never empty, with `tags`.
pub(super) fn tag(text: &str, tags: &[&str]) -> Tag {
    match tags.iter().position(|tag| tag.starts_with(text)) {
        Some(place) if tags[place].len() == text.len() => Tag::Whole(place),
        Some(_) => Tag::Begun,
        None => Tag::None,
    }
}

/// White space between the parts of a call.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Arguments as they come, to a JSON object.
#[derive(Default)]
struct Arguments {
    json: String,
    keys: std::collections::HashSet<String>,
}

impl Arguments {
    /// Adds `key` with its value as JSON; `None` where it was there.
    fn add(&mut self, key: &str, value: &str) -> Option<()> {
        self.json.push(if self.keys.is_empty() { '{' } else { ',' });
        self.json.push_str(&literal::quoted(key));
        self.json.push(':');
        self.json.push_str(value);
        self.keys.insert(key.to_owned()).then_some(())
    }

    fn finish(self) -> String {
        if self.keys.is_empty() { "{}".to_owned() } else { self.json + "}" }
    }
}
