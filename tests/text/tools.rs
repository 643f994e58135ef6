//! Tool calls out of replies: whole replies cut anywhere, and tables of what is a call and what is text.

use super::rng::Rng;
use super::support::{demo_tokenizer, shared};
use lfm3::text::{MAX_BLOCK_CALLS, MAX_CALL_BYTES, Piece, ReplyFilter, ToolSchemas};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Tools in both forms a chat may list them.
fn schemas() -> Arc<ToolSchemas> {
    let properties = json!({
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "string"}}, "o": {"type": "object"}, "z": {"type": "null"},
        "si": {"type": ["string", "integer"]}, "sz": {"type": "string", "nullable": true},
        "any": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "one": {"oneOf": [{"type": "string"}]},
        "all": {"allOf": [{"$ref": "#/$defs/level"}]}, "ref": {"$ref": "#/$defs/level"}, "free": {},
        "e": {"enum": ["low", "high"]}, "en": {"enum": [1, 2]}, "em": {"enum": ["1", 1, null]}, "c": {"const": true},
        "loop": {"$ref": "#/properties/loop"}, "lost": {"$ref": "#/none"}, "odd": {"type": "date"},
        "never": {"anyOf": []},
    });
    let parameters = json!({"type": "object", "properties": properties, "$defs": {"level": {"type": "integer"}}});
    Arc::new(ToolSchemas::new(&json!([
        {"type": "function", "function": {"name": "f", "parameters": parameters}},
        {"name": "bare", "parameters": {"properties": {"i": {"type": "integer"}}}},
        {"type": "function", "function": {"description": "no name"}}, {}, {"name": "g"},
    ])))
}

fn call(name: &str, arguments: &str, text: &str) -> Piece {
    Piece::ToolCall { name: name.into(), arguments: arguments.into(), text: text.into() }
}

fn say(text: &str) -> Piece {
    Piece::Text(text.into())
}

/// `pieces` with neighbours of one kind joined.
fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (out.last_mut(), &piece) {
            (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(text),
            (Some(Piece::Reasoning(before)), Piece::Reasoning(text)) => before.push_str(text),
            _ => out.push(piece),
        }
    }
    out
}

fn filtered<'a>(cuts: impl IntoIterator<Item = &'a [u8]>, tools: &Arc<ToolSchemas>, stops: &[&str]) -> Vec<Piece> {
    let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let mut filter = ReplyFilter::new(&stops, false, tools.clone()).unwrap();
    let mut pieces: Vec<Piece> = cuts.into_iter().flat_map(|cut| filter.push(cut)).collect();
    pieces.extend(filter.finish());
    joined(pieces)
}

/// The pieces of a whole reply, which must be those of its bytes.
fn pieces(reply: &str) -> Vec<Piece> {
    let whole = filtered([reply.as_bytes()], &schemas(), &[]);
    assert_eq!(filtered(reply.as_bytes().chunks(1), &schemas(), &[]), whole, "{reply}");
    whole
}

fn xml(name: &str, parameters: &[(&str, &str)]) -> String {
    let inside: String = parameters.iter().map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>")
}

fn block(calls: &str) -> String {
    format!("<|tool_call_start|>[{calls}]<|tool_call_end|>")
}

// Replies made at random, of which it is known what they must give.

/// A reply and what it must give, neighbours joined; its tags of thinking are in neither.
#[derive(Default)]
struct Case {
    reply: String,
    expected: Vec<Piece>,
}

const NASTY: [&str; 24] = [
    "",
    "it's",
    "\"quoted\"",
    "a 'b' \"c\"",
    "<",
    "</",
    "</parameter",
    "x </parameter> y",
    "</function>",
    "</tool_call>",
    "<tool_call>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
    "line\nline",
    "\n",
    " spaced ",
    "😀 日本",
    "\\",
    "\\n",
    "]",
    "[f(a=1)]",
    "\"\"\"",
    "\t{\"a\": [1]}",
];

