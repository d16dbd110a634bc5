//! Turns what rooms count into metrics, a few times a minute.

use std::fs;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::base::BrokerGroupName;
use crate::broker::Broker;
use crate::commit_log::{LogStats, SYNC_BUCKETS_MICROS};
use crate::index::Index;
use crate::metrics as names;
use crate::raft::{Group, Role};

use super::hosted::Hosted;
use super::index;
use super::live::count;

const INTERVAL: Duration = Duration::from_secs(1);

/// Never ends.
pub(super) async fn keep(handle: PrometheusHandle, groups: Vec<Told>, broker: Broker) {
    names::BUILD_INFO.set([env!("CARGO_PKG_VERSION")], 1);
    let mut before = vec![LogStats::default(); groups.len()];
    loop {
        for (Told { name, group, index }, before) in groups.iter().zip(&mut before) {
            let name = name.as_str();
            let stats = group.log().stats();
            log(name, group, before, &stats);
            *before = stats;
            replica(name, group);
            state(name, group);
            health(name, group);
            messages(name, group, index.as_ref());
        }
        names::RECEIVE_WAITING.set([], broker.waiting() as u64);
        process();
        handle.run_upkeep();
        tokio::time::sleep(INTERVAL).await;
    }
}

/// A replica that is told of, and its broker group's name.
#[derive(Debug)]
pub(super) struct Told {
    name: BrokerGroupName,
    group: Group,
    index: Option<Index>,
}

pub(super) fn of(hosted: &[Hosted]) -> Vec<Told> {
    let told = |hosted: &Hosted| Told {
        name: hosted.name.clone(),
        group: hosted.group.clone(),
        index: hosted.index.clone(),
    };
    hosted.iter().map(told).collect()
}

fn replica(name: &str, group: &Group) {
    let status = group.status();
    let role = match status.role {
        Role::Down => 0,
        Role::Learner => 1,
        Role::Follower => 2,
        Role::Candidate => 3,
        Role::Leader => 4,
    };
    names::RAFT_ROLE.set([name], role);
    names::DURABILITY_MODE.set([name, group.durability().name()], 1);
    let behind = count(status.group_committed).saturating_sub(count(status.applied));
    names::CATCH_UP_ENTRIES.set([name], behind);
    names::RAFT_TERM.set([name], status.term.get());
    for (gauge, index) in [
        (names::LOG_LAST_INDEX, status.last),
        (names::LOG_COMMITTED_INDEX, status.committed),
        (names::LOG_APPLIED_INDEX, status.applied),
    ] {
        gauge.set([name], count(index).saturating_sub(1));
    }
}

fn messages(name: &str, group: &Group, messages: Option<&Index>) {
    let Some(messages) = messages else { return };
    let stats = messages.stats();
    names::INDEX_LAG_BYTES.set([name], index::lag(group, messages));
    names::INDEX_FILES.set([name], stats.files as u64);
    names::INDEX_BYTES.set([name], stats.bytes);
}

fn health(name: &str, group: &Group) {
    let health = group.health();
    names::DISK_ROOM_BYTES.set([name], health.room);
    names::DISK_PRESSURE.set([name], health.pressure as u64);
    names::CLOCK_OFF_MILLISECONDS.set([name], health.clock_off.unsigned_abs());
    names::CLOCK_SUSPECT.set([name], u64::from(health.clock_suspect));
}

fn state(name: &str, group: &Group) {
    // Numbers that the state has at hand, because nothing is applied during a look.
    let (topics, groups, in_flight) =
        group.read(|state| (state.topics_count(), state.groups_count(), state.in_flight()));
    let (floor, moved) = group.read(|state| (state.floor(), state.moved_bytes()));
    names::LOG_FLOOR_INDEX.set([name], floor.map_or(0, |floor| floor.index.get()));
    names::RETAINED_UNDER_WAY_BYTES.set([name], moved);
    let first = group.log().bounds().first;
    names::LOG_FIRST_INDEX.set([name], first.map_or(0, |first| first.get()));
    names::TOPICS.set([name], topics as u64);
    names::GROUPS.set([name], groups as u64);
    names::IN_FLIGHT_MESSAGES.set([name], in_flight as u64);
    let (delayed, kept) = group.read(|state| (state.delayed(), state.delayed_bytes()));
    names::DELAYED_VISIBLE.set([name], group.read(|state| state.delayed_visible()) as u64);
    names::DELAYED_MESSAGES.set([name], delayed as u64);
    names::DELAYED_KEPT_BYTES.set([name], kept);
}

fn log(name: &str, group: &Group, before: &LogStats, stats: &LogStats) {
    names::LOG_BYTES.set_total([name], stats.bytes);
    names::LOG_APPENDS.set_total([name], stats.appends);
    names::LOG_SEGMENTS.set([name], group.log().segments().len() as u64);
    for (at, (count, old)) in stats.sync_buckets.iter().zip(&before.sync_buckets).enumerate() {
        // What took longer than the last bound counts as twice that bound.
        let longest = SYNC_BUCKETS_MICROS[SYNC_BUCKETS_MICROS.len() - 1] * 2;
        let micros = SYNC_BUCKETS_MICROS.get(at).copied().unwrap_or(longest);
        let new = usize::try_from(count - old).unwrap_or(usize::MAX);
        if new > 0 {
            names::LOG_SYNC_SECONDS.record_many([name], Duration::from_micros(micros), new);
        }
    }
}

fn process() {
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        names::OPEN_FDS.set([], (entries.count() as u64).saturating_sub(1));
    }
    if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().and_then(|s| anonymous(&s)) {
        names::RESIDENT_ANONYMOUS_BYTES.set([], bytes);
    }
}

/// The line `RssAnon:   1234 kB` of proc(5).
fn anonymous(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_anonymous_memory_of_this_process() {
        assert_eq!(anonymous("VmRSS:\t 9 kB\nRssAnon:\t   12 kB\n"), Some(12_288));
        assert_eq!(anonymous("VmRSS:\t 9 kB\n"), None);
        let own = fs::read_to_string("/proc/self/status").unwrap();
        assert!(anonymous(&own).unwrap() > 0);
    }
}
