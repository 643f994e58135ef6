//! Whose turn it is: running replies share a round, prompts fill one after the other in windows between them.

use crate::backend::{ROUND_LOGITS, ROUND_ROWS};
use crate::stream::core::Task;

/// Rows of a prompt's window while replies run, so that they wait for no long window.
const WINDOW_BESIDE_REPLIES: usize = 16;

/// Streams of the next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Their ids.
    pub streams: Vec<u64>,
    /// Most rows of each.
    pub rows: usize,
    /// Whether the one stream waits for the vision tower.
    pub look: bool,
}

/// Remembers who was served last.
#[derive(Debug, Default)]
pub struct Turns {
    last_fill: u64,
    last_decode: u64,
    filled_last: bool,
}

impl Turns {
    /// Chooses among streams by id; ids ascend.
    pub fn next(&mut self, tasks: &[(u64, Task)]) -> Option<Turn> {
        let ids = |wanted: fn(&Task) -> bool| -> Vec<u64> {
            tasks.iter().filter(|(_, task)| wanted(task)).map(|(id, _)| *id).collect()
        };
        let decoding = ids(|task| *task == Task::Decode);
        let filling = ids(|task| matches!(task, Task::Fill(_) | Task::Look));
        if !decoding.is_empty() && (filling.is_empty() || self.filled_last) {
            self.filled_last = false;
            let streams = after(&decoding, self.last_decode).take(ROUND_LOGITS).collect::<Vec<u64>>();
            self.last_decode = *streams.last()?;
            return Some(Turn { streams, rows: 1, look: false });
        }
        let next = after(&filling, self.last_fill).next()?;
        self.last_fill = next;
        self.filled_last = true;
        let rows = if decoding.is_empty() { ROUND_ROWS } else { WINDOW_BESIDE_REPLIES };
        let look = tasks.contains(&(next, Task::Look));
        Some(Turn { streams: vec![next], rows, look })
    }
}

/// All ids, those after `last` first.
fn after(ids: &[u64], last: u64) -> impl Iterator<Item = u64> + '_ {
    let start = ids.partition_point(|id| *id <= last);
    ids[start..].iter().chain(&ids[..start]).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_share_a_round_and_prompts_take_turns_between() {
        let tasks = [(1, Task::Decode), (2, Task::Fill(500)), (3, Task::Decode), (4, Task::Fill(500)), (5, Task::None)];
        let mut turns = Turns::default();
        let order: Vec<Vec<u64>> = (0..6).map(|_| turns.next(&tasks).unwrap().streams).collect();
        assert_eq!(order, [vec![2], vec![1, 3], vec![4], vec![1, 3], vec![2], vec![1, 3]].map(|v| v));
        assert_eq!(turns.next(&tasks[3..]).unwrap(), Turn { streams: vec![4], rows: ROUND_ROWS, look: false });
        assert_eq!(turns.next(&tasks[4..]), None);
    }

    #[test]
    fn more_replies_than_a_round_holds_take_turns() {
        let tasks: Vec<(u64, Task)> = (1..=ROUND_LOGITS as u64 + 4).map(|id| (id, Task::Decode)).collect();
        let mut turns = Turns::default();
        let mut served = vec![0; tasks.len() + 1];
        for _ in 0..tasks.len() {
            turns.next(&tasks).unwrap().streams.iter().for_each(|id| served[*id as usize] += 1);
        }
        assert!(served[1..].iter().all(|n| *n == ROUND_LOGITS));
    }
}
