//! Our `.proto` files against the descriptors inside the official Python client.
//!
//! The files are written in our own words, so a slip in a number or a label would compile, run,
//! and silently lose a field. Every fact of the client's copy must be in ours, and ours may hold
//! more only where the newer specification does.

use std::collections::BTreeMap;
use std::process::Command;

use prost::Message;
use prost_types::field_descriptor_proto::Label;
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use raftmq::wire;

use crate::common::clients;

/// What the specification gained after the client copied it, fact by fact: a client property, the
/// code for a bad one, and most of RocketMQ's Admin service.
const NEWER_THAN_CLIENT: &str = include_str!("../clients/python/newer_than_client.txt");

#[test]
fn every_fact_of_the_official_client_is_ours_too() {
    let output = Command::new(clients::python())
        .arg(clients::python_script("dump_descriptors.py"))
        .output()
        .expect("the interpreter starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs = facts(&output.stdout);
    let ours = facts(wire::DESCRIPTORS);
    assert!(theirs.len() > 400, "only {} facts were read from the client", theirs.len());

    let mut wrong = Vec::new();
    for (name, fact) in &theirs {
        match ours.get(name) {
            Some(our) if our == fact => {}
            Some(our) => wrong.push(format!("{name}: ours is {our}, the client's is {fact}")),
            None => wrong.push(format!("{name}: missing; the client's is {fact}")),
        }
    }
    let newer: BTreeMap<_, _> =
        NEWER_THAN_CLIENT.lines().filter_map(|line| line.split_once(": ")).collect();
    for (name, fact) in ours.iter().filter(|(name, _)| !theirs.contains_key(*name)) {
        match newer.get(name.as_str()) {
            Some(allowed) if allowed == fact => {}
            Some(allowed) => wrong.push(format!("{name}: ours is {fact}, allowed is {allowed}")),
            None => wrong.push(format!("{name}: not in the client; ours is {fact}")),
        }
    }
    for name in
        newer.keys().filter(|name| theirs.contains_key(**name) || !ours.contains_key(**name))
    {
        wrong.push(format!("{name}: listed as newer, but the client has it or we do not"));
    }
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// One line for each enum, value, message, field and rpc of the package, by its name in it.
fn facts(set: &[u8]) -> BTreeMap<String, String> {
    let set = FileDescriptorSet::decode(set).expect("a descriptor set");
    let mut facts = BTreeMap::new();
    for file in set.file.iter().filter(|file| file.package() == "apache.rocketmq.v2") {
        assert_eq!(file.syntax(), "proto3", "{}", file.name());
        for message in &file.message_type {
            message_facts(&mut facts, "", message);
        }
        for item in &file.enum_type {
            enum_facts(&mut facts, "", item);
        }
        for service in &file.service {
            for rpc in &service.method {
                let stream = |is: bool| if is { "stream " } else { "" };
                let fact = format!(
                    "rpc({}{}) -> {}{}",
                    stream(rpc.client_streaming()),
                    rpc.input_type(),
                    stream(rpc.server_streaming()),
                    rpc.output_type()
                );
                facts.insert(format!("{}.{}", service.name(), rpc.name()), fact);
            }
        }
    }
    facts
}

fn message_facts(facts: &mut BTreeMap<String, String>, outer: &str, message: &DescriptorProto) {
    let name = format!("{outer}{}", message.name());
    let map = message.options.as_ref().is_some_and(|options| options.map_entry());
    facts.insert(name.clone(), if map { "map entry" } else { "message" }.to_owned());
    for field in &message.field {
        facts.insert(format!("{name}.{}", field.name()), field_fact(message, field));
    }
    let inner = format!("{name}.");
    for nested in &message.nested_type {
        message_facts(facts, &inner, nested);
    }
    for item in &message.enum_type {
        enum_facts(facts, &inner, item);
    }
}

fn field_fact(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let label = match field.label() {
        Label::Repeated => "repeated",
        Label::Required => "required",
        Label::Optional if field.proto3_optional() => "optional",
        Label::Optional => "singular",
    };
    // The oneof that stands for `optional` has no name in the file.
    let oneof = match field.oneof_index.and_then(|index| usize::try_from(index).ok()) {
        Some(index) if !field.proto3_optional() => message.oneof_decl[index].name(),
        _ => "none",
    };
    format!(
        "{label} {:?} {} = {}, oneof {oneof}",
        field.r#type(),
        field.type_name(),
        field.number()
    )
}

fn enum_facts(facts: &mut BTreeMap<String, String>, outer: &str, item: &EnumDescriptorProto) {
    let name = format!("{outer}{}", item.name());
    facts.insert(name.clone(), "enum".to_owned());
    for value in &item.value {
        facts.insert(format!("{name}.{}", value.name()), format!("value {}", value.number()));
    }
}
