use std::collections::HashMap;

use bytes::Bytes;

use super::*;

fn good() -> v2::Message {
    v2::Message {
        topic: Some(v2::Resource { name: "t".into(), ..Default::default() }),
        body: Bytes::from_static(b"x"),
        system_properties: Some(v2::SystemProperties {
            message_id: "id".into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn filters_are_tags_or_sql_and_never_blank_sql() {
    let read = |r#type, expression: &str| {
        let expression = v2::FilterExpression { r#type, expression: expression.into() };
        filter(Some(&expression)).map_err(|refused| (refused.code, refused.text))
    };
    let illegal = |read: Result<FilterText, (Code, String)>| {
        let (code, text) = read.unwrap_err();
        assert_eq!(code, Code::IllegalFilterExpression);
        text
    };
    assert_eq!(filter(None).unwrap(), FilterText::Tags(String::new()));
    assert_eq!(read(0, "a||b"), Ok(FilterText::Tags("a||b".into())));
    assert_eq!(read(1, "*"), Ok(FilterText::Tags("*".into())));
    assert_eq!(read(2, "a > 1"), Ok(FilterText::Sql("a > 1".into())));
    for blank in ["", " "] {
        assert!(illegal(read(2, blank)).contains("blank"));
    }
    assert!(illegal(read(2, "a >> 1")).contains("'>' at column 4"));
    assert!(illegal(read(1, "a|b")).contains("byte 1"));
    assert!(illegal(read(3, "a")).contains("the filter type is 3"));
}

/// Checks a message after a change to it, and that the refusal names what was found.
fn refused(change: impl FnOnce(&mut v2::Message, &mut v2::SystemProperties)) -> (Code, String) {
    let mut changed = good();
    let mut system = changed.system_properties.take().unwrap();
    change(&mut changed, &mut system);
    changed.system_properties = Some(system);
    match message(&changed) {
        Ok(()) => (Code::Ok, String::new()),
        Err(refused) => (refused.code, refused.text),
    }
}

#[track_caller]
fn expect(found: (Code, String), code: Code, named: &[&str]) {
    assert_eq!(found.0, code, "{}", found.1);
    for name in named {
        assert!(found.1.contains(name), "{:?} does not name {name}", found.1);
    }
}

#[test]
fn a_plain_message_passes() {
    expect(refused(|_, _| {}), Code::Ok, &[]);
}

#[test]
fn bodies_hold_one_byte_to_four_mebibytes() {
    let body = |len| refused(|message, _| message.body = vec![0; len].into());
    expect(body(0), Code::MessageBodyEmpty, &["0 bytes", "4194304"]);
    expect(body(4_194_304), Code::Ok, &[]);
    expect(body(4_194_305), Code::MessageBodyTooLarge, &["4194305", "4194304"]);
}

#[test]
fn properties_are_counted_and_weighed() {
    let many = |count: usize| {
        refused(|message, _| {
            message.user_properties =
                (0..count).map(|i| (format!("p{i}"), String::new())).collect();
        })
    };
    expect(many(128), Code::Ok, &[]);
    expect(many(129), Code::MessagePropertiesTooLarge, &["129", "128"]);
    // 1 + 16379 in the property, 1 in the tag and 3 in the keys make 16384.
    let heavy = |value: usize| {
        refused(|message, system| {
            message.user_properties = HashMap::from([("k".into(), "v".repeat(value))]);
            system.tag = Some("t".into());
            system.keys = vec!["k".into(), "l".into(), "m".into()];
        })
    };
    expect(heavy(16_379), Code::Ok, &[]);
    expect(heavy(16_380), Code::MessagePropertiesTooLarge, &["16385", "16384"]);
}

#[test]
fn property_names_are_free_of_system_names_and_control_characters() {
    let property = |key: &str, value: &str| {
        refused(|message, _| {
            message.user_properties = HashMap::from([(key.to_owned(), value.to_owned())]);
        })
    };
    expect(property("colour", "rot grün"), Code::Ok, &[]);
    for reserved in ["TAGS", "UNIQ_KEY", "__CRC32#", "_SYS_MSG_PRIORITY_"] {
        expect(property(reserved, ""), Code::IllegalMessagePropertyKey, &[reserved]);
    }
    for control in ["a\u{1}b", "a\u{7f}b", "a\u{9f}b", "a\nb"] {
        expect(property(control, ""), Code::IllegalMessagePropertyKey, &["position 1"]);
        expect(property("a", control), Code::IllegalMessagePropertyKey, &["position 1"]);
    }
}

#[test]
fn tags_and_keys_are_words() {
    let tag = |tag: &str| refused(|_, system| system.tag = Some(tag.to_owned()));
    expect(tag(""), Code::Ok, &[]);
    expect(tag("a b"), Code::Ok, &[]);
    for illegal in [" ", "a|b", "a\tb"] {
        expect(tag(illegal), Code::IllegalMessageTag, &[&format!("{illegal:?}")]);
    }
    let key = |key: &str| refused(|_, system| system.keys = vec!["fine".into(), key.to_owned()]);
    expect(key(""), Code::Ok, &[]);
    expect(key("a|b"), Code::Ok, &[]);
    for illegal in ["  ", "a\u{0}b"] {
        expect(key(illegal), Code::IllegalMessageKey, &[&format!("{illegal:?}")]);
    }
}

#[test]
fn message_groups_have_at_most_63_bytes() {
    let group = |group: String| refused(|_, system| system.message_group = Some(group));
    expect(group(String::new()), Code::Ok, &[]);
    expect(group("g".repeat(63)), Code::Ok, &[]);
    expect(group("g".repeat(64)), Code::IllegalMessageGroup, &["64", "63"]);
    expect(group("ü".repeat(32)), Code::IllegalMessageGroup, &["64", "63"]);
    expect(group(" ".into()), Code::IllegalMessageGroup, &["white space"]);
    expect(group("a\u{85}".into()), Code::IllegalMessageGroup, &["position 1"]);
}

#[test]
fn message_ids_are_there_and_bounded() {
    let id = |id: String| refused(|_, system| system.message_id = id);
    expect(id(String::new()), Code::IllegalMessageId, &["blank"]);
    expect(id("i".repeat(255)), Code::Ok, &[]);
    expect(id("i".repeat(256)), Code::IllegalMessageId, &["256", "255"]);
    expect(id("a\u{2}".into()), Code::IllegalMessageId, &["position 1"]);
    let mut bare = good();
    bare.system_properties = None;
    assert_eq!(message(&bare).unwrap_err().code, Code::IllegalMessageId);
}

#[test]
fn message_types_are_known_numbers() {
    let kind = |number| refused(|_, system| system.message_type = number);
    expect(kind(0), Code::Ok, &[]);
    expect(kind(6), Code::Ok, &[]);
    expect(kind(7), Code::BadRequest, &["7"]);
    expect(kind(-1), Code::BadRequest, &["-1"]);
}

#[test]
fn a_delivery_timestamp_is_a_timestamp() {
    let at = |seconds, nanos| {
        refused(|_, system| {
            system.delivery_timestamp = Some(prost_types::Timestamp { seconds, nanos });
        })
    };
    expect(at(i64::MAX, 0), Code::Ok, &[]);
    expect(at(i64::MIN, 999_999_999), Code::Ok, &[]);
    expect(at(0, -1), Code::IllegalDeliveryTime, &["-1"]);
    expect(at(0, 1_000_000_000), Code::IllegalDeliveryTime, &["1000000000"]);
}

#[test]
fn a_priority_is_not_negative() {
    let with = |priority| refused(|_, system| system.priority = Some(priority));
    expect(with(0), Code::Ok, &[]);
    expect(with(i32::MAX), Code::Ok, &[]);
    expect(with(-1), Code::BadRequest, &["-1", "0 to 2147483647"]);
}

#[test]
fn recovery_durations_matter_to_transactions_only() {
    let after = |seconds, kind: v2::MessageType| {
        refused(|_, system| {
            system.message_type = kind.into();
            system.orphaned_transaction_recovery_duration =
                Some(prost_types::Duration { seconds, nanos: 0 });
        })
    };
    expect(after(3600, v2::MessageType::Transaction), Code::Ok, &[]);
    expect(after(3601, v2::MessageType::Normal), Code::Ok, &[]);
    expect(after(3601, v2::MessageType::Transaction), Code::BadRequest, &["3601", "3600"]);
    expect(after(-1, v2::MessageType::Transaction), Code::BadRequest, &["-1", "3600"]);
}

#[test]
fn stored_texts_without_a_limit_in_rocketmq_have_one_here() {
    let trace = |len| refused(|_, system| system.trace_context = Some("x".repeat(len)));
    expect(trace(1024), Code::Ok, &[]);
    expect(trace(1025), Code::BadRequest, &["1025", "1024"]);
    let host = |host: String| refused(|_, system| system.born_host = host);
    expect(host("h".repeat(256)), Code::BadRequest, &["256", "255"]);
    expect(host("a\u{1}".into()), Code::BadRequest, &["born host"]);
}

#[test]
fn a_request_holds_messages_of_one_topic() {
    let code = |found: &[v2::Message]| messages(found).map_err(|refused| refused.code);
    assert_eq!(code(&[]), Err(Code::MessageCorrupted));
    assert_eq!(code(&[good(), good()]).unwrap().as_str(), "t");
    let mut other = good();
    other.topic = Some(v2::Resource { name: "u".into(), ..Default::default() });
    assert_eq!(code(&[good(), other]), Err(Code::MessageCorrupted));
    let mut elsewhere = good();
    elsewhere.topic.as_mut().unwrap().resource_namespace = "ns".into();
    assert_eq!(code(&[good(), elsewhere]), Err(Code::MessageCorrupted));
    assert_eq!(code(&vec![good(); 1025]), Err(Code::MessageCorrupted));
    let mut none = good();
    none.topic = None;
    assert_eq!(code(&[none]), Err(Code::IllegalTopic));
}

#[test]
fn names_are_refused_with_their_own_codes() {
    let resource = |name: &str| v2::Resource { name: name.into(), ..Default::default() };
    for name in ["", "  ", "a b", "TBW102", "rmq_sys_x", &"t".repeat(128)] {
        assert_eq!(topic(Some(&resource(name))).unwrap_err().code, Code::IllegalTopic, "{name}");
    }
    let text = topic(Some(&resource(&"t".repeat(128)))).unwrap_err().text;
    assert!(text.contains("128") && text.contains("127"), "{text}");
    for name in ["", "a/b", "CID_RMQ_SYS_x", &"g".repeat(121)] {
        let code = group(Some(&resource(name))).unwrap_err().code;
        assert_eq!(code, Code::IllegalConsumerGroup, "{name}");
    }
    assert_eq!(group(None).unwrap_err().code, Code::IllegalConsumerGroup);
}

#[test]
fn invisible_durations_have_a_range_for_each_rpc() {
    let duration = |seconds, nanos| prost_types::Duration { seconds, nanos };
    let receive = |found| invisible_on_receive(Some(&found)).map_err(|refused| refused.code);
    let change = |found| invisible_on_change(Some(&found)).map_err(|refused| refused.code);
    assert_eq!(receive(duration(10, 0)), Ok(Millis::from_secs(10)));
    assert_eq!(receive(duration(43_200, 0)), Ok(Millis::from_secs(43_200)));
    assert_eq!(receive(duration(9, 999_999_999)), Err(Code::IllegalInvisibleTime));
    assert_eq!(receive(duration(43_200, 1_000_000)), Err(Code::IllegalInvisibleTime));
    assert_eq!(invisible_on_receive(None).unwrap_err().code, Code::IllegalInvisibleTime);
    assert_eq!(change(duration(0, 0)), Ok(Millis::ZERO));
    assert_eq!(change(duration(-1, 0)), Err(Code::IllegalInvisibleTime));
    assert_eq!(change(duration(0, -1)), Err(Code::IllegalInvisibleTime));
    assert_eq!(change(duration(i64::MAX, i32::MAX)), Err(Code::IllegalInvisibleTime));
    let text = invisible_on_receive(Some(&duration(9, 0))).unwrap_err().text;
    assert!(text.contains("9 s") && text.contains("10000 ms") && text.contains("43200000 ms"));
}

#[test]
fn small_things_are_bounded_too() {
    assert!(attempt_id(None).is_ok() && attempt_id(Some(&"a".repeat(255))).is_ok());
    assert!(attempt_id(Some(&"a".repeat(256))).unwrap_err().text.contains("256"));
    assert_eq!(
        [batch(1), batch(32), batch(33), batch(i32::MAX)].map(Result::unwrap),
        [1, 32, 32, 32]
    );
    assert_eq!([0, -5, i32::MIN].map(|size| batch(size).unwrap_err().code), [Code::BadRequest; 3]);
    assert!(acks(1).is_ok() && acks(1024).is_ok());
    assert_eq!(acks(0).unwrap_err().code, Code::BadRequest);
    assert!(acks(1025).unwrap_err().text.contains("1025"));
}

#[test]
fn client_properties_follow_the_specification() {
    let check = |properties: &[(&str, &str)]| {
        let properties: Vec<_> =
            properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        client_properties(properties.iter().map(|(k, v)| (k, v))).map_err(|refused| refused.text)
    };
    assert_eq!(check(&[("zone.a-1_b", "x")]), Ok(()));
    for key in ["", "1a", "a b", "rocketmq.x", &"k".repeat(65)] {
        assert!(check(&[(key, "")]).is_err(), "{key}");
    }
    assert!(check(&[("a", &"v".repeat(257))]).unwrap_err().contains("257"));
    let names: Vec<String> = (0..33).map(|i| format!("k{i}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    assert!(check(&many).unwrap_err().contains("33"));
    assert_eq!(check(&many[..32]), Ok(()));
    let value = "v".repeat(256);
    let heavy: Vec<_> = names.iter().take(16).map(|name| (name.as_str(), &*value)).collect();
    assert!(check(&heavy).unwrap_err().contains("4096"));
}

#[test]
fn a_message_is_of_one_kind() {
    let code = Code::MessagePropertyConflictWithType;
    let group = |system: &mut v2::SystemProperties| system.message_group = Some("g7".into());
    let at = |system: &mut v2::SystemProperties| {
        system.delivery_timestamp = Some(prost_types::Timestamp::default());
    };
    let found = refused(|_, system| {
        group(system);
        system.message_type = v2::MessageType::Transaction.into();
    });
    expect(found, code, &["g7", "transactional", "leave the message group out"]);
    let found = refused(|_, system| {
        group(system);
        at(system);
    });
    expect(found, code, &["g7", "delivery timestamp", "one of them"]);
    let found = refused(|_, system| {
        group(system);
        system.priority = Some(3);
    });
    expect(found, code, &["g7", "a priority, 3", "one of them"]);
    let found = refused(|_, system| {
        at(system);
        system.priority = Some(0);
    });
    expect(found, code, &["delivery timestamp", "a priority, 0"]);
    // A text that is set but empty counts as not set.
    let found = refused(|_, system| {
        system.message_group = Some(String::new());
        at(system);
    });
    expect(found, Code::Ok, &[]);
    expect(refused(|_, system| group(system)), Code::Ok, &[]);
}
