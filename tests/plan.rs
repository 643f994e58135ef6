//! The forward pass as printed: a change of the plan shows as a diff of tests/plans.

use lfm3::model::config::{Config, TextConfig};
use lfm3::model::forward::text_plan;
use lfm3::model::vision::vision_plan;
use lfm3::model::vision_config::{VisionConfig, VisionLayer};
use lfm3::plan::{AttentionId, BufferId, Op, Plan, RowSet, StoreId, WeightRole};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// LFM3-1.7B's config, as released.
fn full_size() -> TextConfig {
    let kind = |i: usize| match i % 4 {
        2 => "full_attention",
        0 if i > 0 => "sliding_attention",
        _ => "conv",
    };
    let layers: Vec<&str> = (0..24).map(kind).collect();
    let json = serde_json::json!({
        "model_type": "lfm3", "vocab_size": 128000, "hidden_size": 2048, "intermediate_size": 7680,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "max_position_embeddings": 262144, "norm_eps": 1e-5, "conv_L_cache": 7, "conv_bias": false,
        "sliding_window": 256, "use_sandwich_norm": true, "use_attention_gate": true, "tie_word_embeddings": true,
        "bos_token_id": 124894, "eos_token_id": 124900, "pad_token_id": 124893, "layer_types": layers,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    });
    Config::parse("config.json", json.to_string().as_bytes()).unwrap().text
}

/// The tower of LFM3-VL-2B, which a config may leave to the defaults.
fn full_size_tower() -> VisionConfig {
    let json = br#"{"model_type": "lfm3_vl", "text_config": {}, "vision_config": {}}"#;
    Config::parse("config.json", json).unwrap().vision.unwrap()
}

fn demo_config() -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model/config.json");
    Config::parse("config.json", &fs::read(path).unwrap()).unwrap()
}

fn demo() -> TextConfig {
    demo_config().text
}

fn demo_tower() -> VisionConfig {
    demo_config().vision.unwrap()
}

/// The demo's tower with these layers.
fn tower_of(kinds: &str) -> VisionConfig {
    let kind = |c| if c == 'a' { VisionLayer::Attention } else { VisionLayer::Conv };
    VisionConfig { layers: kinds.chars().map(kind).collect(), ..demo_tower() }
}

/// Compares with tests/plans/NAME.txt; with LFM3_WRITE_PLANS set, writes it.
fn assert_snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/plans/{name}.txt"));
    if std::env::var_os("LFM3_WRITE_PLANS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    let differs = expected.lines().zip(found.lines()).enumerate().find(|(_, (e, f))| e != f);
    if let Some((line, (expected, found))) = differs {
        panic!("{name}.txt:{}:\n  expected {expected}\n  found    {found}\nLFM3_WRITE_PLANS=1 accepts it", line + 1);
    }
    assert_eq!(expected.lines().count(), found.lines().count(), "lines of {name}");
}

/// How often each op occurs, and every weight with its shape.
fn summary(plan: &Plan) -> String {
    let mut ops = BTreeMap::new();
    for op in &plan.ops {
        let name = format!("{op:?}").split([' ', '{']).next().unwrap().to_string();
        *ops.entry(name).or_insert(0) += 1;
    }
    let mut out = String::new();
    ops.iter().for_each(|(op, n)| out += &format!("{op}: {n}\n"));
    for w in &plan.weights {
        out += &format!("{} {:?} {} x {}\n", w.names.join(" or "), w.role, w.rows, w.cols);
    }
    out
}

#[test]
fn the_demo_plan_is_the_one_on_file() {
    let plan = text_plan(&demo());
    assert_snapshot("demo", &plan.to_string());
    assert_snapshot("demo-weights", &summary(&plan));
}

#[test]
fn the_full_size_plan_is_the_one_on_file() {
    assert_snapshot("full-size-weights", &summary(&text_plan(&full_size())));
}

