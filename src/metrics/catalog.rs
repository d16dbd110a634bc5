//! Every metric there is. Names that start with `rocketmq_` are those of RocketMQ's own exporter,
//! so that dashboards written for it find them.

use super::{Counter, Description, Gauge, Histogram, Kind, Unit};

macro_rules! catalog {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $unit:ident $help:literal)+) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help)]
            pub const $constant: $kind<{ (&[$($label),*] as &[&str]).len() }> =
                $kind { name: $name, labels: [$($label),*] };
        )+

        /// All of them, for whoever describes them.
        pub const CATALOG: &[Description] = &[$(Description {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            labels: &[$($label),*],
            help: $help,
        }),+];
    };
}

catalog! {
    RAFT_ROLE: Gauge "raftmq_raft_role" ["broker_group"] Count
        "What this replica is: 0 ended, 1 learner, 2 follower, 3 candidate, 4 leader."
    RAFT_TERM: Gauge "raftmq_raft_term" ["broker_group"] Count
        "The Raft term that this replica is in."

    LOG_LAST_INDEX: Gauge "raftmq_log_last_index" ["broker_group"] Count
        "Index of the last entry in this replica's log."
    LOG_COMMITTED_INDEX: Gauge "raftmq_log_committed_index" ["broker_group"] Count
        "Index of the last entry that this replica knows to be committed."
    LOG_APPLIED_INDEX: Gauge "raftmq_log_applied_index" ["broker_group"] Count
        "Index of the last entry that this replica's machine has applied."
    CATCH_UP_ENTRIES: Gauge "raftmq_catch_up_entries" ["broker_group"] Count
        "Committed entries that this replica has not applied yet, as far as its leader told it."
    LOG_BYTES: Counter "raftmq_log_bytes_total" ["broker_group"] Bytes
        "Bytes appended to this replica's log since the process started."
    LOG_APPENDS: Counter "raftmq_log_append_total" ["broker_group"] Count
        "Append calls to this replica's log since the process started."
    LOG_SYNC_SECONDS: Histogram "raftmq_log_sync_seconds" ["broker_group"] Seconds
        "How long syncing the log to the disk took."
    LOG_SEGMENTS: Gauge "raftmq_log_segments" ["broker_group"] Count
        "Segments of this replica's log, spare ones not counted."

    MESSAGES_IN: Counter "rocketmq_messages_in_total" ["topic"] Count
        "Messages sent to a topic and confirmed by this node."
    MESSAGES_OUT: Counter "rocketmq_messages_out_total" ["topic", "consumer_group"] Count
        "Messages of a topic that this node handed to a consumer group, repeated ones included."

    LOG_FLOOR_INDEX: Gauge "raftmq_log_floor_index" ["broker_group"] Count
        "Index of the entry that the log of every replica may begin behind, in the applied state."
    LOG_FIRST_INDEX: Gauge "raftmq_log_first_index" ["broker_group"] Count
        "Index of the first entry in this replica's log."
    RETAINED_UNDER_WAY_BYTES: Gauge "raftmq_retained_under_way_bytes" ["broker_group"] Bytes
        "Messages under way that were written again because the log's front passed them."
    EXPIRED_MESSAGES: Counter "raftmq_expired_messages_total" ["topic", "consumer_group"] Count
        "Messages that retention took before the group was done with them, since the start."
    DEAD_LETTERS: Counter "raftmq_dead_letters_total" ["topic", "consumer_group"] Count
        "Messages of a topic that became dead letters of a consumer group, since the start."

    SUBSCRIPTION_CONFLICTS: Counter "raftmq_subscription_conflicts_total" ["topic", "consumer_group"] Count
        "Times members of a group began to use different filters on a topic, told by its leader."

    DISK_ROOM_BYTES: Gauge "raftmq_disk_room_bytes" ["broker_group"] Bytes
        "Bytes that are free on this replica's disk or set aside for its log."
    DISK_PRESSURE: Gauge "raftmq_disk_pressure" ["broker_group"] Count
        "What is refused for want of room at a majority: 0 nothing, 1 sends, 2 receives too, 3 all."
    CLOCK_OFF_MILLISECONDS: Gauge "raftmq_clock_off_milliseconds" ["broker_group"] Count
        "How far this node's clock is from the majority's, either way."
    CLOCK_SUSPECT: Gauge "raftmq_clock_suspect" ["broker_group"] Count
        "1 while this node's clock is too far from the majority's to lead."

    TOPICS: Gauge "raftmq_topics" ["broker_group"] Count
        "Topics in this replica's applied state."
    GROUPS: Gauge "raftmq_groups" ["broker_group"] Count
        "Consumer groups in this replica's applied state."
    IN_FLIGHT_MESSAGES: Gauge "raftmq_in_flight_messages" ["broker_group"] Count
        "Messages handed out and not yet acknowledged, in this replica's applied state."
    DELAYED_MESSAGES: Gauge "raftmq_delayed_messages" ["broker_group"] Count
        "Messages whose time has not come, in this replica's applied state."
    DELAYED_VISIBLE: Gauge "raftmq_delayed_visible_messages" ["broker_group"] Count
        "Delayed messages that are visible and take memory still, since their records lie far before."
    DELAYED_KEPT_BYTES: Gauge "raftmq_delayed_kept_bytes" ["broker_group"] Bytes
        "Bytes of records written again beyond the log's front for messages that are delayed, or were."
    RECEIVE_WAITING: Gauge "raftmq_receive_waiting" [] Count
        "Receive requests that wait on this node for a message."

    REQUESTS: Counter "raftmq_requests_total" ["rpc", "code"] Count
        "Client requests answered by this node, by rpc and by the code of the answer."
    REQUEST_SECONDS: Histogram "raftmq_request_seconds" ["rpc"] Seconds
        "How long client requests took on this node, long polls with their waiting."

    INDEX_LAG_BYTES: Gauge "raftmq_index_lag_bytes" ["broker_group"] Bytes
        "Bytes of applied entries in which messages cannot be found by id or key on this node yet."
    INDEX_FILES: Gauge "raftmq_index_files" ["broker_group"] Count
        "Files of this replica's index of message ids and keys."
    INDEX_BYTES: Gauge "raftmq_index_bytes" ["broker_group"] Bytes
        "Bytes of this replica's index of message ids and keys."

    BUILD_INFO: Gauge "raftmq_build_info" ["version"] Count
        "Always 1, with the version of the program as a label."
    DURABILITY_MODE: Gauge "raftmq_durability_mode" ["broker_group", "mode"] Count
        "Always 1, with what an OK to a send means as a label: majority-fsync or majority-memory."

    RESIDENT_ANONYMOUS_BYTES: Gauge "process_resident_anonymous_bytes" [] Bytes
        "Resident memory of the process that no file backs, so without the mapped log."
    OPEN_FDS: Gauge "process_open_fds" [] Count
        "File descriptors that the process has open."
}
