//! The model as data: a flat list of ops over named buffers and weights.
//!
//! An op holds no row count. Rows arrive at run time in a [`crate::backend::Round`].

use std::fmt;
use std::ops::Range;

/// Most values of a head.
pub const MAX_HEAD_DIM: usize = 512;
/// Most taps of a short convolution.
pub const MAX_TAPS: usize = 32;

/// Index of a [`Buffer`] in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// Index of a [`WeightSpec`] in [`Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightId(pub usize);

/// Index of an [`AttentionShape`] in [`Plan::attentions`], counting attention layers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttentionId(pub usize);

/// Index of a [`ConvShape`] in [`Plan::convs`], counting conv layers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConvId(pub usize);

/// Index of a [`Store`] in [`Plan::stores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub usize);

/// Which of a round's rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// Every row of the round.
    All,
    /// Only the rows whose logits are wanted, in the round's order.
    Wanted,
}

/// One float32 row of `width` values per row of the round.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name for printing and taps.
    pub name: &'static str,
    /// Values per row.
    pub width: usize,
    /// Which rows it has.
    pub rows: RowSet,
}

/// Float32 rows of a whole picture, kept by position from one stage to the next.
#[derive(Clone, Debug)]
pub struct Store {
    /// Name for printing.
    pub name: &'static str,
    /// Values per row.
    pub width: usize,
}

/// Ops that run together over a window of rows. A stage may read what the stages before it stored of any row of the
/// picture; of what it stores itself, only the rows it runs over.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Its part of [`Plan::ops`].
    pub ops: Range<usize>,
    /// Rows of the grid that one of its rows stands for: 1, or `merge * merge` behind the merge.
    pub grid_rows: usize,
}

/// A weight the plan needs: `rows` x `cols` in row order (a vector has one column).
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Accepted tensor names, without the checkpoint's prefix, as released first.
    pub names: Vec<String>,
    /// Output rows (vector length, channels).
    pub rows: usize,
    /// Input columns (1 for vectors, taps for convolutions).
    pub cols: usize,
    /// How it is used.
    pub role: WeightRole,
}

/// How a weight is used, which decides how a backend stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRole {
    /// Multiplied with activations, perhaps quantized; may also be an embedding table.
    Matrix,
    /// A norm's weight or a bias.
    Vector,
    /// Depthwise convolution taps: `rows` channels of `cols` taps, the last tap on the newest row.
    Taps,
    /// Depthwise taps over a grid: `rows` channels of a square kernel's `cols` taps, row by row from the top left.
    GridTaps,
}

/// One attention layer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head `h` reads `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Keys with `position > query - window` are visible; `None` sees all earlier ones.
    pub window: Option<usize>,
    /// Later keys are visible too: every row of the lane's grid, which earlier stages stored. `window` is `None`.
    pub bidirectional: bool,
}

/// One short-convolution layer.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Channels.
    pub width: usize,
    /// Taps; the state is the last `taps - 1` columns of `B * x`.
    pub taps: usize,
}

