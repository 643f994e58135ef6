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
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/text").join(name)).unwrap()
}

/// The demo checkpoint's tokenizer.
pub fn demo_tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::load(&checkpoint_file("tokenizer.json"), "tokenizer.json").unwrap())
}

/// Numbers for tests: xorshift64*.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}
