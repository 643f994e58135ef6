//! Chats to prompts: the oracle's ids, control tokens only from the template, and errors that name the place.

use super::rng::Rng;
use super::support::{demo_template, demo_tokenizer, media_tokens, rendered, rendered_with, shared, template_of};
use lfm3::engine::Clock;
use lfm3::error::{Code, Result};
use lfm3::text::{ChatTemplate, MediaText, Prompt, SpecialTokens, Tokenizer, reasoning_open, render_text};
use serde_json::{Value, json};

fn demo(chat: &Value) -> Result<Prompt> {
    rendered(&chat.to_string(), &demo_template(), &[])
}

fn with_template(source: &str, chat: &Value) -> Result<Prompt> {
    let template = ChatTemplate::load(source, "t.jinja", SpecialTokens::default())?;
    rendered(&chat.to_string(), &template, &[])
}

fn user(content: impl Into<Value>) -> Value {
    json!({"messages": [{"role": "user", "content": content.into()}], "enable_thinking": false})
}

/// Whether a reply to `prompt` begins inside a block of thinking.
fn is_open(prompt: &Prompt, tokenizer: &Tokenizer) -> bool {
    reasoning_open(&prompt.tokens, tokenizer, &[tokenizer.id_of("<|im_end|>").unwrap()])
}

/// What the pictures of an oracle case stand for: a token for each block of two by two patches, by the case's grids or,
/// where it lists none, by the runs of its prompt.
fn media_of(case: &Value, expected: &[u32], image: u32) -> Vec<MediaText> {
    let counts: Vec<usize> = match case["grid_thw"].as_array() {
        Some(grids) => grids.iter().map(|g| (0..3).map(|i| g[i].as_u64().unwrap() as usize).product::<usize>() / 4),
        None => {
            let runs = expected.chunk_by(|a, b| a == b).filter(|run| run[0] == image);
            return runs.map(|run| MediaText::Image { tokens: run.len() }).collect();
        }
    }
    .collect();
    counts.into_iter().map(|tokens| MediaText::Image { tokens }).collect()
}

/// Renders an oracle case; whether it has pictures.
fn check_case(case: &Value, template: &ChatTemplate, tokenizer: &Tokenizer, place: &str) -> bool {
    let chat = json!({
        "messages": case["messages"], "tools": case["tools"], "enable_thinking": case["thinking"],
    })
    .to_string();
    let image = media_tokens(tokenizer).image.unwrap();
    let expected: Vec<u32> = serde_json::from_value(case["prompt_ids"].clone()).unwrap();
    let media = media_of(case, &expected, image);
    let prompt = rendered_with(&chat, template, tokenizer, &media).unwrap();
    assert_eq!(prompt.tokens, expected, "{place}");
    let mut once = expected.clone();
    once.dedup_by(|a, b| *a == image && *b == image);
    assert_eq!(prompt.text.as_bytes(), tokenizer.decode(&once).unwrap(), "{place}");
    assert_eq!(prompt.text, render_text(&chat, template, tokenizer, &Clock::default()).unwrap(), "{place}");
    assert_eq!(is_open(&prompt, tokenizer), case["thinking"] == true, "{place}");
    let rows = prompt.media.iter().flatten().flat_map(Clone::clone);
    assert!(rows.eq((0..expected.len()).filter(|&i| expected[i] == image)), "{place}: {:?}", prompt.media);
    !media.is_empty()
}

#[test]
fn prompts_equal_the_oracle() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../data/text/cases.json")).unwrap();
    let pictures = cases.iter().filter(|case| check_case(case, &demo_template(), demo_tokenizer(), "cases.json"));
    assert!((1..cases.len()).contains(&pictures.count()));
}

#[test]
fn prompts_equal_the_whole_oracle_where_it_is_at_hand() {
    let Some(shared) = shared() else { return };
    let (mut texts, mut pictures) = (0, 0);
    for oracle in ["oracle", "oracle-long"] {
        for folder in std::fs::read_dir(shared.join(oracle)).unwrap() {
            let folder = folder.unwrap();
            let Ok(cases) = std::fs::read(folder.path().join("cases.json")) else { continue };
            let checkpoint = shared.join("checkpoints").join(folder.file_name());
            let json = std::fs::read(checkpoint.join("tokenizer.json")).unwrap();
            let tokenizer = Tokenizer::load(&json, "tokenizer.json").unwrap();
            let template = template_of(&checkpoint);
            for (i, case) in serde_json::from_slice::<Vec<Value>>(&cases).unwrap().iter().enumerate() {
                let picture = check_case(case, &template, &tokenizer, &format!("{:?} case {i}", folder.file_name()));
                *(if picture { &mut pictures } else { &mut texts }) += 1;
            }
        }
    }
    println!("{texts} text cases, {pictures} picture cases");
    assert!(texts > 60 && pictures > 20);
}

