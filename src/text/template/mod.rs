//! Chat templates: Jinja as `transformers` sets it up, in bounded time and memory.

mod bounded;
mod budget;
mod date;
mod filters;
mod methods;
mod ops;
mod python;

pub use date::Clock;

use crate::error::{Code, Error, Result};
use budget::Budget;
use minijinja::machinery::{CodeGenerator, Token, Vm, WhitespaceConfig, ast, make_string_output, parse, tokenize};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Longest template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;
/// Most tokens of one tag: its expression may nest as deep.
const MAX_TAG_TOKENS: usize = 2048;
/// Most `elif` of a template: each nests in the one before.
const MAX_ELIFS: usize = 128;
/// Deepest stack of loops, blocks and macro calls.
const MAX_FRAMES: usize = 160;
/// Longest message of a template's own error, in bytes.
const MAX_MESSAGE_BYTES: usize = 2048;

/// The spellings a template sees as `bos_token`, `eos_token`, `pad_token`; absent ones are not defined in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// First token of a chat.
    pub bos: Option<String>,
    /// Last token of a turn.
    pub eos: Option<String>,
    /// Padding.
    pub pad: Option<String>,
}

/// A checked chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    file: String,
    special: SpecialTokens,
}

const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

impl ChatTemplate {
    /// Checks a template's syntax. `file` names it in errors. Fails with `Template`, or `Limit` over 256 KiB.
    pub fn load(source: &str, file: &str, special: SpecialTokens) -> Result<ChatTemplate> {
        if source.len() > MAX_TEMPLATE_BYTES {
            let found = source.len();
            return Err(Error::new(
                Code::Limit,
                format!("{file}: the template has {found} bytes, more than {MAX_TEMPLATE_BYTES}"),
            ));
        }
        let source = without_generation_tags(source).into_owned();
        let template = ChatTemplate { source, file: file.to_owned(), special };
        template.guarded(|| template.parsed().map(|_| ()))?;
        Ok(template)
    }

    /// Whether the template's source has this character.
    pub fn contains(&self, c: char) -> bool {
        self.source.contains(c)
    }

    /// The spellings given to `load`.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Renders with `variables` (and the special tokens, unless named there). `mark` is a character that `tojson` never
    /// escapes. Fails with `Template` and the line; always ends, within limits of work, memory and output.
    pub fn render(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        mark: Option<char>,
        clock: &Clock,
    ) -> Result<String> {
        self.guarded(|| self.render_unguarded(variables, mark, clock))
    }

    /// The template engine is not ours: a panic in it is an error of this template.
    fn guarded<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
            Err(Error::new(Code::Template, format!("{}: the template engine failed on this template", self.file)))
        })
    }

    fn parsed(&self) -> Result<ast::Stmt<'_>> {
        self.check_tags()?;
        let parsed = parse(&self.source, &self.file, Default::default(), WHITESPACE).map_err(|e| self.error(&e))?;
        bounded::bounded(&parsed).map_err(|e| Error::new(Code::Template, format!("{}: {e}", self.file)))
    }

    /// The parser recurses along chains that it does not bound itself.
    fn check_tags(&self) -> Result<()> {
        let (mut in_tag, mut elifs) = (0, 0);
        for token in tokenize(&self.source, false, Default::default(), WHITESPACE) {
            match token.map_err(|e| self.error(&e))?.0 {
                Token::BlockStart | Token::VariableStart => in_tag = 0,
                Token::Ident("elif") => elifs += 1,
                _ => {}
            }
            in_tag += 1;
            if in_tag > MAX_TAG_TOKENS {
                return Err(Error::new(
                    Code::Template,
                    format!("{}: a tag has more than {MAX_TAG_TOKENS} tokens", self.file),
                ));
            }
            if elifs > MAX_ELIFS {
                return Err(Error::new(Code::Template, format!("{}: more than {MAX_ELIFS} elif", self.file)));
            }
        }
        Ok(())
    }

    fn render_unguarded(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
        mark: Option<char>,
        clock: &Clock,
    ) -> Result<String> {
        let parsed = self.parsed()?;
        let mut generator = CodeGenerator::new(&self.file, &self.source);
        generator.compile_stmt(&parsed);
        let (instructions, blocks) = generator.finish();
        let mut env = Environment::empty();
        env.set_fuel(Some(budget::MAX_STEPS));
        env.set_recursion_limit(MAX_FRAMES);
        let budget = Arc::new(Budget::default());
        filters::install(&mut env, &budget, *clock, mark);
        let root = Value::from_serialize(self.with_special_tokens(variables));
        let mut out = String::new();
        let mut output = make_string_output(&mut out);
        let result = Vm::new(&env).eval(&instructions, root, &blocks, &mut output, AutoEscape::None).map(|_| ());
        result.map_err(|e| self.error(&e))?;
        Ok(out)
    }

    fn with_special_tokens<'a>(
        &'a self,
        variables: &'a serde_json::Map<String, serde_json::Value>,
    ) -> Cow<'a, serde_json::Map<String, serde_json::Value>> {
        let mut all = Cow::Borrowed(variables);
        let special = &self.special;
        for (name, token) in [("bos_token", &special.bos), ("eos_token", &special.eos), ("pad_token", &special.pad)] {
            if let (Some(token), false) = (token, variables.contains_key(name)) {
                all.to_mut().insert(name.to_owned(), token.clone().into());
            }
        }
        all
    }

    fn error(&self, error: &minijinja::Error) -> Error {
        let mut innermost = error;
        while let Some(source) = std::error::Error::source(innermost).and_then(|s| s.downcast_ref()) {
            innermost = source;
        }
        let line = error.line().map_or(String::new(), |line| format!("line {line}: "));
        let detail = match (innermost.kind(), innermost.detail()) {
            (ErrorKind::OutOfFuel, None) => format!("the template takes more than {} steps", budget::MAX_STEPS),
            (ErrorKind::UndefinedError, None) => "an undefined value is used".to_owned(),
            (kind, None) => kind.to_string(),
            (_, Some(detail)) => {
                let end = (0..=detail.len().min(MAX_MESSAGE_BYTES)).rev().find(|&i| detail.is_char_boundary(i));
                detail[..end.unwrap_or(0)].to_owned()
            }
        };
        Error::new(Code::Template, format!("{}: {line}{detail}", self.file))
    }
}

