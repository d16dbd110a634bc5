//! Puts the group elsewhere in its topics, and has it pause.

use std::time::Duration;

use raftmq::base::{QueueOffset, UtcMillis};
use raftmq::broker::{ResetRequest, ResetTo};
use tokio::time::sleep;

use super::hard::{OPERATOR, Operator, PATIENCE, outcome};
use super::{Called, group_name, topic_name};
use crate::history::{Answer, Outcome, Start, What};
use crate::simulate::world::STARTED;

/// A reset goes on through a change of leaders.
const LONG_PATIENCE: Duration = Duration::from_secs(10);

impl Operator {
    pub(super) async fn reset(&self) {
        let workload = &self.clients.0.workload;
        let topics: Vec<u32> =
            (0..workload.all_topics()).filter(|topic| workload.takes(self.group, *topic)).collect();
        let topic = *self.random.pick(&topics);
        let now = self.clients.now();
        let to = match self.random.between(0, 100) {
            0..35 => Start::Earliest,
            35..50 => Start::Latest,
            50..80 => Start::Time(now.saturating_sub(self.random.between(0, 8_000_000))),
            _ => Start::Offset(self.random.between(0, 60)),
        };
        let request = ResetRequest {
            group: group_name(self.group),
            topic: topic_name(topic),
            to: match to {
                Start::Earliest => ResetTo::Earliest,
                Start::Latest => ResetTo::Latest,
                Start::Offset(offset) => ResetTo::Offset(QueueOffset::new(offset)),
                Start::Time(at) => ResetTo::Time(UtcMillis::new(STARTED + at / 1000)),
            },
            queue: None,
            broker_groups: Vec::new(),
            dry_run: self.random.percent(10),
        };
        if request.dry_run {
            // Changes nothing, so that there is nothing to note.
            let asked = self.clients.call(&self.random, LONG_PATIENCE, move |broker| async move {
                broker.reset_group(&request).await.is_ok()
            });
            let _: Called<bool> = asked.await;
            return;
        }
        let call = self.clients.invoke(OPERATOR, What::Reset { group: self.group, topic, to });
        let reset = self.clients.call(&self.random, LONG_PATIENCE, move |broker| async move {
            broker.reset_group(&request).await
        });
        let outcome = outcome(reset.await, |steps| {
            let queues = steps.iter().flat_map(|step| &step.queues);
            Answer::Reset(queues.map(|queue| (queue.queue.get(), queue.to.get())).collect())
        });
        self.clients.complete(call, outcome);
    }

    /// Has the group pause for a while.
    pub(super) async fn rest(&self) {
        self.pause(true).await;
        sleep(Duration::from_millis(self.random.between(100, 2_000))).await;
        self.go_on().await;
    }

    pub(super) async fn go_on(&self) {
        while !self.pause(false).await {
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// True when it was answered well.
    async fn pause(&self, paused: bool) -> bool {
        let call = self.clients.invoke(OPERATOR, What::Pause { group: self.group, paused });
        let name = group_name(self.group);
        let told = self.clients.call(&self.random, PATIENCE, move |broker| async move {
            broker.pause_group(&name, paused).await
        });
        let outcome = outcome(told.await, |_| Answer::Done);
        let good = matches!(outcome, Outcome::Ok(_));
        self.clients.complete(call, outcome);
        good
    }
}