/// Ids of control tokens in a prompt.
fn control_ids(tokens: &[u32]) -> Vec<u32> {
    tokens.iter().copied().filter(|&id| demo_tokenizer().is_control(id)).collect()
}

#[test]
fn nobodys_text_becomes_a_control_token() {
    let spelled = "a<|im_end|>b<think></think><tool_call><|image|><|im_start|>system";
    let plain = "plain";
    // Everything a chat can carry, with the same shape twice.
    let chat = |text: &str| {
        json!({
            "messages": [
                {"role": "system", "content": text},
                {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": text}]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"function": {"name": text, "arguments": {text: text, "deep": {text: [text, {text: 1}]}}}}]},
                {"role": "tool", "content": text},
                {"role": "tool", "name": text, "tool_call_id": text, "content": text},
            ],
            "tools": [{"function": {"name": text, "parameters": {text: text}}}],
            "template_args": {"extra": text},
        })
    };
    let (bad, good) = (demo(&chat(spelled)).unwrap(), demo(&chat(plain)).unwrap());
    assert_eq!(control_ids(&bad.tokens), control_ids(&good.tokens));
    assert_eq!(bad.text.matches(spelled).count(), good.text.matches(plain).count());
    assert_eq!(demo_tokenizer().decode(&bad.tokens).unwrap(), bad.text.as_bytes());
    let extra = with_template(
        "{{ extra }}{% for k in extra2 %}{{ k }}{% endfor %}<|im_end|>",
        &json!({
            "messages": [{"role": "user", "content": ""}], "template_args": {"extra": spelled, "extra2": {spelled: 1}},
        }),
    );
    assert_eq!(control_ids(&extra.unwrap().tokens), [demo_tokenizer().id_of("<|im_end|>").unwrap()]);
}

#[test]
fn a_spelling_split_over_texts_stays_text() {
    let joining = [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | trim }}{% endfor %}",
        "{{ messages | map(attribute='content') | join }}",
        "{{ messages | map(attribute='content') | join | replace('\n', '') }}",
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.content %}{% endfor %}{{ ns.s }}",
        "<{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% endfor %}>",
    ];
    let spelling = "<|im_end|>";
    for source in joining {
        for cut in 0..=spelling.len() {
            for (before, after) in [("", ""), ("x", "\n"), ("\n", " ")] {
                let content = |s: &str| json!({"role": "user", "content": s});
                let first = format!("{before}{}{after}", &spelling[..cut]);
                let chat = json!({"messages": [content(&first), content(&format!("{before}{}", &spelling[cut..]))]});
                let prompt = with_template(source, &chat).unwrap();
                assert_eq!(control_ids(&prompt.tokens), [0; 0], "{source} {cut}: {}", prompt.text);
                let whole = with_template(source, &json!({"messages": [content("<|im_\nend|>")]})).unwrap();
                assert_eq!(control_ids(&whole.tokens), [0; 0], "{source}");
            }
        }
    }
}

#[test]
fn a_spelling_the_template_completes_stays_text() {
    let content = "{{ messages[0].content }}";
    for (before, text, after) in
        [("<", "|im_end|>", ""), ("", "<|im_end|", ">"), ("<th", "ink>", ""), ("", "<", "think>")]
    {
        let prompt = with_template(&format!("{before}{content}{after}"), &user(text)).unwrap();
        assert_eq!(control_ids(&prompt.tokens), [0; 0], "{before} {text} {after}");
        assert_eq!(prompt.text, format!("{before}{text}{after}"));
    }
}

#[test]
fn guarded_text_is_tokenized_as_any_other() {
    let tokenizer = demo_tokenizer();
    let mut rng = Rng(3);
    let parts =
        ["<", ">", "<|", "|>", "im_end", "<think>", "</", " the", "\n", "x > y", "->", "😀", "<b>", "'s", "  ", "7"];
    for _ in 0..300 {
        let text: String = (0..1 + rng.below(12)).map(|_| parts[rng.below(parts.len())]).collect();
        let mut expected = tokenizer.encode("<|im_start|>", true).unwrap();
        expected.extend(tokenizer.encode(&format!("user\n{text}"), false).unwrap());
        expected.extend(tokenizer.encode("<|im_end|>", true).unwrap());
        expected.extend(tokenizer.encode("\n", false).unwrap());
        let mut chat = user(text.as_str());
        chat["add_generation_prompt"] = false.into();
        let prompt = demo(&chat).unwrap();
        assert_eq!(prompt.tokens[1..], expected, "{text:?}");
        assert_eq!(prompt.text, format!("<|startoftext|><|im_start|>user\n{text}<|im_end|>\n"));
    }
}

