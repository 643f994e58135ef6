//! The part of a model that sees: what it takes of hosts, and the tower behind it.

use super::ModelOptions;
use super::sizes::Sizes;
use crate::backend::cpu::CpuBackend;
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::Checkpoint;
use crate::picture::media::{Given, Key, MediaReader, Medium, View};
use crate::plan::Plan;
use crate::scheduler::TowerParts;
use crate::state::{ByteBudget, PageArena};
use crate::text::MediaTokens;
use std::sync::Arc;

/// Takes pictures and videos, or says why not.
pub(super) struct Eyes {
    reader: std::result::Result<MediaReader, &'static str>,
    /// Ids that stand for rows of pictures, and those around them.
    pub tokens: MediaTokens,
}

impl Eyes {
    /// What `checkpoint` can see; copies count in `budget`.
    pub fn new(checkpoint: &Checkpoint, options: &ModelOptions, budget: &Arc<ByteBudget>) -> Eyes {
        let config = &checkpoint.config;
        let most = options.max_picture_tokens;
        let reader = match (&config.vision, &checkpoint.picture) {
            (None, _) => Err("the model has no vision tower: it takes no pictures or videos"),
            (Some(_), None) => Err("the checkpoint has no preprocessor_config.json: it takes no pictures or videos"),
            (Some(_), Some(picture)) => {
                let video = checkpoint.video.as_ref().map(|video| video.limited(most));
                Ok(MediaReader::new(picture.limited(most), video, budget.clone()))
            }
        };
        let (image, video) = (config.image_token, config.video_token);
        let tokens = MediaTokens { image, video, start: config.vision_start, end: config.vision_end };
        Eyes { reader, tokens }
    }

    /// What the host gives as a medium; of what `known` has a view for, nothing is copied.
    pub fn take(&self, given: &Given, known: &dyn Fn(&Key) -> Option<Arc<View>>) -> Result<Medium> {
        let reader = self.reader.as_ref().map_err(|why| Error::new(Code::Unsupported, *why))?;
        reader.take(given, known)
    }
}

/// The scheduler's part of vision: `backend` has the weights of `plan`.
pub(super) fn tower(plan: Arc<Plan>, backend: CpuBackend, sizes: &Sizes, budget: &Arc<ByteBudget>) -> TowerParts {
    TowerParts {
        backend: Box::new(backend),
        plan,
        arena: PageArena::new(budget.clone(), sizes.tower_page_bytes),
        budget: budget.clone(),
        store_bytes: sizes.tower_store_bytes,
    }
}
