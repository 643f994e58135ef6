//! Text in and out: chat JSON through the template to tokens, and a reply's tokens to whole characters.

mod chat;
mod reply;
mod template;
mod tokenizer;

pub use chat::{Prompt, render, render_with_media};
pub use reply::{MAX_STOP_BYTES, MAX_STOPS, Piece, ReplyFilter, check_stop, reasoning_open};
pub use template::{ChatTemplate, Clock, MAX_TEMPLATE_BYTES, SpecialTokens, choose_template, special_tokens};
pub use tokenizer::{MAX_TOKENIZER_BYTES, MAX_VOCAB, Tokenizer};