#[test]
fn the_full_size_plan_has_the_published_shape() {
    let plan = text_plan(&full_size());
    let windows: Vec<Option<usize>> = plan.attentions.iter().map(|a| a.window).collect();
    assert_eq!((plan.convs.len(), windows.len()), (13, 11));
    assert_eq!(windows.iter().filter(|w| w.is_none()).count(), 6);
    assert!(windows.iter().flatten().all(|w| *w == 256));
    assert_eq!(plan.taps.len(), 25, "embeddings, each layer, the last layer after the norm");
    let parameters: usize = plan.weights.iter().map(|w| w.rows * w.cols).sum();
    assert_eq!((parameters as f64 / 1e7).round(), 173.0, "1.73 B parameters, found {parameters}");
    let rotating: Vec<usize> = plan.ropes.iter().map(|r| r.iter().filter(|f| **f > 0.0).count()).collect();
    assert_eq!(rotating, [32, 64], "full layers rotate half of the pairs, sliding layers all");
    for (rope, theta) in plan.ropes.iter().zip([1e6f64, 1e4]) {
        for (i, frequency) in rope.iter().enumerate().filter(|(_, f)| **f > 0.0) {
            let exact = theta.powf(-2.0 * i as f64 / 128.0);
            // The reference rounds to float32 twice on the way.
            assert!((f64::from(*frequency) / exact - 1.0).abs() < 1.2e-7, "pair {i} of theta {theta}: {frequency}");
        }
    }
}

/// Widths agree wherever a buffer meets a weight, and every weight is used.
#[test]
fn shapes_meet_in_every_op() {
    for config in [demo(), full_size()] {
        let plan = text_plan(&config);
        let shape = |w: lfm3::plan::WeightId| (plan.weights[w.0].rows, plan.weights[w.0].cols);
        let mut used = BTreeSet::new();
        for op in &plan.ops {
            match op {
                Op::Matmul { x, weight, bias, out } => {
                    assert_eq!(shape(*weight), (plan.width(*out), plan.width(*x)), "{op:?}");
                    assert_eq!(plan.weights[weight.0].role, WeightRole::Matrix);
                    assert_eq!(plan.buffers[x.0].rows, plan.buffers[out.0].rows);
                    used.insert(weight.0);
                    used.extend(bias.iter().map(|b| b.0));
                }
                Op::RmsNorm { x, weight, out } => {
                    assert_eq!((plan.width(*x), shape(*weight)), (plan.width(*out), (plan.width(*x), 1)));
                    used.insert(weight.0);
                }
                Op::HeadNorm { weight, .. } => assert!(used.insert(weight.0)),
                Op::Embed { table, out } => {
                    assert_eq!(shape(*table).1, plan.width(*out));
                    used.insert(table.0);
                }
                Op::ShortConv { bcx, taps, out, .. } => {
                    assert_eq!(plan.width(*bcx), 3 * plan.width(*out));
                    assert_eq!(shape(*taps), (plan.width(*out), config.taps));
                    used.insert(taps.0);
                }
                _ => {}
            }
        }
        assert_eq!(used.len(), plan.weights.len(), "weights no op reads");
        let logits = plan.logits.unwrap();
        assert_eq!((plan.width(logits), plan.buffers[logits.0].rows), (config.vocab_size, RowSet::Wanted));
    }
}

#[test]
fn the_vision_plans_are_the_ones_on_file() {
    assert_snapshot("demo-vision", &vision_plan(&demo_tower()).to_string());
    assert_snapshot("full-size-vision-weights", &summary(&vision_plan(&full_size_tower())));
}