/// One step of the forward pass. Buffers named twice are updated in place.
#[derive(Clone, Debug)]
pub enum Op {
    /// `out = table[token]`, dequantized; where the row is given as values, those.
    Embed {
        /// The table, vocab x hidden.
        table: WeightId,
        /// Hidden rows.
        out: BufferId,
    },
    /// `out` = the values the row is given as.
    Input {
        /// As wide as the values.
        out: BufferId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight` over the whole row; `x` may be `out`.
    RmsNorm {
        /// Input.
        x: BufferId,
        /// Vector of the row's width.
        weight: WeightId,
        /// Output, same width.
        out: BufferId,
    },
    /// `x = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias` over the whole row, in place.
    LayerNorm {
        /// Rows.
        x: BufferId,
        /// Vector of the row's width.
        weight: WeightId,
        /// Vector of the row's width.
        bias: WeightId,
        /// Epsilon.
        eps: f32,
    },
    /// `out[n] = sum over k of weight[n][k] * x[k] (+ bias[n])`.
    Matmul {
        /// Input, `cols` wide.
        x: BufferId,
        /// `rows` x `cols`.
        weight: WeightId,
        /// Vector of `rows`.
        bias: Option<WeightId>,
        /// Output, `rows` wide.
        out: BufferId,
    },
    /// RMS norm of each head by itself, in place.
    HeadNorm {
        /// `heads * head_dim` wide.
        x: BufferId,
        /// Vector of head_dim.
        weight: WeightId,
    },
    /// Rotate-half position encoding of each head, in place.
    Rope {
        /// `heads * head_dim` wide.
        x: BufferId,
        /// Index in [`Plan::ropes`].
        rope: usize,
    },
    /// Rotate-half position encoding of each head by the row's place in its grid, in place: of the `head_dim / 2` pairs
    /// the first half turns by the grid's row, the second half by its column.
    GridRope {
        /// `heads * head_dim` wide.
        x: BufferId,
        /// Index in [`Plan::ropes`]; `head_dim / 4` values there.
        rope: usize,
    },
    /// Rounds keys and values to f16 and stores them in the row's stream's pages at its position.
    StoreKv {
        /// Keys, `kv_heads * head_dim`.
        k: BufferId,
        /// Values, `kv_heads * head_dim`.
        v: BufferId,
        /// Which layer's pages.
        layer: AttentionId,
    },
    /// Softmax attention over the stored keys visible to each row, scores scaled by `head_dim^-1/2`; `q` may be `out`.
    Attend {
        /// Queries, `heads * head_dim`.
        q: BufferId,
        /// Which layer's pages.
        layer: AttentionId,
        /// Output, `heads * head_dim`.
        out: BufferId,
    },
    /// Each head times `sigmoid(gate[head])`, in place.
    HeadGate {
        /// `heads * head_dim` wide.
        x: BufferId,
        /// `heads` wide.
        gate: BufferId,
    },
    /// `g = B * x; out = C * (bias + sum over j of taps[j] * g[row - (taps-1) + j])`, earlier rows from the stream's
    /// state.
    ShortConv {
        /// B, C, x side by side: `3 * width`.
        bcx: BufferId,
        /// Channels x taps.
        taps: WeightId,
        /// Vector of channels.
        bias: Option<WeightId>,
        /// Which layer's state.
        layer: ConvId,
        /// Output, `width`.
        out: BufferId,
    },
    /// Of B, C, x side by side, stores `B * x` and C.
    StoreGated {
        /// B, C, x: `3 * width`.
        bcx: BufferId,
        /// Gets `B * x`.
        gated: StoreId,
        /// Gets C.
        gates: StoreId,
    },
    /// `out = C * sum over the kernel of taps * (B * x)`, over the grid in raster order with zeros around it.
    GridConv {
        /// `B * x` of every row of the grid.
        gated: StoreId,
        /// C of the row.
        gates: StoreId,
        /// Channels x taps, [`WeightRole::GridTaps`].
        taps: WeightId,
        /// Output, `width`.
        out: BufferId,
    },
    /// Stores the rows of `x`.
    Save {
        /// As wide as the store.
        x: BufferId,
        /// Gets them at their positions.
        store: StoreId,
    },
    /// `out` = rows of the store: where it is `n` times as wide, row `r` is the store's rows `r * n .. (r + 1) * n`
    /// side by side.
    Load {
        /// Where from.
        store: StoreId,
        /// A multiple of the store's width.
        out: BufferId,
    },
    /// `x = x / 2 * (1 + erf(x / sqrt(2)))`, in place.
    Gelu {
        /// Rows.
        x: BufferId,
    },
    /// `out = silu(gate) * up`; `gate` may be `out`.
    SwiGlu {
        /// Gate rows (w1).
        gate: BufferId,
        /// Up rows (w3).
        up: BufferId,
        /// Output, same width.
        out: BufferId,
    },
    /// `to += x`.
    Add {
        /// What is added.
        x: BufferId,
        /// Updated in place.
        to: BufferId,
    },
    /// Copies the wanted rows of `x`.
    Gather {
        /// A buffer with all rows.
        x: BufferId,
        /// A buffer with the wanted rows.
        out: BufferId,
    },
}

/// The whole forward pass.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Buffers by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// Weights by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// Ops in order.
    pub ops: Vec<Op>,
    /// Parts of the ops that rounds run one by one; none means that a round runs all ops.
    pub stages: Vec<Stage>,
    /// What stages keep of a picture, by [`StoreId`].
    pub stores: Vec<Store>,
    /// Inverse frequencies of each rope in use, `head_dim / 2` float32 values, zeros where nothing rotates.
    pub ropes: Vec<Vec<f32>>,
    /// Attention layers by [`AttentionId`].
    pub attentions: Vec<AttentionShape>,
    /// Conv layers by [`ConvId`].
    pub convs: Vec<ConvShape>,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// `(op index, buffer)`: after `op index` ops the buffer holds the embeddings, then each layer's output,
    /// then the final norm.
    pub taps: Vec<(usize, BufferId)>,
    /// The buffer of logits, one row per wanted row.
    pub logits: Option<BufferId>,
    /// The buffer the last stage leaves its rows in.
    pub output: Option<BufferId>,
}

impl Plan {
    /// Adds a buffer.
    pub fn buffer(&mut self, name: &'static str, width: usize, rows: RowSet) -> BufferId {
        self.buffers.push(Buffer { name, width, rows });
        BufferId(self.buffers.len() - 1)
    }

    /// Adds a weight.
    pub fn weight(&mut self, names: Vec<String>, rows: usize, cols: usize, role: WeightRole) -> WeightId {
        self.weights.push(WeightSpec { names, rows, cols, role });
        WeightId(self.weights.len() - 1)
    }

    /// Adds a store.
    pub fn store(&mut self, name: &'static str, width: usize) -> StoreId {
        self.stores.push(Store { name, width });
        StoreId(self.stores.len() - 1)
    }

    /// Ops of stage `index`; all of them where the plan has no stages.
    pub fn stage_ops(&self, index: usize) -> Range<usize> {
        self.stages.get(index).map_or(0..self.ops.len(), |stage| stage.ops.clone())
    }

    /// Values per row of `id`.
    pub fn width(&self, id: BufferId) -> usize {
        self.buffers[id.0].width
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = |id: &BufferId| format!("{}[{}]", self.buffers[id.0].name, self.buffers[id.0].width);
        let w = |id: &WeightId| self.weights[id.0].names[0].clone();
        let s = |id: &StoreId| format!("store {}[{}]", self.stores[id.0].name, self.stores[id.0].width);
        let opt = |id: &Option<WeightId>| id.as_ref().map(|id| format!(" + {}", w(id))).unwrap_or_default();
        for (i, op) in self.ops.iter().enumerate() {
            if self.stages.iter().any(|stage| stage.ops.start == i) {
                writeln!(f)?;
            }
            write!(f, "{i:4}  ")?;
            match op {
                Op::Embed { table, out } => writeln!(f, "{} = embed {}", b(out), w(table)),
                Op::Input { out } => writeln!(f, "{} = the row's values", b(out)),
                Op::RmsNorm { x, weight, out } => writeln!(f, "{} = rms_norm {} * {}", b(out), b(x), w(weight)),
                Op::LayerNorm { x, weight, bias, .. } => {
                    writeln!(f, "{} = layer_norm * {} + {}", b(x), w(weight), w(bias))
                }
                Op::Matmul { x, weight, bias, out } => {
                    writeln!(f, "{} = {} x {}{}", b(out), w(weight), b(x), opt(bias))
                }
                Op::HeadNorm { x, weight } => writeln!(f, "{} = head_norm * {}", b(x), w(weight)),
                Op::Rope { x, rope } => writeln!(f, "{} = rope {rope}", b(x)),
                Op::GridRope { x, rope } => writeln!(f, "{} = grid_rope {rope}", b(x)),
                Op::StoreKv { k, v, layer } => writeln!(f, "kv {} = {}, {}", layer.0, b(k), b(v)),
                Op::Attend { q, layer, out } => writeln!(f, "{} = attend {} over kv {}", b(out), b(q), layer.0),
                Op::HeadGate { x, gate } => writeln!(f, "{} *= sigmoid {}", b(x), b(gate)),
                Op::ShortConv { bcx, taps, bias, layer, out } => {
                    writeln!(f, "{} = short_conv {} * {}{}, state {}", b(out), b(bcx), w(taps), opt(bias), layer.0)
                }
                Op::StoreGated { bcx, gated, gates } => {
                    writeln!(f, "{}, {} = gated {}", s(gated), s(gates), b(bcx))
                }
                Op::GridConv { gated, gates, taps, out } => {
                    writeln!(f, "{} = {} * grid_conv {} * {}", b(out), s(gates), s(gated), w(taps))
                }
                Op::Save { x, store } => writeln!(f, "{} = {}", s(store), b(x)),
                Op::Load { store, out } => writeln!(f, "{} = {}", b(out), s(store)),
                Op::Gelu { x } => writeln!(f, "{} = gelu", b(x)),
                Op::SwiGlu { gate, up, out } => writeln!(f, "{} = silu {} * {}", b(out), b(gate), b(up)),
                Op::Add { x, to } => writeln!(f, "{} += {}", b(to), b(x)),
                Op::Gather { x, out } => writeln!(f, "{} = wanted rows of {}", b(out), b(x)),
            }?;
        }
        Ok(())
    }
}
