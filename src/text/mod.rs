mod template;
mod tokenizer;
pub use template::{ChatTemplate, SpecialTokens, choose_template, special_tokens};
pub use tokenizer::{Tokenizer, detokenize};
