//! (being written)

/// How to choose tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of likeliest tokens whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, if negative) logits of tokens seen within reach; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens seen within reach.
    pub presence_penalty: f32,
    /// Subtracted per occurrence within reach.
    pub frequency_penalty: f32,
    /// How many tokens back penalties look; `u32::MAX` is all.
    pub penalty_reach: u32,
    /// With the position, the key of every draw.
    pub seed: u64,
}
