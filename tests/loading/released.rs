//! The demo checkpoints: the one in the repository, and others where they lie beside it.

use crate::mock::load;
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Encoding, Float};
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::forward::text_plan;
use lfm3::model::load::load_weights;
use lfm3::model::tensors::stored_bits;
use std::path::PathBuf;
use std::sync::Arc;

pub fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model")
}

#[test]
fn the_demo_model_opens_with_all_it_has() {
    let (checkpoint, plan, mock) = load(&demo()).unwrap();
    let (picture, video) = (checkpoint.picture.as_ref().unwrap(), checkpoint.video.as_ref().unwrap());
    assert_eq!((picture.patch, picture.frames, picture.merge, &picture.area), (16, 2, 2, &(9216..=20480)));
    assert_eq!((video.fps, &video.count, video.picture.patch), (2.0, &(4..=768), 16));
    let config = &checkpoint.config;
    assert_eq!((config.image_token, config.video_token), (Some(4001), Some(4000)));
    assert_eq!((config.vision_start, config.vision_end), (Some(3984), Some(3985)));
    assert_eq!((&config.kind[..], config.vision.is_some(), config.bos), ("lfm3_vl", true, Some(3969)));
    assert_eq!((&config.eos[..], config.pad), (&[3975][..], Some(3968)));
    assert_eq!((checkpoint.generation.top_k, &checkpoint.generation.eos[..]), (Some(50), &[3975][..]));
    assert!(checkpoint.chat_template.is_some() && checkpoint.tokenizer_config.is_some());
    let tensors = checkpoint.bind(&plan, None).unwrap().text;
    assert_eq!(stored_bits(&tensors), 4);
    let affine = Encoding::Affine { bits: 4, group: 64, scales: Float::Bf16 };
    assert_eq!(
        (&tensors[0].desc.name[..], tensors[0].desc.encoding),
        ("language_model.model.embed_tokens.weight", affine)
    );
    let parameters: u64 = tensors.iter().map(|t| t.parameters()).sum();
    assert_eq!(parameters, mock.weights.values().map(|(_, v)| v.len() as u64).sum::<u64>());
    assert!(tensors.iter().map(|t| t.bytes()).sum::<u64>() < checkpoint.tensor_bytes);
    // An embedding of a trained model has rows of mean near 0 and a spread like its neighbours'.
    let (_, table) = &mock.weights[&0];
    let mean_square = |row: &[f32]| row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
    assert!(table.chunks(256).all(|row| (1e-5..1.0).contains(&mean_square(row))));
}

#[test]
fn the_demo_model_loads_into_the_reference_backend() {
    let checkpoint = Checkpoint::open(&demo()).unwrap();
    let plan = Arc::new(text_plan(&checkpoint.config.text));
    let mut backend = ReferenceBackend::new(plan.clone());
    load_weights(&checkpoint, (&plan, &mut backend), None, &mut |_, _| true).unwrap();
}

#[test]
fn every_checkpoint_beside_the_repository_loads() {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/checkpoints");
    let Ok(folders) = shared.read_dir() else { return };
    for folder in folders {
        let path = folder.unwrap().path();
        let (checkpoint, plan, _) = load(&path).unwrap_or_else(|e| panic!("{e}"));
        let bits = stored_bits(&checkpoint.bind(&plan, None).unwrap().text);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected = [("4bit", 4), ("6bit", 6), ("8bit", 8)]
            .iter()
            .find(|(part, _)| name.contains(part))
            .map_or(16, |(_, b)| *b);
        assert_eq!((bits, checkpoint.config.vision.is_some()), (expected, name.contains("vl")), "{name}");
    }
}
