//! Bytes that are on disks: they may change only together with the format version.

use super::bench::{Bench, names};
use super::transactions::{end, prepare, prepared};
use crate::base::ClusterId;
use crate::command::{Command, Decision, Found, Publish};

fn small_state() -> Bench {
    let mut bench = Bench::with_topic(2);
    let found = Found { cluster: ClusterId::new(5), handle_key: [9; 32] };
    bench.apply(Command::Found(found));
    let items = vec![names::item(0, 1), names::item(1, 2), names::item(0, 3)];
    bench.apply(Command::Publish(Publish { topic: names::TOPIC, dedup: true, items }));
    let mut checkout = bench.checkout("a", &[1]);
    checkout.attempt_id = Some("try".into());
    bench.check_out(checkout);
    let committed = prepared(&mut bench, 4);
    bench.apply(end(committed, Decision::Commit));
    bench.apply(prepare(&[5]));
    bench
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits
        .as_bytes()
        .chunks(96)
        .map(|line| format!("{}\n", str::from_utf8(line).unwrap()))
        .collect()
}

#[test]
fn a_snapshot_keeps_its_bytes() {
    let snapshot = small_state().machine.freeze().unwrap().snapshot();
    assert_eq!(hex(&snapshot), include_str!("../testdata/snapshot-4.hex"));
}

#[test]
fn a_state_keeps_its_hash() {
    assert_eq!(format!("{:016x}", small_state().machine.state().hash()), "b562e09c39b8b1a5");
}
