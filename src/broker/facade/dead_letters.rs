//! Dead letters of a consumer group in all broker groups.

use futures::future::join_all;

use crate::base::GroupName;
use crate::broker::api::GroupInfo;
use crate::broker::dead_letters::{
    DeadLetterInfo, GroupChange, LetterCursor, LetterFilter, LetterPage, RedrivenLetter, Room,
};
use crate::broker::error::{GroupError, NoGroup};
use crate::broker::groups::{check_attempts, check_backoff};
use crate::broker::{Broker, Replica};

impl Broker {
    /// At most `limit` dead letters, by broker group and then in the order of their deaths, from the
    /// one behind `after`; with `bodies`, up to about so many bytes of them.
    pub async fn dead_letters(
        &self,
        group: &GroupName,
        filter: &LetterFilter,
        after: Option<&LetterCursor>,
        (limit, bodies): (usize, Option<usize>),
    ) -> Result<LetterPage, GroupError> {
        let mut letters = Vec::new();
        // One more tells whether a further page follows.
        let mut room = Room { letters: limit + 1, bytes: bodies, cut: false };
        for replica in self.with_letters(group, filter).await? {
            let behind = match after {
                Some(after) if replica.name < after.broker_group => continue,
                Some(after) if replica.name == after.broker_group => Some(after.offset),
                _ => None,
            };
            let page = replica.dead_letters(group, filter, behind, &mut room).await;
            letters.extend(page.map_err(|error| self.at(replica, error.into(), GroupError::at))?);
            if room.cut {
                break;
            }
        }
        let more = room.cut || letters.len() > limit;
        letters.truncate(limit);
        Ok(LetterPage { letters, more })
    }

    /// Sends the dead letters of one page back to their group; `dry` only says which. At most as many
    /// as [`crate::machine::REDRIVE_MAX`].
    pub async fn redrive(
        &self,
        group: &GroupName,
        letters: Vec<DeadLetterInfo>,
        dry: bool,
    ) -> Result<Vec<RedrivenLetter>, GroupError> {
        if dry {
            let only = |letter| RedrivenLetter { letter, outcome: None };
            return Ok(letters.into_iter().map(only).collect());
        }
        let mut redriven = Vec::with_capacity(letters.len());
        let mut letters = letters.into_iter().peekable();
        while let Some(name) = letters.peek().map(|letter| letter.at.broker_group.clone()) {
            let same = |letter: &DeadLetterInfo| letter.at.broker_group == name;
            let part = std::iter::from_fn(|| letters.next_if(same)).collect();
            let replica = self.named(std::slice::from_ref(&name))?.remove(0);
            let outcomes = replica.redrive(group, part).await;
            redriven
                .extend(outcomes.map_err(|error| self.at(replica, error.into(), GroupError::at))?);
        }
        Ok(redriven)
    }

    /// Changes how a group's messages fail, wherever the group is.
    pub async fn update_group(
        &self,
        name: &GroupName,
        change: &GroupChange,
    ) -> Result<GroupInfo, GroupError> {
        change.attempts_max.map(check_attempts).transpose()?;
        change.backoff.as_ref().map(check_backoff).transpose()?;
        let having = self.with_letters(name, &LetterFilter::default()).await?;
        let updated = join_all(having.iter().map(|replica| replica.update_group(name, change)));
        for (replica, outcome) in having.iter().zip(updated.await) {
            outcome.map_err(|error| self.at(replica, error, GroupError::at))?;
        }
        self.changed_group(name).await
    }

    /// Where the group is, of the broker groups that are asked for.
    async fn with_letters(
        &self,
        group: &GroupName,
        filter: &LetterFilter,
    ) -> Result<Vec<&Replica>, GroupError> {
        let chosen = self.named(&filter.broker_groups)?;
        self.catch_up().await?;
        let having = chosen.into_iter().filter(|replica| replica.knows_group(group));
        let having: Vec<_> = having.collect();
        if having.is_empty() { Err(NoGroup { group: group.clone() }.into()) } else { Ok(having) }
    }
}
