//! `raftmq group reset`, `pause` and `resume`: where a consumer group stands, and whether it goes on.

use clap::Args;

use crate::base::{GroupName, TopicName};
use crate::client::{GroupInfo, GroupReset, ResetPart, ResetTo};

use super::Ask;
use super::failure::Failure;
use super::group::group_name;
use super::output::{Output, Table};
use super::place::{PLACES, place};
use super::topic::topic_name;

#[derive(Debug, Args)]
pub(super) struct Reset {
    #[arg(value_parser = group_name)]
    name: GroupName,
    #[arg(long, value_parser = topic_name)]
    topic: TopicName,
    /// Where to: the first message that there is, behind the last one, an offset, or the first message
    /// of a time: 10m for ten minutes ago, 2026-11-30T18:00:00Z, or @ and milliseconds since 1970.
    #[arg(long, value_name = PLACES, value_parser = place)]
    to: ResetTo,
    /// Only this queue.
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Only these broker groups, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    broker_groups: Vec<String>,
    /// Tell what would come again and what would be passed by, and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct Pause {
    #[arg(value_parser = group_name)]
    name: GroupName,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Debug, Args)]
pub(super) struct Resume {
    #[arg(value_parser = group_name)]
    name: GroupName,
    /// Instead, let message groups of this topic go on that stood still after a last attempt.
    #[arg(long, value_parser = topic_name)]
    topic: Option<TopicName>,
    #[command(flatten)]
    ask: Ask,
}

impl Reset {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let reset = GroupReset {
            group: &self.name,
            topic: &self.topic,
            to: self.to,
            queue: self.queue,
            broker_groups: &self.broker_groups,
            dry_run: self.dry_run,
        };
        let parts = self.ask.client().await?.reset_group(&reset).await?;
        output.show(parts.as_slice(), table);
        if self.dry_run && !output.is_json() {
            output.note("nothing was changed: this was a dry run");
        }
        Ok(())
    }
}

impl Pause {
    pub(super) async fn run(self, output: &Output) -> Result<(), Failure> {
        let group = self.ask.client().await?.pause_group(&self.name, true).await?;
        let sentence = format!("nothing is handed out to {} until it is resumed", self.name);
        output.done(&group, sentence);
        Ok(())
    }
}

impl Resume {
    /// `progress` shows a group.
    pub(super) async fn run(
        self,
        output: &Output,
        progress: impl FnOnce(&GroupInfo) -> Table,
    ) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        let group = match self.topic {
            Some(topic) => client.resume_group(&self.name, &topic).await?,
            None => client.pause_group(&self.name, false).await?,
        };
        output.show(&group, progress);
        output.differences(&group.differences);
        Ok(())
    }
}

fn table(parts: &[ResetPart]) -> Table {
    let all = parts.iter().flat_map(|part| part.queues.iter().map(move |queue| (part, queue)));
    let rows = all.map(|(part, queue)| {
        [
            part.broker_group.clone(),
            queue.queue.to_string(),
            queue.from.to_string(),
            queue.to.to_string(),
            queue.again.to_string(),
            queue.passed_by.to_string(),
            part.epoch.to_string(),
        ]
    });
    Table::new(["BROKER GROUP", "QUEUE", "FROM", "TO", "AGAIN", "PASSED BY", "EPOCH"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::QueueReset;

    #[test]
    fn a_reset_tells_what_comes_again() {
        let queue = QueueReset { queue: 3, from: 7, to: 2, again: 5, passed_by: 0 };
        let part = ResetPart { broker_group: "g".into(), epoch: 1, queues: vec![queue] };
        let text = table(&[part]).to_string();
        assert_eq!(
            text,
            "BROKER GROUP  QUEUE  FROM  TO  AGAIN  PASSED BY  EPOCH\n\
             g             3      7     2   5      0          1\n"
        );
    }
}