/// `{% generation %}` marks a part for training; here it is a plain block.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(source);
    for (tag, plain) in [("generation", "if true"), ("endgeneration", "endif")] {
        if !out.contains(tag) {
            continue;
        }
        let mut text = String::with_capacity(out.len());
        let mut rest: &str = &out;
        while let Some(start) = rest.find("{%") {
            let (before, tag_on) = rest.split_at(start + 2);
            text.push_str(before);
            rest = tag_on;
            let inner = rest.trim_start_matches(['-', '+']).trim_start();
            let head = rest.len() - inner.len();
            if let Some(after) = inner.strip_prefix(tag)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                text.push_str(&rest[..head]);
                text.push_str(plain);
                rest = after;
            }
        }
        text.push_str(rest);
        out = Cow::Owned(text);
    }
    out
}

/// The template of a checkpoint folder from the contents of `chat_template.jinja` and `tokenizer_config.json`: the
/// first wins. Gives the source and the file it came from; `None` where neither has one. In the config it is a string
/// or a list of `{"name", "template"}`, of which the one called `default` is taken.
pub fn choose_template(jinja: Option<&str>, tokenizer_config: Option<&str>) -> Result<Option<(String, &'static str)>> {
    if let Some(jinja) = jinja {
        return Ok(Some((jinja.to_owned(), "chat_template.jinja")));
    }
    let file = "tokenizer_config.json";
    let Some(config) = tokenizer_config else { return Ok(None) };
    let config = config_object(config, file)?;
    let wrong = |what: &str| Error::new(Code::Format, format!("{file}: chat_template: {what}"));
    match config.get("chat_template") {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(source)) => Ok(Some((source.clone(), file))),
        Some(serde_json::Value::Array(list)) => {
            let default = list.iter().find(|t| t.get("name").and_then(|n| n.as_str()) == Some("default"));
            let entry = default.ok_or_else(|| wrong("no template of the list is called default"))?;
            let source = entry.get("template").and_then(|t| t.as_str());
            Ok(Some((source.ok_or_else(|| wrong("the default template is not a string"))?.to_owned(), file)))
        }
        Some(_) => Err(wrong("expected a string or a list")),
    }
}

/// The special tokens a `tokenizer_config.json` names, as strings or as objects with `content`.
pub fn special_tokens(tokenizer_config: &str) -> Result<SpecialTokens> {
    let file = "tokenizer_config.json";
    let config = config_object(tokenizer_config, file)?;
    let token = |name: &str| match config.get(name) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(s)) => Ok(Some(s.clone())),
        Some(other) => match other.get("content").and_then(|c| c.as_str()) {
            Some(s) => Ok(Some(s.to_owned())),
            None => Err(Error::new(Code::Format, format!("{file}: {name}: expected a string"))),
        },
    };
    Ok(SpecialTokens { bos: token("bos_token")?, eos: token("eos_token")?, pad: token("pad_token")? })
}

fn config_object(text: &str, file: &str) -> Result<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_str(text).map_err(|e| Error::new(Code::Format, format!("{file}: {e}")))
}