/// `text` as Python writes it, in a kind of quotes drawn at random.
fn python(text: &str, rng: &mut Rng) -> String {
    let quote = rng.pick(&["'", "\"", "\"\"\""]);
    let mut out = quote.to_owned();
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\n' if rng.below(2) == 0 => out += "\\n",
            '"' | '\'' if quote.starts_with(c) => out.extend(['\\', c]),
            '日' => out += "\\u65e5",
            '😀' if rng.below(2) == 0 => out += "\\U0001f600",
            c => out.push(c),
        }
    }
    out + quote
}

/// A call of `f` with arguments drawn at random, in either form.
fn random_call(rng: &mut Rng) -> (String, Piece) {
    let (mut arguments, mut parameters, mut python_args) = (Map::new(), Vec::new(), Vec::new());
    for _ in 0..rng.below(5) {
        let text = rng.pick(&NASTY);
        let (key, value, written, literal) = match rng.below(6) {
            0 => ("i", json!(-12), "-12".to_owned(), "-12".to_owned()),
            1 => ("n", json!(1.5), " 1.5".to_owned(), "1.5".to_owned()),
            2 => ("b", json!(true), "true".to_owned(), "True".to_owned()),
            3 => ("l", json!([text, 1]), json!([text, 1]).to_string(), format!("[{}, 1]", python(text, rng))),
            4 => {
                let value = json!({text: {"x": null}});
                ("o", value.clone(), value.to_string(), format!("{{{}: {{'x': None}}}}", python(text, rng)))
            }
            _ => (rng.pick(&["s", "unknown"]), json!(text), text.to_owned(), python(text, rng)),
        };
        if !arguments.contains_key(key) {
            arguments.insert(key.to_owned(), value);
            parameters.push((key, written));
            python_args.push(format!("{key}={literal}"));
        }
    }
    let arguments = Value::Object(arguments).to_string();
    let parameters: Vec<(&str, &str)> = parameters.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let text = if rng.below(2) == 0 { xml("f", &parameters) } else { block(&format!("f({})", python_args.join(", "))) };
    (text.clone(), call("f", &arguments, &text))
}

/// Begins like a call and is none, whatever follows it.
const NO_CALLS: [&str; 12] = [
    "<tool_call>x",
    "<tool_call>\n<tool_cal",
    "<tool_call>\n<function=>",
    "<tool_call>\n<function=f>\n<parameter=>",
    "<tool_call>\n<function=f>\n</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=i>\nx\n</parameter>\n</function></tool_call>",
    "<tool_call>{\"name\": \"f\"}</tool_call>",
    "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\nand",
    "<|tool_call_start|>f()",
    "<|tool_call_start|>[f(s=1]]<|tool_call_end|>",
    "<|tool_call_start|>[f()] x",
    "<|tool_call_start|>[f(1)]<|tool_call_end|>",
];

fn random_case(rng: &mut Rng) -> Case {
    let mut case = Case::default();
    for _ in 0..1 + rng.below(7) {
        match rng.below(6) {
            0 | 1 => {
                let (text, piece) = random_call(rng);
                case.reply += &text;
                case.expected.push(piece);
            }
            2 => {
                let text = rng.pick(&NO_CALLS);
                case.reply += text;
                case.expected.push(say(text));
            }
            3 => {
                // What closes thinking closes it in a call too.
                let thought = random_call(rng).0.replace("think>", "thought>");
                let thought = format!("It's {thought} or {}", rng.pick(&["</tool_call>", "<", "é"]));
                case.reply += &format!("<think>{thought}</think>\n\n.");
                case.expected.extend([Piece::Reasoning(thought + "\n\n"), say(".")]);
            }
            _ => {
                let text = rng.pick(&["Hello ", "\n", "é😀", "a < b", "<b>", "</tool_call>", "</function>\n", "[f()]"]);
                case.reply += text;
                case.expected.push(say(text));
            }
        }
    }
    if rng.below(4) == 0 {
        let text = random_call(rng).0;
        let mut cut = rng.below(text.len());
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        case.reply += &text[..cut];
        case.expected.extend((cut > 0).then(|| say(&text[..cut])));
    }
    case.expected = joined(case.expected);
    case
}

/// Turns a reply, cut as it comes, into pieces.
type Filter = fn(&[&[u8]]) -> Vec<Piece>;

