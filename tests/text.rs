//! Text in and out: tokenizer, templates, chats, replies.

#[path = "text/chat.rs"]
mod chat;
#[path = "text/hostile.rs"]
mod hostile;
#[path = "text/media.rs"]
mod media;
#[path = "text/reply.rs"]
mod reply;
#[path = "common/rng.rs"]
mod rng;
#[path = "text/support.rs"]
mod support;
#[path = "text/template.rs"]
mod template;
#[path = "text/tokenizer.rs"]
mod tokenizer;
#[path = "text/tools.rs"]
mod tools;
