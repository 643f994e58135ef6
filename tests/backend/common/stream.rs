//! One stream, driven by hand.

use super::{Cut, round};
use lfm3::backend::{Backend, Input, Limit, Progress, ROUND_LOGITS, ROUND_ROWS, Slot};
use lfm3::plan::Plan;
use std::collections::BTreeMap;

/// Stream 0 of a backend, started afresh.
pub struct Stream<'a> {
    plan: &'a Plan,
    /// What it runs on.
    pub backend: &'a mut dyn Backend,
    /// Positions whose rows are given as values, whatever their tokens.
    pub given: BTreeMap<usize, Vec<f32>>,
    length: usize,
}

impl<'a> Stream<'a> {
    /// A stream without tokens.
    pub fn new(plan: &'a Plan, backend: &'a mut dyn Backend) -> Stream<'a> {
        backend.reset_conv_state(Slot(0));
        Stream { plan, backend, given: BTreeMap::new(), length: 0 }
    }

    /// Submits `tokens` as the next round.
    fn submit(&mut self, tokens: &[u32], wanted: impl Fn(usize) -> bool) {
        let rows = tokens.iter().enumerate().map(|(i, &token)| (token, wanted(i))).collect();
        let mut round = round(self.plan, &[Cut { stream: 0, start: self.length, rows }]);
        for row in &mut round.rows {
            if let Some(values) = self.given.get(&(row.position as usize)) {
                row.input = Input::Vector((round.vectors.len() / values.len()) as u32);
                round.vectors.extend(values);
            }
        }
        self.backend.submit(round).expect("a good round");
        self.length += tokens.len();
    }

    /// Runs `tokens` and gives the logits after the last.
    pub fn feed(&mut self, tokens: &[u32]) -> Vec<f32> {
        let mut logits = Vec::new();
        for part in tokens.chunks(ROUND_ROWS) {
            (_, logits) = self.feed_round(part, || Limit::End);
        }
        logits
    }

    /// As `feed`, and gives every tap's rows too. All rows are wanted, since the last tap has the wanted ones.
    pub fn feed_tapped(&mut self, tokens: &[u32]) -> (Vec<Vec<f32>>, Vec<f32>) {
        let (mut layers, mut logits) = (vec![Vec::new(); self.plan.taps.len()], Vec::new());
        for part in tokens.chunks(ROUND_LOGITS) {
            self.submit(part, |_| true);
            for (layer, &(ops, buffer)) in layers.iter_mut().zip(&self.plan.taps) {
                self.backend.advance(Limit::Ops(ops)).expect("no error");
                layer.extend(self.backend.read_buffer(buffer));
            }
            self.backend.advance(Limit::End).expect("no error");
            logits = self.backend.logits(part.len() - 1).to_vec();
            self.backend.commit(&[part.len()]);
        }
        (layers, logits)
    }

    /// Runs `tokens` as one round, stopping where `limit` says; gives the last layer's rows and the last row's logits.
    pub fn feed_round(&mut self, tokens: &[u32], mut limit: impl FnMut() -> Limit) -> (Vec<f32>, Vec<f32>) {
        self.submit(tokens, |i| i == tokens.len() - 1);
        while self.backend.advance(limit()).expect("no error") == Progress::Working {}
        let hidden = self.backend.read_buffer(self.plan.taps[0].1);
        let logits = self.backend.logits(0).to_vec();
        self.backend.commit(&[tokens.len()]);
        (hidden, logits)
    }
}