fn real(cuts: &[&[u8]]) -> Vec<Piece> {
    filtered(cuts.iter().copied(), &schemas(), &[])
}

/// What a filter does wrong with a case: another outcome than known, at some cut, or bytes that are lost.
fn fault(case: &Case, filter: Filter, rng: &mut Rng) -> Option<String> {
    let reply = case.reply.as_bytes();
    let whole = filter(&[reply]);
    if whole != case.expected {
        return Some(format!("{:?}\n gives {whole:?}\n   not {:?}", case.reply, case.expected));
    }
    let texts = whole.iter().map(|piece| match piece {
        Piece::Text(text) | Piece::Reasoning(text) | Piece::ToolCall { text, .. } => text.as_str(),
    });
    let bare = |text: &str| text.replace("<think>", "").replace("</think>", "");
    if bare(&texts.collect::<String>()) != bare(&case.reply) {
        return Some(format!("{:?} loses bytes: {whole:?}", case.reply));
    }
    let cut_at = |cut| vec![&reply[..cut], &reply[cut..]];
    let at_random = (0..20).map(|_| {
        let (mut cuts, mut rest) = (Vec::new(), reply);
        while !rest.is_empty() {
            let (cut, after) = rest.split_at(1 + rng.below(rest.len().min(9)));
            cuts.push(cut);
            rest = after;
        }
        cuts
    });
    let cuts: Vec<Vec<&[u8]>> = (0..=reply.len()).map(cut_at).chain(at_random).collect();
    let differs = cuts.iter().find(|cuts| filter(cuts) != whole);
    differs
        .map(|cuts| format!("{:?} differs when cut {:?}", case.reply, cuts.iter().map(|c| c.len()).collect::<Vec<_>>()))
}

/// 200 replies drawn at random, and those of the oracle that call tools.
fn cases() -> Vec<Case> {
    let mut rng = Rng(23);
    let mut cases: Vec<Case> = (0..200).map(|_| random_case(&mut rng)).collect();
    let stored =
        [include_str!("../data/text/cases.json"), include_str!("../data/oracle/short/lfm3-demo-4bit-g32/cases.json")];
    let beside = shared().map(|folder| folder.join("oracle/lfm3-demo-4bit-g32/cases.json"));
    let beside = beside.map(|file| std::fs::read_to_string(file).unwrap());
    for json in stored.map(str::to_owned).into_iter().chain(beside) {
        for case in serde_json::from_str::<Vec<Value>>(&json).unwrap() {
            for text in case["messages"].as_array().unwrap().iter().filter_map(|message| message["content"].as_str()) {
                let expected = oracle_call(text);
                cases.extend(expected.map(|call| Case { reply: text.to_owned(), expected: vec![call] }));
            }
        }
    }
    cases
}

/// The call an oracle's message is, read line by line: its tools are unknown here, so all values are strings.
fn oracle_call(text: &str) -> Option<Piece> {
    let mut lines = text.strip_prefix("<tool_call>\n")?.lines();
    let name = lines.next()?.strip_prefix("<function=")?.strip_suffix('>')?;
    let mut arguments = Map::new();
    while let Some(key) = lines.next().and_then(|line| line.strip_prefix("<parameter=")) {
        arguments.insert(key.strip_suffix('>')?.to_owned(), lines.next()?.into());
        lines.next();
    }
    Some(call(name, &Value::Object(arguments).to_string(), text))
}

#[test]
fn replies_with_calls_cut_anywhere_give_the_same_pieces_and_lose_no_byte() {
    let (cases, mut rng) = (cases(), Rng(5));
    let faults: Vec<String> = cases.iter().filter_map(|case| fault(case, real, &mut rng)).collect();
    assert!(faults.is_empty(), "{} of {}: {}", faults.len(), cases.len(), faults[0]);
    let calls = |case: &Case| case.expected.iter().filter(|p| matches!(p, Piece::ToolCall { .. })).count();
    let total: usize = cases.iter().map(calls).sum();
    assert!(total > 200 && cases.iter().filter(|case| calls(case) == 0).count() > 20, "{total} calls");
    assert!(cases.len() >= 204);
}