#[test]
fn the_full_size_tower_has_the_published_shape() {
    let plan = vision_plan(&full_size_tower());
    // Two halves a layer, the first and the last alone, and the rows behind the merge.
    assert_eq!((plan.stages.len(), plan.taps.len()), (14 + 2, 14 + 1));
    assert!(plan.stages[..15].iter().all(|stage| stage.grid_rows == 1) && plan.stages[15].grid_rows == 4);
    assert!(plan.stages.windows(2).all(|s| s[0].ops.end == s[1].ops.start));
    assert_eq!((plan.stages[0].ops.start, plan.stages[15].ops.end), (0, plan.ops.len()));
    // Layers 0 and 1 are the only two of a kind in a row.
    assert_eq!((plan.attentions.len(), plan.stores.len()), (1, 4));
    let shape = plan.attentions[0];
    assert_eq!((shape.heads, shape.kv_heads, shape.head_dim), (16, 8, 64));
    assert!(shape.bidirectional && shape.window.is_none());
    assert_eq!((plan.ropes.len(), plan.ropes[0].len()), (1, 16));
    for (i, frequency) in plan.ropes[0].iter().enumerate() {
        let exact = 1e6f64.powf(-2.0 * i as f64 / 32.0);
        assert!((f64::from(*frequency) / exact - 1.0).abs() < 1.2e-7, "pair {i}: {frequency}");
    }
    let output = plan.output.unwrap();
    assert_eq!((plan.width(output), plan.logits), (2048, None));
    assert!(matches!(plan.ops[0], Op::Input { out } if plan.width(out) == 1536));
}

/// Buffers an op reads and the one it writes, of the tower's ops.
fn traffic(op: &Op) -> (Vec<BufferId>, Option<BufferId>) {
    match *op {
        Op::Input { out } | Op::Load { out, .. } | Op::GridConv { out, .. } => (vec![], Some(out)),
        Op::RmsNorm { x, out, .. } | Op::Matmul { x, out, .. } => (vec![x], Some(out)),
        Op::LayerNorm { x, .. } | Op::HeadNorm { x, .. } | Op::GridRope { x, .. } | Op::Gelu { x } => {
            (vec![x], Some(x))
        }
        Op::StoreKv { k, v, .. } => (vec![k, v], None),
        Op::Attend { q, out, .. } => (vec![q], Some(out)),
        Op::StoreGated { bcx, .. } => (vec![bcx], None),
        Op::Save { x, .. } => (vec![x], None),
        Op::SwiGlu { gate, up, out } => (vec![gate, up], Some(out)),
        Op::Add { x, to } => (vec![x, to], Some(to)),
        _ => panic!("not an op of the tower: {op:?}"),
    }
}

/// What breaks the rules of stages: a buffer read before the stage wrote it, or other rows read of a store or of keys
/// that the same stage writes.
fn broken(plan: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        let ops = &plan.ops[stage.ops.clone()];
        let stored: BTreeSet<StoreId> = ops
            .iter()
            .filter_map(|op| if let Op::StoreGated { gated, .. } = op { Some(*gated) } else { None })
            .collect();
        let keys: BTreeSet<AttentionId> =
            ops.iter().filter_map(|op| if let Op::StoreKv { layer, .. } = op { Some(*layer) } else { None }).collect();
        let mut written = BTreeSet::new();
        for op in ops {
            let (reads, writes) = traffic(op);
            let clash = match op {
                Op::GridConv { gated, .. } => stored.contains(gated),
                Op::Attend { layer, .. } => keys.contains(layer),
                _ => false,
            };
            if clash || reads.iter().any(|id| !written.contains(id)) {
                found.push(format!("stage {index}: {op:?}"));
            }
            written.extend(writes);
        }
    }
    found
}

