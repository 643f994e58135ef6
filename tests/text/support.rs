//! What the text tests share.

use lfm3::engine::Clock;
use lfm3::error::Result;
use lfm3::text::special_tokens;
use lfm3::text::{ChatTemplate, MediaText, MediaTokens, Prompt, RenderContext, Tokenizer, choose_template, render};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The folder beside the repository with checkpoints and oracle answers, where there is one.
pub fn shared() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    folder.join("oracle").is_dir().then_some(folder)
}

/// A file of the demo checkpoint.
pub fn checkpoint_file(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model").join(name)).unwrap()
}

/// The demo checkpoint's tokenizer.
pub fn demo_tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::load(&checkpoint_file("tokenizer.json"), "tokenizer.json").unwrap())
}

/// What a tokenizer calls the tokens around pictures.
pub fn media_tokens(tokenizer: &Tokenizer) -> MediaTokens {
    let id = |spelling: &str| tokenizer.id_of(spelling);
    MediaTokens {
        image: id("<|image|>"),
        video: id("<|video|>"),
        start: id("<|vision_start|>"),
        end: id("<|vision_end|>"),
    }
}

/// A chat through `template` and the demo's tokenizer.
pub fn rendered(json: &str, template: &ChatTemplate, media: &[MediaText]) -> Result<Prompt> {
    rendered_with(json, template, demo_tokenizer(), media)
}

/// A chat through `template` and `tokenizer`.
pub fn rendered_with(
    json: &str,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    media: &[MediaText],
) -> Result<Prompt> {
    let clock = Clock::default();
    render(json, &RenderContext { template, tokenizer, clock: &clock, media, media_tokens: media_tokens(tokenizer) })
}

/// The chat template of a checkpoint folder.
pub fn template_of(folder: &Path) -> ChatTemplate {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let (jinja, config) = (read("chat_template.jinja"), read("tokenizer_config.json"));
    let (source, file) = choose_template(jinja.as_deref(), config.as_deref()).unwrap().unwrap();
    ChatTemplate::load(&source, file, special_tokens(&config.unwrap()).unwrap()).unwrap()
}

/// The demo checkpoint's.
pub fn demo_template() -> ChatTemplate {
    template_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model"))
}
