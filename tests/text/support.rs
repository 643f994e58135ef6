//! What the text tests share.

use lfm3::text::Tokenizer;
use std::path::PathBuf;
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
