//! Reads sealed segments again and again, so that rot is found before a reader needs the bytes.

use std::time::Duration;

use crate::base::ByteSize;
use crate::commit_log::CommitLog;
use crate::machine::UnitsCursor;
use crate::raft::Group;

/// How often the budget of a second is handed out, in parts.
const PARTS: u32 = 10;
/// Between two rounds over the whole log.
const REST: Duration = Duration::from_secs(60 * 60);
/// How often damage that a reader found is looked for while the scrub rests.
const GLANCE: Duration = Duration::from_millis(200);

/// Ends only when the log is damaged, with what is known about it.
pub(super) async fn scrub(group: Group, per_second: ByteSize) -> String {
    let log = group.log().clone();
    let pause = Duration::from_secs(1) / PARTS;
    let budget = per_second.get().div_ceil(u64::from(PARTS));
    loop {
        loop {
            if let Some(damage) = by_reader(&log) {
                return damage;
            }
            let part = log.clone();
            let read = tokio::task::spawn_blocking(move || part.scrub(budget)).await;
            match read {
                Ok(Ok(progress)) if progress.left == 0 => break,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return format!("the scrub found that {error}"),
                Err(error) => return format!("the scrub broke off: {error}"),
            }
            tokio::time::sleep(pause).await;
        }
        scrub_units(&group, budget, pause).await;
        let next_round = tokio::time::Instant::now() + REST;
        while tokio::time::Instant::now() < next_round {
            if let Some(damage) = by_reader(&log) {
                return damage;
            }
            tokio::time::sleep(GLANCE).await;
        }
    }
}

/// One round over the queue units. Damage ends the replica.
async fn scrub_units(group: &Group, budget: u64, pause: Duration) {
    let mut cursor = UnitsCursor::default();
    loop {
        let (part, mut at) = (group.clone(), cursor);
        let checked = tokio::task::spawn_blocking(move || (part.check_units(&mut at, budget), at));
        match checked.await {
            Ok((false, next)) => cursor = next,
            Ok((true, _)) | Err(_) => return,
        }
        tokio::time::sleep(pause).await;
    }
}

fn by_reader(log: &CommitLog) -> Option<String> {
    log.damage().map(|damage| format!("a reader found that {damage}"))
}