#[test]
fn faulty_filters_are_found_out() {
    fn drops_the_tail_of_no_call(cuts: &[&[u8]]) -> Vec<Piece> {
        let mut pieces = real(cuts);
        for piece in &mut pieces {
            if let Piece::Text(text) = piece
                && let Some(start) = text.find("<tool_call>")
            {
                text.truncate(start + "<tool_call>".len());
            }
        }
        pieces
    }
    fn reads_calls_in_thinking(cuts: &[&[u8]]) -> Vec<Piece> {
        let reply = String::from_utf8(cuts.concat()).unwrap();
        real(&[reply.replace("<think>", "").replace("</think>", "").as_bytes()])
    }
    fn forgets_what_was_cut(cuts: &[&[u8]]) -> Vec<Piece> {
        joined(cuts.iter().flat_map(|cut| real(&[cut])))
    }
    fn knows_no_types(cuts: &[&[u8]]) -> Vec<Piece> {
        filtered(cuts.iter().copied(), &Arc::default(), &[])
    }
    fn loses_the_calls_text(cuts: &[&[u8]]) -> Vec<Piece> {
        let mut pieces = real(cuts);
        for piece in &mut pieces {
            if let Piece::ToolCall { text, .. } = piece {
                text.clear();
            }
        }
        pieces
    }
    let cases = cases();
    for (name, filter) in [
        ("drops the tail", drops_the_tail_of_no_call as Filter),
        ("calls in thinking", reads_calls_in_thinking),
        ("forgets", forgets_what_was_cut),
        ("no types", knows_no_types),
        ("no text", loses_the_calls_text),
    ] {
        let found = cases.iter().filter(|case| fault(case, filter, &mut Rng(5)).is_some()).count();
        assert!(found > 5, "{name}: found in {found} of {}", cases.len());
    }
}

// Tables.

