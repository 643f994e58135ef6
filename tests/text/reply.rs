//! Replies cut anywhere give the same pieces.

use super::rng::Rng;
use lfm3::error::Result;
use lfm3::text::{MAX_STOP_BYTES, MAX_STOPS, Piece, ReplyFilter};

fn filter(stops: &[String], reasoning_open: bool) -> Result<ReplyFilter> {
    ReplyFilter::new(stops, reasoning_open, Default::default())
}

/// Characters of a reply, each with whether it is thinking, up to a stop string: worked out on the whole reply at once.
fn naive(reply: &[u8], stops: &[String], reasoning_open: bool) -> (Vec<(char, bool)>, Option<String>) {
    let text = String::from_utf8_lossy(reply);
    let (mut rest, mut thinking, mut after_close) = (&*text, reasoning_open, false);
    let mut labelled = Vec::new();
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("<think>") {
            (rest, thinking, after_close) = (after, true, false);
        } else if let Some(after) = rest.strip_prefix("</think>") {
            (rest, thinking, after_close) = (after, false, true);
        } else {
            after_close &= c.is_whitespace();
            labelled.push((c, thinking || after_close));
            rest = &rest[c.len_utf8()..];
        }
    }
    let stops: Vec<Vec<char>> = stops.iter().map(|s| s.chars().collect()).collect();
    for end in 0..=labelled.len() {
        let before: Vec<char> = labelled[..end].iter().map(|l| l.0).collect();
        let found = stops.iter().filter(|stop| before.ends_with(stop)).max_by_key(|stop| stop.len());
        if let Some(stop) = found {
            labelled.truncate(end - stop.len());
            return (labelled, Some(stop.iter().collect()));
        }
    }
    (labelled, None)
}

fn filtered(cuts: &[&[u8]], stops: &[String], reasoning_open: bool) -> (Vec<(char, bool)>, Option<String>) {
    let mut filter = filter(stops, reasoning_open).unwrap();
    let mut pieces: Vec<Piece> = cuts.iter().flat_map(|cut| filter.push(cut)).collect();
    pieces.extend(filter.finish());
    let mut labelled = Vec::new();
    for piece in pieces {
        let (text, thinking) = match piece {
            Piece::Text(text) => (text, false),
            Piece::Reasoning(text) => (text, true),
            Piece::ToolCall { .. } => panic!("{piece:?}"),
        };
        assert!(!text.is_empty());
        labelled.extend(text.chars().map(|c| (c, thinking)));
    }
    (labelled, filter.stopped().map(str::to_owned))
}

#[test]
fn replies_cut_anywhere_give_the_same_pieces() {
    let parts: [&[u8]; 22] = [
        b"<think>",
        b"</think>",
        b"<",
        b"</",
        b"<th",
        b"think>",
        b"\n\n",
        b" ",
        b"a",
        b"ab",
        b"aab",
        b"Hello ",
        "ü".as_bytes(),
        "日本".as_bytes(),
        "😀".as_bytes(),
        b"\xff",
        b"\xe6\x97",
        b"\xf0\x9f",
        b"STOP",
        b"ST",
        b"<|im_end|>",
        b"\xc3",
    ];
    let stop_parts = ["a", "ab", "aab", "b\n", "STOP", "TO", "<", "ü", "本😀", "\n\n", "Hello", " a", "\u{fffd}"];
    let mut rng = Rng(7);
    let mut stopped = 0;
    for round in 0..200 {
        let reply: Vec<u8> = (0..1 + rng.below(24)).flat_map(|_| parts[rng.below(parts.len())].to_vec()).collect();
        let stops: Vec<String> = (0..rng.below(4))
            .map(|_| (0..1 + rng.below(3)).map(|_| stop_parts[rng.below(stop_parts.len())]).collect())
            .collect();
        let open = rng.below(2) == 1;
        let expected = naive(&reply, &stops, open);
        stopped += expected.1.is_some() as usize;
        let case = format!("round {round}: {:?}, stops {stops:?}", String::from_utf8_lossy(&reply));
        assert_eq!(filtered(&[&reply], &stops, open), expected, "{case}");
        for cut in 0..=reply.len() {
            assert_eq!(filtered(&[&reply[..cut], &reply[cut..]], &stops, open), expected, "{case}, cut at {cut}");
        }
        let bytes: Vec<&[u8]> = reply.chunks(1).collect();
        assert_eq!(filtered(&bytes, &stops, open), expected, "{case}, bytes");
        for _ in 0..20 {
            let mut cuts = Vec::new();
            let mut rest = &reply[..];
            while !rest.is_empty() {
                let (cut, after) = rest.split_at(1 + rng.below(rest.len().min(6)));
                cuts.push(cut);
                rest = after;
            }
            assert_eq!(filtered(&cuts, &stops, open), expected, "{case}, cuts {cuts:?}");
        }
    }
    assert!((20..180).contains(&stopped), "{stopped} of 200 replies met a stop string");
}

