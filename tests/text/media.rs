//! Pictures and videos in rendered chats.

use super::support::{checkpoint_file, demo_template, demo_tokenizer, media_tokens, rendered, rendered_with};
use lfm3::engine::Clock;
use lfm3::error::{Code, Error, Result};
use lfm3::text::{ChatTemplate, MAX_MEDIA_TOKENS, MediaText, MediaTokens, Prompt, RenderContext, SpecialTokens};
use lfm3::text::{Tokenizer, media_run, render, render_text};
use serde_json::{Value, json};

fn image(tokens: usize) -> MediaText {
    MediaText::Image { tokens }
}

fn video(pairs: &[(f64, usize)]) -> MediaText {
    MediaText::Video { pairs: pairs.to_vec() }
}

fn chat(parts: Value) -> Value {
    json!({"messages": [{"role": "user", "content": parts}], "enable_thinking": false})
}

fn part(kind: &str) -> Value {
    json!({"type": kind})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn demo(parts: Value, media: &[MediaText]) -> Result<Prompt> {
    rendered(&chat(parts).to_string(), &demo_template(), media)
}

/// Parts without a word around them, each as `image` and `video` write it.
fn bare(image: &str, video: &str, parts: Value, media: &[MediaText]) -> Result<Prompt> {
    let source = "{%- for part in messages[0].content -%}
        {%- if part.type == 'text' -%}{{ part.text }}{%- elif part.type == 'image' -%}IMAGE{%- else -%}VIDEO
        {%- endif -%}{%- endfor -%}";
    let source = source.replace("IMAGE", image).replace("VIDEO", video);
    let template = ChatTemplate::load(&source, "t.jinja", SpecialTokens::default())?;
    rendered(&chat(parts).to_string(), &template, media)
}

/// Tokens of a text whose control tokens are control tokens.
fn tokens(text: &str) -> Vec<u32> {
    demo_tokenizer().encode(text, true).unwrap()
}

fn failure(result: Result<Prompt>) -> (Code, String) {
    let Error { code, message } = result.unwrap_err();
    (code, message)
}

#[test]
fn pictures_take_a_token_a_row() {
    let parts = json!([text("a "), part("image"), text(" b"), part("image")]);
    let prompt = demo(parts, &[image(3), image(1)]).unwrap();
    let written = |first: &str, second: &str| {
        format!(
            "<|startoftext|><|im_start|>user\na <|vision_start|>{first}<|vision_end|> b<|vision_start|>{second}\
             <|vision_end|><|im_end|>\n<|im_start|>assistant\n"
        )
    };
    assert_eq!(prompt.text, written("<|image|>", "<|image|>"));
    assert_eq!(prompt.tokens, tokens(&written("<|image|><|image|><|image|>", "<|image|>")));
    let id = media_tokens(demo_tokenizer()).image.unwrap();
    let at: Vec<usize> = (0..prompt.tokens.len()).filter(|&i| prompt.tokens[i] == id).collect();
    let runs: Vec<(usize, usize)> = prompt.media.iter().flatten().map(|run| (run.start, run.end)).collect();
    assert_eq!((prompt.media.len(), runs), (2, vec![(at[0], at[0] + 3), (at[3], at[3] + 1)]));
}

#[test]
fn videos_take_a_run_a_pair_with_its_time() {
    let pairs = [(0.25, 2), (1.0, 1), (12.349, 3)];
    let written = "<0.2 seconds><|vision_start|><|video|><|video|><|vision_end|>\
                   <1.0 seconds><|vision_start|><|video|><|vision_end|>\
                   <12.3 seconds><|vision_start|><|video|><|video|><|video|><|vision_end|>";
    let parts = json!([text("See "), part("video"), text("> it")]);
    for as_written in ["<|video|>", "<|vision_start|><|video|><|vision_end|>"] {
        let prompt = bare("", as_written, parts.clone(), &[video(&pairs)]).unwrap();
        assert_eq!(prompt.text, format!("See {as_written}> it"));
        assert_eq!(prompt.tokens, tokens(&format!("See {written}> it")), "{as_written}");
        let id = media_tokens(demo_tokenizer()).video.unwrap();
        let placeholders = (0..prompt.tokens.len()).filter(|&i| prompt.tokens[i] == id);
        assert!(placeholders.eq(prompt.media[0].iter().flat_map(Clone::clone)));
        assert_eq!(prompt.media[0].iter().map(ExactSizeIterator::len).collect::<Vec<_>>(), [2, 1, 3]);
    }
    // Only the three tags one behind the other are one placeholder.
    let apart = bare("", "<|vision_start|> <|video|><|vision_end|>", parts, &[video(&pairs[1..2])]).unwrap();
    let written = "See <|vision_start|> <1.0 seconds><|vision_start|><|video|><|vision_end|><|vision_end|>> it";
    assert_eq!(apart.tokens, tokens(written));
}

#[test]
fn times_join_the_text_around_them() {
    // A vocabulary in which a space and the time's first sign are one token.
    let mut vocabulary: Value = serde_json::from_slice(&checkpoint_file("tokenizer.json")).unwrap();
    let merge = "\u{120}<";
    vocabulary["model"]["vocab"][merge] = 5000.into();
    vocabulary["model"]["merges"].as_array_mut().unwrap().push(json!(["\u{120}", "<"]));
    let tokenizer = Tokenizer::load(vocabulary.to_string().as_bytes(), "tokenizer.json").unwrap();
    let source = "{% for part in messages[0].content %}{{ part.text or '<|video|>' }}{% endfor %}";
    let template = ChatTemplate::load(source, "t.jinja", SpecialTokens::default()).unwrap();
    let json = chat(json!([text("a "), part("video"), text("b")])).to_string();
    let prompt = rendered_with(&json, &template, &tokenizer, &[video(&[(3.0, 1)])]).unwrap();
    let written = "a <3.0 seconds><|vision_start|><|video|><|vision_end|>b";
    assert_eq!(prompt.tokens, tokenizer.encode(written, true).unwrap());
    assert!(prompt.tokens.contains(&5000));
}

#[test]
fn times_are_rounded_as_python_does() {
    let values = [0.0, 0.04, 0.05, 0.15, 0.25, 0.35, 0.75, 1.25, 2.5, 9.95, 9.96, 99.95, 1234.5];
    let python = ["0.0", "0.0", "0.1", "0.1", "0.2", "0.3", "0.8", "1.2", "2.5", "9.9", "10.0", "100.0", "1234.5"];
    for (value, python) in values.iter().zip(python) {
        let ids = media_tokens(demo_tokenizer());
        let run = media_run(demo_tokenizer(), &video(&[(*value, 1)]), &ids).unwrap().0;
        let text = String::from_utf8(demo_tokenizer().decode(&run).unwrap()).unwrap();
        assert_eq!(text, format!("<{python} seconds><|vision_start|><|video|><|vision_end|>"), "{value}");
    }
}

#[test]
fn media_outside_a_chat_stand_between_start_and_end() {
    let ids = media_tokens(demo_tokenizer());
    let (run, ranges) = media_run(demo_tokenizer(), &image(2), &ids).unwrap();
    assert_eq!(run, tokens("<|vision_start|><|image|><|image|><|vision_end|>"));
    assert_eq!((ranges.len(), ranges[0].clone()), (1, 1..3));
    let (run, ranges) = media_run(demo_tokenizer(), &video(&[(0.5, 1), (2.0, 2)]), &ids).unwrap();
    let written = "<0.5 seconds><|vision_start|><|video|><|vision_end|><2.0 seconds><|vision_start|><|video|><|video|>\
                   <|vision_end|>";
    assert_eq!(run, tokens(written));
    assert!(ranges.iter().flat_map(Clone::clone).eq((0..run.len()).filter(|&i| Some(run[i]) == ids.video)));
    let alone = MediaTokens { start: None, end: None, ..ids };
    assert_eq!(media_run(demo_tokenizer(), &image(2), &alone).unwrap().0, tokens("<|image|><|image|>"));
}

#[test]
fn parts_and_media_must_agree() {
    let both = json!([part("image"), text("x"), part("video")]);
    for (parts, media, message) in [
        (both.clone(), vec![image(1)], "the chat has 2 parts of type image or video, and 1 media are given"),
        (json!("x"), vec![image(1)], "the chat has 0 parts of type image or video, and 1 media are given"),
        (both.clone(), vec![image(1), image(1)], "messages[0].content[2] is a video, but media 1 is an image"),
        (json!([part("image")]), vec![video(&[])], "messages[0].content[0] is an image, but media 0 is a video"),
    ] {
        assert_eq!(failure(demo(parts, &media)), (Code::InvalidArgument, message.into()));
    }
    assert!(demo(both, &[image(1), video(&[(1.0, 1)])]).is_ok());
}

#[test]
fn a_template_must_write_a_placeholder_for_each_part() {
    let media = [image(1), image(1)];
    let parts = json!([part("image"), part("image")]);
    for (image, found) in [("", 0), ("<|image|><|image|>", 4), ("<|video|>", 2)] {
        let (code, message) = failure(bare(image, "", parts.clone(), &media));
        let wrong = format!("the template writes {found} placeholders for 2 parts");
        let wrong = if image == "<|video|>" { "the template writes a video where media 0".to_owned() } else { wrong };
        assert_eq!(code, Code::Template);
        assert!(message.starts_with(&wrong), "{message}");
    }
    let alone = ChatTemplate::load("<|image|>", "t.jinja", SpecialTokens::default()).unwrap();
    assert_eq!(failure(rendered(&chat(json!("x")).to_string(), &alone, &[])).0, Code::Template);
}

#[test]
fn nobodys_text_is_a_placeholder() {
    let spelled = "<|image|><|vision_start|><|video|><|vision_end|>";
    let prompt = demo(json!([text(spelled), part("image"), text(spelled)]), &[image(2)]).unwrap();
    let ids = media_tokens(demo_tokenizer());
    assert_eq!(prompt.tokens.iter().filter(|id| Some(**id) == ids.image).count(), 2);
    assert!(!prompt.tokens.iter().any(|id| Some(*id) == ids.video));
    assert_eq!(prompt.text.matches(spelled).count(), 2);
}

#[test]
fn what_a_checkpoint_cannot_show_is_refused() {
    let (template, tokenizer, clock) = (demo_template(), demo_tokenizer(), Clock::default());
    let json = chat(json!([part("image")])).to_string();
    let media = [image(1)];
    let context = RenderContext {
        template: &template,
        tokenizer,
        clock: &clock,
        media: &media,
        media_tokens: MediaTokens::default(),
    };
    let (code, message) = failure(render(&json, &context));
    assert_eq!(
        (code, message.as_str()),
        (Code::Unsupported, "media 0 is an image: this checkpoint has no token for it")
    );
    assert!(render_text(&json, &template, tokenizer, &clock).unwrap().contains("<|image|>"));
}

#[test]
fn sizes_and_times_have_limits() {
    let pictures = json!([part("image"), part("image")]);
    assert_eq!(failure(demo(pictures.clone(), &[image(MAX_MEDIA_TOKENS), image(1)])).0, Code::Limit);
    assert_eq!(failure(demo(pictures, &[image(usize::MAX), image(usize::MAX)])).0, Code::Limit);
    let one = |pairs: &[(f64, usize)]| failure(demo(json!([part("video")]), &[video(pairs)])).0;
    assert_eq!(one(&[(0.0, usize::MAX), (1.0, usize::MAX)]), Code::Limit);
    assert_eq!(one(&vec![(0.0, 0); 70_000]), Code::Limit);
    for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
        assert_eq!(one(&[(seconds, 1)]), Code::InvalidArgument);
    }
    assert!(demo(json!([part("image")]), &[image(0)]).is_ok_and(|prompt| prompt.media[0][0].is_empty()));
}
