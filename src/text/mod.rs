//! Text in and out: chat JSON through the template to tokens, and a reply's tokens to whole characters.

mod chat;
mod reply;
mod template;
mod tokenizer;

pub use chat::{Prompt, render, render_with_media};
pub use reply::{MAX_STOP_BYTES, MAX_STOPS, Piece, REASONING_CLOSE, REASONING_OPEN, ReplyFilter, check_stop};
pub use template::{ChatTemplate, Clock, SpecialTokens, choose_template, special_tokens};
pub use tokenizer::{Tokenizer, detokenize};
