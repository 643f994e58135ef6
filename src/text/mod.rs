//! Text in and out: chat JSON through the template to tokens, and a reply's tokens to whole characters and tool calls.

mod chat;
mod reply;
mod stops;
mod template;
mod tokenizer;
mod tools;

pub use chat::{MAX_MEDIA_TOKENS, MediaText, MediaTokens, Prompt, RenderContext, media_run, render, render_text};
pub use reply::{Piece, ReplyFilter, reasoning_open};
pub use stops::{MAX_STOP_BYTES, MAX_STOPS, check_stop};
pub use template::{ChatTemplate, Clock, MAX_TEMPLATE_BYTES, SpecialTokens, choose_template, special_tokens};
pub use tokenizer::{MAX_TOKENIZER_BYTES, MAX_VOCAB, Tokenizer};
pub use tools::{MAX_BLOCK_CALLS, MAX_CALL_BYTES, ToolSchemas};