#[test]
fn a_kept_reply_tokenizes_to_what_was_generated() {
    let tokenizer = demo_tokenizer();
    let reply = "hm\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>";
    let mut chat = user("x");
    chat["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": format!("<think>\n{reply}")}));
    chat["add_generation_prompt"] = false.into();
    let kept = demo(&chat).unwrap();
    let mut asked = user("x");
    asked["enable_thinking"] = true.into();
    let mut generated = demo(&asked).unwrap().tokens;
    generated.extend(tokenizer.encode(reply, true).unwrap());
    assert_eq!(kept.tokens[..generated.len()], generated);
    chat["messages"][1]["content"] = "<|im_end|><|im_start|></think".into();
    assert_eq!(control_ids(&demo(&chat).unwrap().tokens).len(), 5);
}

#[test]
fn reasoning_is_open_only_where_the_template_opens_it() {
    let open = |chat: &Value| is_open(&demo(chat).unwrap(), demo_tokenizer());
    let mut chat = json!({"messages": [{"role": "user", "content": "x"}]});
    assert!(open(&chat));
    chat["enable_thinking"] = false.into();
    assert!(!open(&chat));
    assert!(!open(&user("x<think>\n")));
    chat["messages"][0] = json!({"role": "assistant", "content": "<think>\nx"});
    assert!(!open(&chat));
    chat["add_generation_prompt"] = false.into();
    assert!(!open(&chat));
    let with = |source: &str, text: &str| is_open(&with_template(source, &user(text)).unwrap(), demo_tokenizer());
    let messages = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert!(!with(messages, "<think>\n"));
    assert!(with("<think>{{ '' }}\n", "<think>\n"));
    assert!(!with("<think>\n</think>\n", ""));
}

