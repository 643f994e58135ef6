//! Rounds no scheduler should make: refused by name on every backend, which then takes a good one.

use crate::common::*;
use lfm3::backend::cpu::Isa;
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Backend, Grid, Input, Limit, PageId, Progress, Round, Slot};
use lfm3::model::forward::text_plan;
use lfm3::model::vision::vision_plan;
use lfm3::plan::Plan;
use std::sync::Arc;

/// Both backends with random weights.
fn backends(plan: &Plan) -> [(&'static str, Box<dyn Backend>); 2] {
    let plan = Arc::new(plan.clone());
    let weights = random_weights(&plan, &mut Rng(90), 3);
    let cpu: Box<dyn Backend> = Box::new(cpu_backend(&plan, Isa::best(), 1));
    let mut both = [("cpu", cpu), ("reference", Box::new(ReferenceBackend::new(plan)))];
    both.iter_mut().for_each(|(_, backend)| load(&mut **backend, &weights));
    both
}

/// What is wrong, part of what the error says, how it is made of a good round.
type Spoil = (&'static str, &'static str, fn(&mut Round));

/// Each spoilt round is refused, and the good one still runs.
fn refuse(plan: &Plan, good: &Round, spoils: &[Spoil]) {
    for (name, mut backend) in backends(plan) {
        for (what, says, spoil) in spoils {
            let mut round = good.clone();
            spoil(&mut round);
            let error = backend.submit(round).expect_err(&format!("{name}: {what} was taken"));
            assert!(error.message.contains(says), "{name}: {what}: {}", error.message);
            assert!(backend.advance(Limit::End).is_err(), "{name}: {what}: nothing was submitted");
        }
        backend.submit(good.clone()).expect("a good round");
        assert!(backend.submit(good.clone()).is_err(), "{name}: a round is in progress");
        assert_eq!(backend.advance(Limit::End).expect("no error"), Progress::Done, "{name}");
        backend.abandon();
    }
}

const TEXT: [Spoil; 14] = [
    ("no rows", "at least one row", |r| r.rows.clear()),
    ("too many rows", "at most 64", |r| r.rows = vec![r.rows[0]; 65]),
    ("too many wanted", "at most 64 and 16", |r| {
        r.rows = vec![r.rows[0]; 17];
        r.rows.iter_mut().for_each(|row| row.wanted = true);
    }),
    ("a token past the vocabulary", "row 2 is given as Token(100)", |r| r.rows[2].input = Input::Token(VOCAB as u32)),
    ("the last token there is", "row 2 is given as", |r| r.rows[2].input = Input::Token(u32::MAX)),
    ("a row given as nothing", "row 0 is given as Stored", |r| r.rows[0].input = Input::Stored),
    ("a position that jumps", "expected position 3", |r| r.rows[3].position += 1),
    ("positions that end", "expected position 4294967296", |r| {
        r.rows.iter_mut().enumerate().for_each(|(i, row)| row.position = u32::MAX.wrapping_add(i as u32));
    }),
    ("a lane that is not there", "in lane 0", |r| r.rows[0].lane = 1),
    ("rows without a lane", "lanes end at row 4 of 5", |r| r.lanes[0].rows -= 1),
    ("a lane too long", "lane 0 has rows 0+6", |r| r.lanes[0].rows += 1),
    ("a page freed", "attention layer 1: pages 0..1", |r| r.lanes[0].pages[1][0] = PageId::NONE),
    ("a position without a page", "attention layer 0: pages", |r| {
        r.rows.iter_mut().enumerate().for_each(|(i, row)| row.position = 4_000_000_000 + i as u32);
    }),
    ("too few layers of pages", "pages of 1 attention layers, the plan has 2", |r| _ = r.lanes[0].pages.pop()),
];

/// Checks that concern values and lanes, of which the good round has two.
const SHARED: [Spoil; 6] = [
    ("two lanes of one slot", "lanes 0 and 1 are both of slot 0", |r| r.lanes[1].slot = Slot(0)),
    ("a lane without rows", "lane 1 has rows", |r| r.lanes[1].rows = 0),
    ("lanes that overlap", "lane 1 has rows 2+3, expected to start at 3", |r| r.lanes[1].first_row = 2),
    ("values too few", "63 values for 1 rows, expected 64", |r| _ = r.vectors.pop()),
    ("values too many", "65 values for 1 rows, expected 64", |r| r.vectors.push(0.0)),
    ("values past the last", "row 1 is given as Vector(1)", |r| r.rows[1].input = Input::Vector(1)),
];

#[test]
fn bad_rounds_of_text_are_refused_by_name() {
    let plan = text_plan(&small_config());
    let rows = vec![(1, false); 5];
    refuse(&plan, &round(&plan, &[Cut { stream: 0, start: 0, rows: rows.clone() }]), &TEXT);
    let cuts =
        [Cut { stream: 0, start: 0, rows: rows[..3].to_vec() }, Cut { stream: 1, start: 0, rows: rows[..3].to_vec() }];
    let mut two = round(&plan, &cuts);
    two.rows[1].input = Input::Vector(0);
    two.vectors = vec![0.5; 64];
    refuse(&plan, &two, &SHARED);
}

/// Sets the grid of the first lane.
fn regrid(round: &mut Round, rows: u32, cols: u32, merge: u32) {
    round.lanes[0].grid = Some(Grid { rows, cols, merge });
}

/// Grids wrong in any stage.
const GRIDS: [Spoil; 14] = [
    ("no grid", "lane 0 has no grid", |r| r.lanes[0].grid = None),
    ("no rows of a grid", "expected blocks", |r| regrid(r, 0, 6, 2)),
    ("no columns of a grid", "expected blocks", |r| regrid(r, 6, 0, 2)),
    ("blocks of nothing", "expected blocks", |r| regrid(r, 2, 6, 0)),
    ("rows that are no blocks", "expected blocks", |r| regrid(r, 3, 6, 2)),
    ("columns that are no blocks", "expected blocks", |r| regrid(r, 4, 7, 2)),
    ("blocks larger than the grid", "expected blocks", |r| regrid(r, 2, 6, u32::MAX)),
    ("the largest sides", "at most 1048576 places", |r| regrid(r, u32::MAX, u32::MAX, 1)),
    ("one block of the largest sides", "at most 1048576 places", |r| regrid(r, u32::MAX, u32::MAX, u32::MAX)),
    ("a place too many", "at most 1048576 places", |r| regrid(r, 1024, 1026, 2)),
    ("a grid smaller than the rows", "lies outside", |r| regrid(r, 2, 2, 2)),
    ("a position outside", "position 12 lies outside", |r| {
        let last = r.rows.len() - 1;
        let first = 12 - last as u32;
        r.rows.iter_mut().enumerate().for_each(|(i, row)| row.position = first + i as u32);
    }),
    ("a page missing", "pages 0..2 are not all there", |r| regrid(r, 12, 6, 2)),
    ("a page freed", "pages 0..1 are not all there", |r| r.lanes[0].pages[0][0] = PageId::NONE),
];

/// Rows given as values.
const VALUES: [Spoil; 7] = [
    ("a stage too many", "stage 4 of 4", |r| r.stage = 4),
    ("the last stage there is", "stage 18446744073709551615 of 4", |r| r.stage = usize::MAX),
    ("a token where values are read", "row 1 is given as Token(0)", |r| {
        r.rows[1].input = Input::Token(0);
        r.vectors.truncate(4 * 96);
    }),
    ("nothing where values are read", "row 1 is given as Stored", |r| {
        r.rows[1].input = Input::Stored;
        r.vectors.truncate(4 * 96);
    }),
    ("values past the last", "row 1 is given as Vector(5)", |r| r.rows[1].input = Input::Vector(5)),
    ("the last values there are", "row 1 is given as Vector(4294967295)", |r| {
        r.rows[1].input = Input::Vector(u32::MAX)
    }),
    ("values too few", "479 values for 5 rows, expected 480", |r| _ = r.vectors.pop()),
];

/// Rows that begin with what is stored.
const STORED: [Spoil; 3] = [
    ("a token where nothing is read", "row 1 is given as Token(0)", |r| r.rows[1].input = Input::Token(0)),
    ("values where nothing is read", "row 1 is given as Vector(0)", |r| r.rows[1].input = Input::Vector(0)),
    ("values nobody reads", "1 values for 0 rows, expected 0", |r| r.vectors.push(1.0)),
];

/// Behind the merge, where a row stands for four places.
const MERGED: [Spoil; 3] = [
    ("a position outside", "position 3 lies outside", |r| {
        r.rows.iter_mut().enumerate().for_each(|(i, row)| row.position = 1 + i as u32);
    }),
    ("smaller blocks", "in rows of 4", |r| regrid(r, 2, 6, 1)),
    ("larger blocks", "in rows of 4", |r| regrid(r, 3, 6, 3)),
];

#[test]
fn bad_rounds_of_pictures_are_refused_by_name() {
    let plan = vision_plan(&small_tower("ca", 2));
    assert_eq!((plan.stages.len(), small_tower("ca", 2).patch_values()), (4, 96));
    let grid = Grid { rows: 2, cols: 6, merge: 2 };
    let stored = |stage: usize, rows: usize| grid_round(&plan, stage, &[GridCut { slot: 0, grid, start: 0, rows }]);
    let mut first = stored(0, 5);
    give(&mut first, 96, &[&vec![0.5; 12 * 96]]);
    refuse(&plan, &first, &[&GRIDS[..], &VALUES].concat());
    // The second stage reads keys of no page yet, which the reference refuses at work; so it is only checked here.
    for stage in [1, 3] {
        let spoils = if stage == 1 { [&GRIDS[..], &STORED].concat() } else { [&STORED[..], &MERGED].concat() };
        let rows = if stage == 1 { 5 } else { 3 };
        for (name, mut backend) in backends(&plan) {
            for (what, says, spoil) in &spoils {
                let mut round = stored(stage, rows);
                spoil(&mut round);
                let error = backend.submit(round).expect_err(&format!("{name}, stage {stage}: {what} was taken"));
                assert!(error.message.contains(says), "{name}, stage {stage}: {what}: {}", error.message);
            }
            backend.submit(stored(stage, rows)).expect("a good round");
        }
    }
}

#[test]
fn a_slot_holds_one_picture_until_it_is_released() {
    let plan = vision_plan(&small_tower("c", 2));
    for (name, mut backend) in backends(&plan) {
        let submit = |backend: &mut dyn Backend, slot: usize, rows: u32, cols: u32| {
            let grid = Grid { rows, cols, merge: 2 };
            let mut round = grid_round(&plan, 0, &[GridCut { slot, grid, start: 0, rows: 4 }]);
            give(&mut round, 96, &[&[0.5; 4 * 96]]);
            backend.submit(round)?;
            backend.advance(Limit::End)?;
            backend.commit(&[4]);
            Ok::<(), lfm3::error::Error>(())
        };
        submit(&mut *backend, 7, 2, 6).expect("a good round");
        for (rows, cols) in [(6, 2), (2, 4), (2, 8), (14, 10)] {
            let error = submit(&mut *backend, 7, rows, cols).expect_err("another picture was taken");
            assert!(error.message.contains("slot 7 holds a picture of"), "{name}: {}", error.message);
        }
        submit(&mut *backend, 7, 2, 6).expect("the same grid");
        submit(&mut *backend, 8, 14, 10).expect("another slot");
        backend.release_stores(Slot(7));
        submit(&mut *backend, 7, 14, 10).expect("released");
        backend.release_stores(Slot(9));
    }
}

/// The first ops of a plan.
fn begin(mut plan: Plan, ops: usize) -> Plan {
    plan.ops.truncate(ops);
    (plan.stages, plan.taps, plan.logits) = (Vec::new(), Vec::new(), None);
    plan
}

/// Values that are not finite are the lane's fault alone, on both backends, as values of a picture and as rows of a
/// text model's prompt: by the op that takes them in, and by all that go on from there.
#[test]
fn values_that_are_not_finite_fault_their_lane_alone() {
    let (tower, text) = (vision_plan(&small_tower("c", 2)), text_plan(&small_config()));
    let alone = [(begin(tower.clone(), 1), 96), (begin(text.clone(), 1), 64)];
    for (plan, width) in alone.into_iter().chain([(tower, 96), (text, 64)]) {
        for (name, mut backend) in backends(&plan) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let grid = Grid { rows: 2, cols: 2, merge: 2 };
                let cuts = [0, 1, 2].map(|slot| GridCut { slot, grid, start: 0, rows: 3 });
                let mut round = grid_round(&plan, 0, &cuts);
                give(&mut round, width, &[&[0.5; 4 * 96][..]; 3]);
                round.vectors[4 * width + width - 1] = bad;
                backend.submit(round).expect("a good round");
                backend.advance(Limit::End).expect("no error");
                assert_eq!([0, 1, 2].map(|lane| backend.faulted(lane)), [false, true, false], "{name}: {bad}");
                backend.abandon();
            }
        }
    }
}
