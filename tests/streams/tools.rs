//! A model that calls tools: the calls of its replies as events.

use crate::common::*;
use lfm3::stream::DoneReason;
use serde_json::{Map, Value, json};

/// Chats of the oracle in which a tool is called: the chat up to the call, and the call as text.
fn tool_chats() -> Vec<(Value, String)> {
    let cases = include_str!("../data/oracle/short/lfm3-demo-4bit-g32/cases.json");
    let cases: Vec<Value> = serde_json::from_str(cases).unwrap();
    let tool_cases = cases.into_iter().filter(|case| case["kind"] == "tool");
    let chats = tool_cases.map(|case| {
        let messages = case["messages"].as_array().unwrap();
        let call = messages.iter().position(|message| message["role"] == "assistant").unwrap();
        let chat = json!({"messages": messages[..call], "tools": case["tools"], "enable_thinking": false});
        (chat, messages[call]["content"].as_str().unwrap().to_owned())
    });
    chats.collect()
}

/// The name and arguments of a call as text, read line by line; values that are numbers become numbers.
fn parsed(text: &str) -> (String, Value) {
    let mut lines = text.lines().skip(1);
    let name = lines.next().unwrap().trim_start_matches("<function=").trim_end_matches('>').to_owned();
    let mut arguments = Map::new();
    while let Some(key) = lines.next().unwrap().strip_prefix("<parameter=") {
        let value = lines.next().unwrap();
        let value = value.parse::<i64>().map_or(Value::from(value), Value::from);
        arguments.insert(key.trim_end_matches('>').to_owned(), value);
        lines.next();
    }
    (name, arguments.into())
}

#[test]
fn a_tool_question_is_answered_by_a_call_with_the_oracles_arguments() {
    let model = open(2);
    let chats = tool_chats();
    for (chat, text) in &chats {
        let stream = stream(&model);
        stream.set_chat(&chat.to_string(), &[]).unwrap();
        stream.generate(&greedy()).unwrap();
        let heard = run(&model, &stream);
        assert_eq!((heard.text.as_str(), heard.done), ("", Some(DoneReason::StopToken)), "{heard:?}");
        let [[name, arguments, written]] = &heard.calls[..] else { panic!("{heard:?}") };
        let arguments = serde_json::from_str(arguments).unwrap();
        assert_eq!((name.clone(), arguments), parsed(text));
        assert_eq!(written, text);
    }
    assert_eq!(chats.len(), 3);
}

#[test]
fn arguments_are_typed_by_the_tools_of_the_last_chat() {
    let model = open(2);
    let (with_tools, text) =
        tool_chats().into_iter().find(|(_, text)| text.contains("<function=add>")).expect("a sum in the oracle");
    let stream = stream(&model);
    let call_of = |chat: &Value| {
        stream.set_chat(&chat.to_string(), &[]).unwrap();
        stream.generate(&greedy()).unwrap();
        let calls = run(&model, &stream).calls;
        serde_json::from_str::<Value>(&calls[0][1]).unwrap()
    };
    assert_eq!(call_of(&with_tools), parsed(&text).1);
    let mut untyped = with_tools.clone();
    for tool in untyped["tools"].as_array_mut().unwrap() {
        tool["parameters"]["properties"] = json!({"a": {"type": "string"}, "b": {"type": "string"}});
    }
    assert!(call_of(&untyped)["a"].is_string());
    assert_eq!(call_of(&with_tools), parsed(&text).1);
}

#[test]
fn a_call_kept_in_the_chat_and_answered_goes_on_from_what_the_stream_holds() {
    let model = open(2);
    let (mut chat, text) = tool_chats().swap_remove(0);
    let stream = stream(&model);
    stream.set_chat(&chat.to_string(), &[]).unwrap();
    stream.generate(&greedy()).unwrap();
    let heard = run(&model, &stream);
    let held = stream.length().unwrap();
    let messages = chat["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": heard.calls[0][2]}));
    messages.push(json!({"role": "tool", "content": "{\"sum\": 781}"}));
    stream.set_chat(&chat.to_string(), &[]).unwrap();
    stream.generate(&greedy()).unwrap();
    let answer = run(&model, &stream);
    assert_eq!((answer.text.as_str(), &answer.calls[..]), ("347 plus 434 is 781.", &[][..]), "{text}");
    assert!(answer.usage.cached_tokens as usize >= held - 1, "{:?} after {held}", answer.usage);
    // The same call as tool_calls, its arguments typed, is the same prompt.
    let tokens = stream.tokens().unwrap();
    let [name, arguments, _] = &heard.calls[0];
    let call = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    chat["messages"][1] = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    stream.set_chat(&chat.to_string(), &[]).unwrap();
    let prompt = stream.tokens().unwrap();
    assert_eq!(prompt, tokens[..prompt.len()]);
}
