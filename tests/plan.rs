//! The forward pass as printed: a change of the plan shows as a diff of tests/plans.

use lfm3::model::config::{Config, TextConfig};
use lfm3::model::forward::text_plan;
use lfm3::plan::{Op, Plan, RowSet, WeightRole};
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

fn demo() -> TextConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model/config.json");
    Config::parse("config.json", &fs::read(path).unwrap()).unwrap().text
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