#[test]
fn a_stage_reads_only_what_it_or_an_earlier_one_has_written() {
    for config in [demo_tower(), full_size_tower()] {
        assert_eq!(broken(&vision_plan(&config)), [""; 0]);
    }
    for (kinds, attentions, stores) in
        [("c", 0, 3), ("a", 1, 2), ("ccc", 0, 4), ("aaaa", 2, 2), ("caca", 1, 3), ("caacca", 2, 4), ("accca", 1, 4)]
    {
        let plan = vision_plan(&tower_of(kinds));
        assert_eq!(broken(&plan), [""; 0], "{kinds}");
        assert_eq!((plan.attentions.len(), plan.stores.len()), (attentions, stores), "{kinds}");
    }
    // The check sees each fault it is there for.
    let mut one_store = vision_plan(&tower_of("cc"));
    for op in &mut one_store.ops {
        if let Op::StoreGated { gated, .. } | Op::GridConv { gated, .. } = op {
            *gated = StoreId(2);
        }
    }
    assert_eq!(broken(&one_store).len(), 1);
    let mut one_layer = vision_plan(&tower_of("aa"));
    for op in &mut one_layer.ops {
        if let Op::StoreKv { layer, .. } | Op::Attend { layer, .. } = op {
            *layer = AttentionId(0);
        }
    }
    assert_eq!(broken(&one_layer).len(), 1);
    let mut forgetful = vision_plan(&demo_tower());
    let load = forgetful.ops.iter().position(|op| matches!(op, Op::Load { .. })).unwrap();
    forgetful.ops[load] = Op::Gelu { x: forgetful.taps[0].1 };
    assert!(broken(&forgetful)[0].starts_with("stage 1: Gelu"));
}

/// Widths agree wherever a buffer meets a weight or a store, and every weight is used.
#[test]
fn shapes_meet_in_every_op_of_the_tower() {
    for config in [demo_tower(), full_size_tower(), tower_of("accaa")] {
        let plan = vision_plan(&config);
        let shape = |w: lfm3::plan::WeightId| (plan.weights[w.0].rows, plan.weights[w.0].cols);
        let store = |s: StoreId| plan.stores[s.0].width;
        let mut used = BTreeSet::new();
        for op in &plan.ops {
            match op {
                Op::Matmul { x, weight, bias, out } => {
                    assert_eq!(shape(*weight), (plan.width(*out), plan.width(*x)), "{op:?}");
                    used.insert(weight.0);
                    used.extend(bias.iter().map(|b| b.0));
                }
                Op::RmsNorm { x, weight, out } => {
                    assert_eq!((plan.width(*x), shape(*weight)), (plan.width(*out), (plan.width(*x), 1)));
                    used.insert(weight.0);
                }
                Op::LayerNorm { x, weight, bias, eps } => {
                    assert_eq!((shape(*weight), shape(*bias), *eps), ((plan.width(*x), 1), (plan.width(*x), 1), 1e-6));
                    used.extend([weight.0, bias.0]);
                }
                Op::HeadNorm { weight, .. } => {
                    assert_eq!(shape(*weight), (config.head_dim, 1));
                    assert!(used.insert(weight.0));
                }
                Op::GridRope { x, rope } => {
                    assert_eq!(plan.width(*x) % config.head_dim, 0);
                    assert_eq!(plan.ropes[*rope].len(), config.head_dim / 4);
                }
                Op::StoreGated { bcx, gated, gates } => {
                    assert_eq!((plan.width(*bcx), store(*gated)), (3 * store(*gates), config.hidden));
                }
                Op::GridConv { gated, gates, taps, out } => {
                    assert_eq!(
                        (store(*gated), store(*gates), shape(*taps)),
                        (config.hidden, config.hidden, (config.hidden, 9))
                    );
                    assert_eq!((plan.width(*out), plan.weights[taps.0].role), (config.hidden, WeightRole::GridTaps));
                    used.insert(taps.0);
                }
                Op::Save { x, store: s } => assert_eq!(plan.width(*x), store(*s)),
                Op::Load { store: s, out } => {
                    let merged = plan.width(*out) / store(*s);
                    assert!(merged == 1 || (merged == 4 && plan.width(*out) == 4 * config.hidden));
                }
                _ => {}
            }
        }
        assert_eq!(used.len(), plan.weights.len(), "weights no op reads");
    }
}