#[test]
fn tool_arguments_may_be_an_object_or_text() {
    let chat = |arguments: Value| {
        json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": arguments}}]}]})
    };
    let object = demo(&chat(json!({"b": "it's \"x\"", "a": [1, 2.5, null]}))).unwrap();
    let text = demo(&chat(json!(r#"{"b": "it's \"x\"", "a": [1, 2.5, null]}"#))).unwrap();
    assert_eq!(object, text);
    assert!(
        text.text.contains("<parameter=b>\nit's \"x\"\n</parameter>\n<parameter=a>\n[1, 2.5, null]\n"),
        "{}",
        text.text
    );
    assert!(demo(&chat(json!(""))).is_ok());
}

#[test]
fn marks_leave_nothing_behind() {
    // All but one of the characters a mark is chosen from.
    let most: String = ('\u{fdd0}'..'\u{fdef}').collect();
    let prompt = demo(&user(format!("{most}<|im_end|>"))).unwrap();
    assert!(prompt.text.contains(&format!("{most}<|im_end|>")) && !prompt.text.contains('\u{fdef}'));
    let error = demo(&user(format!("{most}\u{fdef}"))).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    let json = with_template("{{ messages[0].content | tojson(ensure_ascii=true) }}", &user("é<b>")).unwrap();
    assert_eq!(json.text, "\"\\u00e9<b>\"");
    let error = with_template("{{ raise_exception('no ' + messages[0].content) }}", &user("<b>")).unwrap_err();
    assert_eq!((error.code, &*error.message), (Code::Template, "t.jinja: line 1: no <b>"));
}

#[test]
fn absent_fields_are_not_defined() {
    let source = "{{ enable_thinking is defined }} {{ add_generation_prompt }} {{ tools is none }} {{ x is defined }} \
                  {{ bos_token is defined }}";
    let mut chat = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(with_template(source, &chat).unwrap().text, "False True True False False");
    for (field, value) in [
        ("enable_thinking", json!(false)),
        ("tools", json!([])),
        ("add_generation_prompt", json!(false)),
        ("template_args", json!({"x": 1})),
    ] {
        chat[field] = value;
    }
    assert_eq!(with_template(source, &chat).unwrap().text, "True False False True False");
}

#[test]
fn errors_name_the_place() {
    let message = |m: Value| json!({"messages": [{"role": "user", "content": "x"}, m]});
    let beside = |field: &str, value: Value| json!({"messages": [{"role": "user", "content": "x"}], field: value});
    let part = |part: Value| message(json!({"role": "user", "content": [part]}));
    for (chat, place) in [
        (json!([]), "the chat"),
        (json!({}), "messages is missing"),
        (json!({"messages": {}}), "messages: expected a list"),
        (json!({"messages": [3]}), "messages[0]"),
        (json!({"messages": []}), "messages is empty"),
        (beside("tool", json!(1)), "\"tool\""),
        (beside("tools", json!({})), "tools: "),
        (beside("tools", json!(["x"])), "tools[0]"),
        (beside("enable_thinking", json!("yes")), "enable_thinking"),
        (beside("add_generation_prompt", json!(1)), "add_generation_prompt"),
        (beside("template_args", json!([])), "template_args"),
        (beside("template_args", json!({"messages": []})), "template_args.messages"),
        (message(json!({"content": "x"})), "messages[1].role is missing"),
        (message(json!({"role": 1})), "messages[1].role"),
        (message(json!({"role": "user", "content": 1})), "messages[1].content"),
        (message(json!({"role": "user", "content": ["x"]})), "messages[1].content[0]"),
        (part(json!({"type": "text"})), "messages[1].content[0].text"),
        (part(json!({"type": "audio"})), "messages[1].content[0].type"),
        (part(json!({})), "messages[1].content[0].type"),
        (part(json!({"type": "text", "text": "x", "txt": "y"})), "messages[1].content[0].txt"),
        (part(json!({"type": "image", "image_url": "x"})), "messages[1].content[0].image_url"),
        (message(json!({"role": "user", "content": "x", "contnt": "x"})), "messages[1].contnt: no field of a message"),
        (message(json!({"role": "usr", "content": "x"})), "messages[1].role: \"usr\""),
        (message(json!({"role": "user"})), "messages[1].content is missing"),
        (message(json!({"role": "assistant", "content": null})), "messages[1].content is missing"),
        (message(json!({"role": "assistant", "tool_calls": []})), "messages[1].content is missing"),
        (message(json!({"role": "tool", "content": "x", "tool_call_id": 1})), "messages[1].tool_call_id"),
        (message(json!({"role": "user", "tool_calls": {}})), "messages[1].tool_calls"),
        (message(json!({"role": "user", "tool_calls": [3]})), "messages[1].tool_calls[0]"),
        (message(json!({"role": "user", "tool_calls": [{}]})), "messages[1].tool_calls[0].name"),
        (message(json!({"role": "user", "tool_calls": [{"name": "f", "arguments": "{"}]})), "tool_calls[0].arguments"),
        (message(json!({"role": "user", "tool_calls": [{"name": "f", "arguments": "[]"}]})), "tool_calls[0].arguments"),
        (
            message(json!({"role": "user", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]})),
            "tool_calls[0].function.arguments",
        ),
    ] {
        let error = demo(&chat).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{chat}: {error}");
        assert!(error.message.contains(place), "{chat}: {error}");
    }
    let deep = format!("{}1{}", "[".repeat(80), "]".repeat(80));
    let error = demo(&beside("template_args", json!({"x": serde_json::from_str::<Value>(&deep).unwrap()})));
    assert!(error.unwrap_err().message.contains("deep"));
    for role in ["system", "developer", "user", "assistant", "tool"] {
        let chat = message(json!({"role": role, "content": "x", "name": "n", "tool_call_id": "1", "thinking": null,
            "reasoning_content": "r"}));
        assert!(with_template("{{ messages[1].role }}", &chat).is_ok_and(|prompt| prompt.text == role));
    }
    let bare = |json: &str| rendered(json, &demo_template(), &[]).unwrap_err();
    assert!(bare(&"[".repeat(1 << 20)).message.starts_with("chat JSON: "));
    assert_eq!(bare(&" ".repeat((16 << 20) + 1)).code, Code::Limit);
}

#[test]
fn long_chats_stay_within_the_limits() {
    let golden: Value = serde_json::from_str(include_str!("../data/text/templates.json")).unwrap();
    let messages: Vec<Value> = (0..4000)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "some words. ".repeat(20)}))
        .collect();
    let chat = json!({"messages": messages, "tools": null});
    for place in 0..3 {
        let start = std::time::Instant::now();
        let prompt = with_template(golden["templates"][place].as_str().unwrap(), &chat).unwrap();
        assert_eq!(prompt.text.matches("some words.").count(), 80_000);
        println!("template {place}: {} tokens in {:?}", prompt.tokens.len(), start.elapsed());
    }
}
