//! config.json and generation_config.json: what they must say, checked.

/// The operator of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Short convolution.
    Conv,
    /// Attention over everything before.
    FullAttention,
    /// Attention over the last `sliding_window` positions.
    SlidingAttention,
}

/// A rope's base and the part of the pairs that rotate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base.
    pub theta: f64,
    /// 1 for all pairs; less means the proportional layout, whatever `rope_type` says.
    pub partial: f64,
}

/// The text model's shape.
#[derive(Clone, Debug)]
pub struct TextConfig {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of a hidden row.
    pub hidden: usize,
    /// Width of the feed-forward.
    pub ffn: usize,
    /// One kind a layer.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// conv_L_cache.
    pub taps: usize,
    /// Biases on the conv and its projections.
    pub conv_bias: bool,
    /// Biases on the attention projections.
    pub attention_bias: bool,
    /// sliding_window, counting the token itself.
    pub window: usize,
    /// RMS norm epsilon.
    pub norm_eps: f64,
    /// The two post norms.
    pub sandwich: bool,
    /// The per-head output gate.
    pub gate: bool,
    /// Whether logits use the embedding table.
    pub tied: bool,
    /// max_position_embeddings.
    pub max_positions: usize,
    /// Rope of full-attention layers.
    pub rope_full: RopeConfig,
    /// Rope of sliding layers.
    pub rope_sliding: RopeConfig,
}