#[test]
fn values_between_tags_are_typed_by_the_schema() {
    for (key, value, json) in [
        ("s", "12", r#""12""#),
        ("s", "", r#""""#),
        ("s", " x\n\ny ", r#"" x\n\ny ""#),
        ("s", "\"x\"", r#""\"x\"""#),
        ("s", "it's </parameter> \\n", r#""it's </parameter> \\n""#),
        ("i", "12", "12"),
        ("i", " -7\n", "-7"),
        ("i", "3.0", "3"),
        ("i", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("n", "3", "3"),
        ("n", "-2.50e3", "-2.50e3"),
        ("b", "true", "true"),
        ("b", "False", "false"),
        ("z", "None", "null"),
        ("l", "[1,\n \"a b\"]", r#"[1,"a b"]"#),
        ("l", "['a', \"it's\"]", r#"["a","it's"]"#),
        ("o", r#"{"a": {"b \" c": [ ]}}"#, r#"{"a":{"b \" c":[]}}"#),
        ("si", "5", "5"),
        ("si", "five", r#""five""#),
        ("sz", "null", "null"),
        ("sz", "nul", r#""nul""#),
        ("any", "null", "null"),
        ("any", "4", "4"),
        ("one", "4", r#""4""#),
        ("all", "4", "4"),
        ("ref", "4", "4"),
        ("free", "4", r#""4""#),
        ("loop", "4", r#""4""#),
        ("lost", "4", r#""4""#),
        ("odd", "4", r#""4""#),
        ("never", "4", r#""4""#),
        ("e", "low", r#""low""#),
        ("en", "2", "2"),
        ("em", "1", r#""1""#),
        ("em", "null", "null"),
        ("c", "true", "true"),
        ("unknown", "4", r#""4""#),
    ] {
        let text = xml("f", &[(key, value)]);
        assert_eq!(pieces(&text), [call("f", &format!("{{\"{key}\":{json}}}"), &text)], "{key}: {value}");
    }
    let text = xml("unheard_of", &[("i", "4")]);
    assert_eq!(pieces(&text), [call("unheard_of", r#"{"i":"4"}"#, &text)]);
    let text = xml("bare", &[("i", "4")]);
    assert_eq!(pieces(&text), [call("bare", r#"{"i":4}"#, &text)]);
}

#[test]
fn literals_are_pythons() {
    for (literal, json) in [
        ("1", "1"),
        ("-1", "-1"),
        ("+1_000", "1000"),
        ("1.", "1.0"),
        (".5", "0.5"),
        ("-1.5E+3", "-1.5e+3"),
        ("'a'", r#""a""#),
        ("\"it's\"", r#""it's""#),
        (r#"'it\'s "x"'"#, r#""it's \"x\"""#),
        (r"'\n\t\\\x41\u00e9\U0001F600\101\0\q'", "\"\\n\\t\\\\Aé😀A\\u0000\\\\q\""),
        (r#""\ud83d\ude00""#, r#""😀""#),
        ("'two\nlines'", r#""two\nlines""#),
        ("'joined\\\n lines'", r#""joined lines""#),
        ("''", r#""""#),
        ("''''''", r#""""#),
        ("'''a'b''c'''", r#""a'b''c""#),
        ("\"\"\"say \"x\" \"\"\"", r#""say \"x\" ""#),
        ("'<|tool_call_end|>'", r#""<|tool_call_end|>""#),
        ("True", "true"),
        ("false", "false"),
        ("None", "null"),
        ("[]", "[]"),
        ("[1, 'a', [None,],]", r#"[1,"a",[null]]"#),
        ("{ }", "{}"),
        ("{'a': {\"b\": [1, 2]}, 'c': 1.5,}", r#"{"a":{"b":[1,2]},"c":1.5}"#),
    ] {
        for (open, close) in [("g(a=", ")"), (" g ( a = ", " , ) ")] {
            let text = block(&format!("{open}{literal}{close}"));
            assert_eq!(pieces(&text), [call("g", &format!("{{\"a\":{json}}}"), &text)], "{literal}");
        }
    }
}

#[test]
fn literals_fit_the_schema() {
    for (key, literal, json) in [
        ("s", "'x'", r#""x""#),
        ("s", "7.50", r#""7.50""#),
        ("s", "12", r#""12""#),
        ("i", "12", "12"),
        ("i", "12.0", "12"),
        ("n", "12", "12"),
        ("si", "12", "12"),
        ("sz", "None", "null"),
        ("em", "'1'", r#""1""#),
        ("free", "[1]", "[1]"),
        ("unknown", "True", "true"),
    ] {
        let text = block(&format!("f({key}={literal})"));
        assert_eq!(pieces(&text), [call("f", &format!("{{\"{key}\":{json}}}"), &text)], "{key}={literal}");
    }
    for (key, literal) in [("s", "None"), ("s", "['x']"), ("i", "'12'"), ("i", "1.5"), ("b", "1"), ("o", "[]")] {
        let text = block(&format!("f({key}={literal})"));
        assert_eq!(pieces(&text), [say(&text)]);
    }
}

#[test]
fn calls_of_one_block_share_its_text() {
    let text = block("f(s='a', i=1), g(),\n f(s='b')");
    let expected = [call("f", r#"{"s":"a","i":1}"#, &text), call("g", "{}", ""), call("f", r#"{"s":"b"}"#, "")];
    assert_eq!(pieces(&text), expected);
    let most = |n| block(&vec!["g()"; n].join(", "));
    assert_eq!(pieces(&most(MAX_BLOCK_CALLS)).len(), MAX_BLOCK_CALLS);
    assert_eq!(pieces(&most(MAX_BLOCK_CALLS + 1)), [say(&most(MAX_BLOCK_CALLS + 1))]);
}

#[test]
fn white_space_around_calls_is_text() {
    let (a, b) = (xml("g", &[]), block("g()"));
    let reply = format!("First \n{a}\n{b} \n{a}\n");
    let calls = [&a, &b, &a].map(|text| call("g", "{}", text));
    let [first, second, third] = calls;
    assert_eq!(pieces(&reply), [say("First \n"), first, say("\n"), second, say(" \n"), third, say("\n")]);
    let thought = [Piece::Reasoning("x\n\n".into()), call("g", "{}", &a), say(" y")];
    assert_eq!(pieces(&format!("<think>x</think>\n\n{a} y")), thought);
}

#[test]
fn tags_may_stand_on_one_line() {
    for text in [
        "<tool_call><function=f><parameter=i>4</parameter><parameter=s>a</parameter></function></tool_call>",
        "<tool_call> <function=f>\t<parameter=i>\n4\n</parameter>\r\n\
         <parameter=s>a</parameter>\n\n</function> </tool_call>",
    ] {
        assert_eq!(pieces(text), [call("f", r#"{"i":4,"s":"a"}"#, text)]);
    }
    let on_lines = "<tool_call>\n<function=f>\n<parameter=s>\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(pieces(on_lines), [call("f", r#"{"s":""}"#, on_lines)]);
    let text = on_lines.replace("<parameter=s>\n", "<parameter=s>\n\n\n\n");
    assert_eq!(pieces(&text), [call("f", r#"{"s":"\n\n"}"#, &text)]);
    let text = on_lines.replace("<parameter=s>\n", "<parameter=s><</p</parameter<");
    assert_eq!(pieces(&text), [call("f", r#"{"s":"<</p</parameter<"}"#, &text)]);
}

/// What stands in a block that is no list of calls.
const MALFORMED_BLOCKS: [&str; 38] = [
    "",
    "1",
    "f",
    "f(",
    "f)",
    "f()(",
    "f() g()",
    "(f())",
    "f(1)",
    "f(i)",
    "f(i=)",
    "f(i=1",
    "f(i=1 s='x')",
    "()",
    "f(i=1, i=1)",
    "f(i=01)",
    "f(i=1__0)",
    "f(i=1a)",
    "f(i=--1)",
    "f(n=1e)",
    "f(n=1e999)",
    "f(n=.)",
    "f(s='a)",
    "f(s='a\\ud800')",
    "f(s='\\xg0')",
    "f(s='\\N{DASH}')",
    "f(s='\\U00110000')",
    "f(o={1: 2})",
    "f(o={'a' 2})",
    "f(o={[]: 2})",
    "f(l=[1 2])",
    "f(l=(1, 2))",
    "f(i=x)",
    "f(i=True)",
    ",",
    "f(),,",
    "f(,)",
    "'f'()",
];

#[test]
fn what_is_malformed_is_text() {
    let good = xml("f", &[("i", "1")]);
    let long = "n".repeat(257);
    let whole = [
        good.replace("function=f", "function="),
        good.replace("function=f", "function=<f"),
        good.replace("function=f", &format!("function={long}")),
        good.replace("<function=f>", ""),
        good.replace("<function=f>", "<function=f>x"),
        good.replace("<function=", "<Function="),
        good.replace("parameter=i", "parameter="),
        good.replace("parameter=i", "parameter=a\nb"),
        good.replace("</function>", ""),
        good.replace("</function>", "</function></function>"),
        good.replace("</tool_call>", "</tool_call"),
        good.replace("\n1\n", "\none\n"),
        good.replace("\n1\n", "\n\n"),
        good.replace("\n1\n", "\n1.5\n"),
        good.replace("\n1\n", "\n\"1\"\n"),
        good.replace("\n1\n", "\n1 2\n"),
        good.replace("\n</parameter>\n", " </parameter>\n"),
        xml("f", &[("i", "1"), ("i", "1")]),
        xml("f", &[("b", "yes")]),
        xml("f", &[("l", "{}")]),
        xml("f", &[("o", "{\"a\": }")]),
        xml("f", &[("o", "{\"a\": \"\\ud800\"}")]),
        xml("f", &[("n", "1e999")]),
        xml("f", &[("l", &format!("{}{}", "[".repeat(5000), "]".repeat(5000)))]),
        xml("f", &[("e", "low"), ("en", "low")]),
    ];
    let deep = [block(&format!("g(a={}1{})", "[".repeat(5000), "]".repeat(5000)))];
    let others = [
        "<|tool_call_start|> f()<|tool_call_end|>".to_owned(),
        "<|tool_call_start|>[f()<|tool_call_end|>".to_owned(),
        "<|tool_call_start|>[f()]<|tool_call_end|".to_owned(),
        "<|tool_call_start|>[f(i=<b>)]<|tool_call_end|>".to_owned(),
        block(&format!("{long}()")),
        "<tool_call>".to_owned(),
        "<tool_cal".to_owned(),
    ];
    for text in whole.iter().chain(&MALFORMED_BLOCKS.map(block)).chain(&deep).chain(&others) {
        assert_eq!(pieces(text), [say(text)]);
        // Calls behind it are read as ever, once a value or a string that it left open is closed.
        let is_read = |closing: &&str| {
            let expected = [say(&format!("{text}{closing}")), call("f", r#"{"i":1}"#, &good)];
            pieces(&format!("{text}{closing}{good}")) == expected
        };
        assert!(["", "\n</parameter>x", "'<"].iter().any(is_read), "{text}");
    }
    for text in [
        "<tool_call>",
        "<tool_call>\n<",
        "<tool_call><function=f></",
        "<|tool_call_start|>[f(i=1",
        "<tool_call>\n<think",
    ] {
        let expected = [say(text), call("f", r#"{"i":1}"#, &good)];
        assert_eq!(pieces(&format!("{text}{good}")), expected, "{text}");
    }
    let expected = [say("<tool_call>"), Piece::Reasoning("x ".into()), say("y")];
    assert_eq!(pieces("<tool_call><think>x</think> y"), expected);
}

#[test]
fn text_comes_at_once_and_nothing_of_an_open_call() {
    let mut filter = ReplyFilter::new(&["STOP".into()], false, schemas()).unwrap();
    let text = xml("g", &[("a", "STOP")]);
    assert_eq!(filter.push(b"Hm ST<tool"), [say("Hm ")]);
    assert_eq!(filter.push(&text.as_bytes()["<tool".len()..text.len() - 1]), []);
    assert_eq!(filter.push(b">OP."), [say("ST"), call("g", r#"{"a":"STOP"}"#, &text), say("OP.")]);
    assert_eq!(filter.push(b"<tool_call> `"), [say("<tool_call> `")]);
    assert_eq!(filter.push(b"<tool_call>ST"), [say("<tool_call>")]);
    assert_eq!(filter.push(b"OP never"), []);
    assert_eq!((filter.finish(), filter.stopped()), (vec![], Some("STOP")));
}

#[test]
fn stop_strings_act_on_text_and_in_no_call() {
    let good = xml("g", &[("a", "END")]);
    for (reply, stops, expected) in [
        (format!("{good} END x"), ["END"], vec![call("g", r#"{"a":"END"}"#, &good), say(" ")]),
        (format!("E{good}ND"), ["END"], vec![say("E"), call("g", r#"{"a":"END"}"#, &good), say("ND")]),
        (good.clone(), ["</tool_call>"], vec![call("g", r#"{"a":"END"}"#, &good)]),
        (format!("{}END", &good[..30]), ["END"], vec![say(&good[..30])]),
        ("a<tool_call>b".into(), ["a<tool_call>b"], vec![]),
        (format!("END{good}"), ["END"], vec![]),
    ] {
        for cut in 1..=reply.len() {
            assert_eq!(filtered(reply.as_bytes().chunks(cut), &schemas(), &stops), expected, "{reply}");
        }
    }
}

#[test]
fn calls_have_a_size_limit_and_take_linear_time() {
    let start = std::time::Instant::now();
    let room = |text: &str| MAX_CALL_BYTES - text.len();
    for (open, close) in [
        ("<tool_call><function=g><parameter=a>\n", "\n</parameter></function></tool_call>"),
        ("<|tool_call_start|>[g(a='", "')]<|tool_call_end|>"),
    ] {
        for filler in ["x", "<", "\n</parameter", "</parameter"] {
            let fill = |bytes: usize| {
                let mut value = filler.repeat(bytes / filler.len());
                value.push_str(&"x".repeat(bytes - value.len()));
                format!("{open}{value}{close}")
            };
            let most = fill(room(&format!("{open}{close}")));
            assert!(matches!(&filtered(most.as_bytes().chunks(7), &schemas(), &[])[..], [Piece::ToolCall { .. }]));
            let more = fill(room(&format!("{open}{close}")) + 1);
            assert_eq!(filtered(more.as_bytes().chunks(7), &schemas(), &[]), [say(&more)]);
        }
    }
    // Many starts of calls, in one push.
    for text in ["<tool_call>\n<", "<tool_call><function=f><parameter=s></parameter>\n<", "<|tool_call_start|>["] {
        let many = text.repeat((1 << 20) / text.len());
        assert_eq!(filtered([many.as_bytes()], &schemas(), &[]), [say(&many)]);
    }
    let keys: String = (0..80_000).map(|i| format!("k{i}=1,")).collect();
    assert!(matches!(
        filtered([block(&format!("g({keys})")).as_bytes()], &schemas(), &[])[..],
        [Piece::ToolCall { .. }]
    ));
    println!("20 MiB of calls in {:?}", start.elapsed());
    assert!(start.elapsed().as_secs() < 20);
}

#[test]
fn schemas_that_refer_in_circles_or_without_end_are_read_in_time() {
    let start = std::time::Instant::now();
    let wide: Vec<Value> = (0..100).map(|_| json!({"$ref": "#/$defs/a"})).collect();
    let mut deep = json!({"type": "integer"});
    for _ in 0..100 {
        deep = json!({"anyOf": [deep]});
    }
    let tools = json!([{"name": "f", "parameters": {
        "properties": {"a": {"$ref": "#/$defs/a"}, "deep": deep, "b": {"type": "integer"}},
        "$defs": {"a": {"anyOf": wide}},
    }}]);
    let schemas = Arc::new(ToolSchemas::new(&tools));
    let text = xml("f", &[("a", "1"), ("deep", "1")]);
    let expected = [call("f", r#"{"a":"1","deep":"1"}"#, &text)];
    assert_eq!(filtered([text.as_bytes()], &schemas, &[]), expected);
    assert!(start.elapsed().as_secs() < 10);
    for tools in [json!(null), json!({}), json!([1, {"name": 1}])] {
        assert_eq!(ToolSchemas::new(&tools), ToolSchemas::default());
    }
    let bare = json!([{"name": "f", "parameters": {"properties": []}}]);
    assert_eq!(ToolSchemas::new(&bare), ToolSchemas::new(&json!([{"name": "f"}])));
}

#[test]
fn tags_that_are_one_token_are_spelled_out() {
    let tokenizer = demo_tokenizer();
    let text = xml("f", &[("i", "4")]);
    let tokens = tokenizer.encode(&text, true).unwrap();
    for tag in ["<tool_call>", "</tool_call>", "<think>", "</think>"] {
        let id = tokenizer.id_of(tag).unwrap();
        assert!(tokenizer.is_control(id));
        assert_eq!(tokenizer.token_bytes(id).unwrap(), tag.as_bytes());
    }
    assert!(tokens.contains(&tokenizer.id_of("<tool_call>").unwrap()));
    let bytes = tokens.iter().map(|id| tokenizer.token_bytes(*id).unwrap());
    assert_eq!(filtered(bytes, &schemas(), &[]), [call("f", r#"{"i":4}"#, &text)]);
}

/// Small JSON that many references make large.
#[test]
fn long_lists_and_paths_that_many_schemas_refer_to_are_read_in_time() {
    let words: Vec<String> = (0..5000).map(|i| format!("word {i}")).collect();
    let types: Vec<&str> = std::iter::repeat_n("string", 50_000).collect();
    let path = format!("#/{}", "a/".repeat(500_000));
    let many: Vec<Value> = (0..20_000).map(|_| json!({"$ref": "#/$defs/a"})).collect();
    let long = "long".repeat(250_000);
    let lists = [json!({"enum": words}), json!({"enum": [long]}), json!({"const": long})];
    let others = [json!({"enum": vec![1; 50_000]}), json!({"type": types}), json!({"$ref": path})];
    for a in lists.into_iter().chain(others) {
        let properties = json!({"x": {"anyOf": many}, "y": {"type": "integer"}});
        let root = json!({"properties": properties, "$defs": {"a": a}});
        let start = std::time::Instant::now();
        ToolSchemas::new(&json!([{"name": "f", "parameters": root}]));
        let took = start.elapsed();
        assert!(took < std::time::Duration::from_secs(1), "{took:?}: {}", &root["$defs"].to_string()[..60]);
    }
}