#[test]
fn text_is_given_out_as_soon_as_it_is_certain() {
    let mut filter = filter(&["END".into()], false).unwrap();
    let text = |s: &str| vec![Piece::Text(s.into())];
    assert_eq!(filter.push("hé".as_bytes()), text("hé"));
    assert_eq!(filter.push(b"x\xe6\x97"), text("x"));
    assert_eq!(filter.push(b"\xa5E"), text("日"));
    assert_eq!(filter.push(b"N"), vec![]);
    assert_eq!(filter.push(b"d <"), text("ENd "));
    assert_eq!(filter.push(b"b>EN"), text("<b>"));
    assert_eq!(filter.push(b"D never"), vec![]);
    assert_eq!(filter.stopped(), Some("END"));
    assert_eq!(filter.push(b"more"), vec![]);
    assert_eq!(filter.finish(), vec![]);
}

#[test]
fn thinking_is_told_from_the_answer() {
    let mut filter = filter(&[], true).unwrap();
    let mut pieces = Vec::new();
    for token in ["2 + 2", " = 4\n", "</think>", "\n\n", "Four", "."] {
        pieces.extend(filter.push(token.as_bytes()));
    }
    pieces.extend(filter.finish());
    let thinking = ["2 + 2", " = 4\n", "\n\n"].map(|s| Piece::Reasoning(s.into()));
    assert_eq!(pieces, [&thinking[..], &["Four", "."].map(|s| Piece::Text(s.into()))].concat());
}

#[test]
fn the_stop_that_ends_first_wins_then_the_longest() {
    for (stops, reply, shown, stop) in [
        (["bcd", "c"], "abcd", "ab", "c"),
        (["c", "abc"], "xabc", "x", "abc"),
        (["b</think>", "zz"], "ab</think>", "ab", ""),
    ] {
        let stops = stops.map(str::to_owned);
        let (labelled, found) = filtered(&[reply.as_bytes()], &stops, false);
        assert_eq!(labelled.iter().map(|l| l.0).collect::<String>(), shown);
        assert_eq!(found.unwrap_or_default(), stop);
    }
}

#[test]
fn long_holds_stay_linear() {
    let stops: Vec<String> = (0..MAX_STOPS).map(|i| format!("{}{i}", "a".repeat(MAX_STOP_BYTES - 2))).collect();
    let mut filter = filter(&stops, false).unwrap();
    let start = std::time::Instant::now();
    let mut shown = 0;
    for _ in 0..200_000 {
        shown +=
            filter.push(b"aaa").iter().map(|p| matches!(p, Piece::Text(t) if t.len() <= 1024) as usize).sum::<usize>();
    }
    assert!(shown > 190_000, "{shown}");
    println!("600,000 bytes held 1,022 deep in {:?}", start.elapsed());
    assert!(start.elapsed().as_secs() < 20);
}

#[test]
fn stop_strings_have_limits() {
    let stops = |s: &str, n| vec![s.to_owned(); n];
    assert!(filter(&stops("", 1), false).is_err());
    assert!(filter(&stops(&"x".repeat(MAX_STOP_BYTES + 1), 1), false).is_err());
    assert!(filter(&stops("x", MAX_STOPS + 1), false).is_err());
    assert!(filter(&stops(&"x".repeat(MAX_STOP_BYTES), MAX_STOPS), false).is_ok());
}
