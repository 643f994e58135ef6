mod template;
pub use template::{ChatTemplate, SpecialTokens, choose_template, special_tokens};
