//! Dead letters of a consumer group: listing, reading, and sending them back.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::error::ClientError;
use super::values::{BackoffCurve, GroupInfo, Page};
use super::{CALL_TIMEOUT, Client};
use crate::base::GroupName;
use crate::wire::raftmq as v1;
use crate::wire::raftmq::redriven_letter::Outcome;

/// A page waits for a leader, and asks the next one when that goes.
const REDRIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Which dead letters; what is empty or absent stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// The topic that they came from.
    pub topic: Option<String>,
    /// When they died, in milliseconds since 1970-01-01T00:00:00Z: not before the first, and before
    /// the second.
    pub from: Option<u64>,
    pub until: Option<u64>,
    /// In the topic of dead letters.
    pub offsets: Vec<u64>,
    pub message_ids: Vec<String>,
    pub broker_groups: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its place among the group's dead letters, to go on behind.
    pub at: String,
    pub broker_group: String,
    /// In the topic of dead letters.
    pub offset: u64,
    pub message_id: String,
    /// Where it came from.
    pub topic: String,
    pub queue: u32,
    pub origin_offset: u64,
    /// Deliveries that it got.
    pub attempts: u32,
    /// `not-acknowledged`, `returned`, `given-up` or `consumer-left`.
    pub reason: String,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub died: u64,
    pub tag: Option<String>,
    pub keys: Vec<String>,
    pub message_group: Option<String>,
    /// Only when bodies were asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
    #[serde(skip)]
    pub body: Bytes,
}

/// A dead letter, and what came of sending it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RedrivenLetter {
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// `REDRIVEN`, `TARGET_GONE`, `NOT_FOUND`, `FULL`, or `DRY_RUN`.
    pub outcome: &'static str,
}

/// Other settings for a group; what is absent stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupChange<'a> {
    pub attempts_max: Option<u32>,
    /// Milliseconds; none stands for what there is, or for the curve.
    pub backoff: &'a [u64],
    pub curve: Option<BackoffCurve>,
    /// Milliseconds; 0 stands for as long as the log is kept.
    pub dead_keep: Option<u64>,
}

impl Client {
    /// Dead letters of a group from the one behind `after`; at most `limit`, and at most what the
    /// broker puts into one page. Without `bodies` they come without bodies and user properties.
    pub async fn dead_letters(
        &self,
        group: &GroupName,
        filter: &DeadLetterFilter,
        (after, limit): (Option<String>, u32),
        bodies: bool,
    ) -> Result<Page<DeadLetter>, ClientError> {
        let (group, filter) = (group.to_string(), Some(wire_filter(filter)));
        let request = v1::ListDeadLettersRequest { group, filter, after, limit, bodies };
        let request = self.request(request, CALL_TIMEOUT);
        let page = self.admin().list_dead_letters(request).await?.into_inner();
        Ok(Page { items: page.letters.into_iter().map(letter).collect(), more: page.more })
    }

    /// Sends one page of them back to their group, or only says which with `dry_run`. The next page
    /// begins behind the last one of this.
    pub async fn redrive(
        &self,
        group: &GroupName,
        filter: &DeadLetterFilter,
        (after, limit): (Option<String>, u32),
        dry_run: bool,
    ) -> Result<Page<RedrivenLetter>, ClientError> {
        let (group, filter) = (group.to_string(), Some(wire_filter(filter)));
        let request = v1::RedriveDeadLettersRequest { group, filter, after, limit, dry_run };
        let request = self.request(request, REDRIVE_TIMEOUT);
        let page = self.admin().redrive_dead_letters(request).await?.into_inner();
        Ok(Page { items: page.letters.into_iter().map(redriven).collect(), more: page.more })
    }

    /// Changes how a group's messages fail, wherever the group is.
    pub async fn update_group(
        &self,
        name: &GroupName,
        change: GroupChange<'_>,
    ) -> Result<GroupInfo, ClientError> {
        let request = v1::UpdateGroupRequest {
            name: name.to_string(),
            attempts_max: change.attempts_max,
            backoff: change.backoff.to_vec(),
            curve: change.curve.map(BackoffCurve::wire),
            dead_keep_millis: change.dead_keep,
        };
        let request = self.request(request, CALL_TIMEOUT);
        Ok(super::admin::group(self.admin().update_group(request).await?.into_inner()))
    }
}

fn wire_filter(filter: &DeadLetterFilter) -> v1::DeadLetterFilter {
    v1::DeadLetterFilter {
        topic: filter.topic.clone().unwrap_or_default(),
        from: filter.from,
        until: filter.until,
        offsets: filter.offsets.clone(),
        message_ids: filter.message_ids.clone(),
        broker_groups: filter.broker_groups.clone(),
    }
}

fn letter(letter: v1::DeadLetter) -> DeadLetter {
    DeadLetter {
        at: letter.at,
        broker_group: letter.broker_group,
        offset: letter.offset,
        message_id: letter.message_id,
        topic: letter.topic,
        queue: letter.queue,
        origin_offset: letter.origin_offset,
        attempts: letter.attempts,
        reason: letter.reason,
        died: letter.died,
        tag: letter.tag,
        keys: letter.keys,
        message_group: letter.message_group,
        properties: letter.properties.into_iter().collect(),
        body: letter.body,
    }
}

fn redriven(redriven: v1::RedrivenLetter) -> RedrivenLetter {
    let outcome = match redriven.outcome() {
        Outcome::Redriven => "REDRIVEN",
        Outcome::TargetGone => "TARGET_GONE",
        Outcome::NotFound => "NOT_FOUND",
        Outcome::Full => "FULL",
        Outcome::Unspecified => "DRY_RUN",
    };
    RedrivenLetter { letter: letter(redriven.letter.unwrap_or_default()), outcome }
}
