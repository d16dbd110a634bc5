//! `raftmq cluster add-node | remove-node | replace-node | transfer-leader`: asks for one step after
//! the other until every broker group is done, and tells each second where they are.

use std::time::{Duration, Instant};

use clap::Args;

use crate::client::{ClientError, MembersChange, MembersStep, NewMember};
use crate::config::HostPort;

use super::Ask;
use super::failure::Failure;
use super::output::{Output, Table};

const PAUSE: Duration = Duration::from_secs(1);
/// What was refused may be possible a moment later: a node comes back, a leader is elected.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// The new node; start it first, with an empty directory and all nodes in its configuration.
#[derive(Debug, Args)]
pub(super) struct Where {
    /// Where other nodes reach it: its advertise.peer.
    #[arg(long, value_name = "HOST:PORT")]
    peer: HostPort,
    /// Where clients reach it: its advertise.grpc.
    #[arg(long, value_name = "HOST:PORT")]
    grpc: HostPort,
}

#[derive(Debug, Args)]
pub(super) struct Patience {
    /// Give up after this time. What was reached stays, and the same command goes on from there.
    #[arg(long, value_name = "TIME", value_parser = super::group::millis, default_value = "10m")]
    timeout: u64,
    #[command(flatten)]
    ask: Ask,
}

impl Where {
    pub(super) fn node(&self, node: u64) -> NewMember {
        NewMember { node, peer: self.peer.to_string(), grpc: self.grpc.to_string() }
    }
}

impl Patience {
    pub(super) async fn change(
        &self,
        change: MembersChange,
        output: &Output,
    ) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        self.repeat(output, async || client.change_members(&change).await).await
    }

    pub(super) async fn transfer(
        &self,
        to: u64,
        broker_groups: &[String],
        output: &Output,
    ) -> Result<(), Failure> {
        let client = self.ask.client().await?;
        self.repeat(output, async || client.transfer_leader(to, broker_groups).await).await
    }

    async fn repeat(
        &self,
        output: &Output,
        step: impl AsyncFn() -> Result<Vec<MembersStep>, ClientError>,
    ) -> Result<(), Failure> {
        let (start, limit) = (Instant::now(), Duration::from_millis(self.timeout));
        let mut refused: Option<Instant> = None;
        let mut told = Vec::new();
        loop {
            let round = Instant::now();
            let problem = match step().await {
                Ok(steps) => {
                    tell(&told, &steps, output);
                    if steps.iter().all(|step| step.state == "done") {
                        output.show(steps.as_slice(), table);
                        return Ok(());
                    }
                    let refusal = steps.iter().find(|step| step.state == "refused");
                    let refusal = refusal.map(|step| {
                        let (broker_group, why) = (step.broker_group.clone(), step.text.clone());
                        Failure::MembersRefused { broker_group, why }
                    });
                    told = steps;
                    refusal
                }
                Err(error) => Some(error.into()),
            };
            match problem {
                None => refused = None,
                Some(failure) if refused.is_some_and(|since| since.elapsed() > REFUSED_FOR) => {
                    return Err(failure);
                }
                Some(_) => refused = Some(refused.unwrap_or(round)),
            }
            if start.elapsed() > limit {
                let at = told.iter().filter(|step| step.state != "done").map(line);
                let at: Vec<String> = at.collect();
                return Err(Failure::MembersLate { after: limit, at: at.join("; ") });
            }
            tokio::time::sleep(PAUSE.saturating_sub(round.elapsed())).await;
        }
    }
}

/// A line for each broker group that is under way or has just become done.
fn tell(before: &[MembersStep], now: &[MembersStep], output: &Output) {
    for step in now.iter().filter(|step| step.state != "done" || !before.contains(step)) {
        output.note(line(step));
    }
}

fn line(step: &MembersStep) -> String {
    let MembersStep { broker_group, text, has, goal, bytes_left, .. } = step;
    let Some(goal) = goal else { return format!("{broker_group}: {text}") };
    let has = has.map_or_else(|| "no entry yet".to_owned(), |has| format!("entry {has}"));
    let left = bytes_left.map_or_else(String::new, |bytes| format!(", {} left", mebibytes(bytes)));
    format!("{broker_group}: {text}: it has applied {has} of {goal}{left}")
}

fn mebibytes(bytes: u64) -> String {
    // Tenths in whole numbers, since a progress needs no more.
    let tenths = bytes.saturating_mul(10) / (1 << 20);
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

fn table(steps: &[MembersStep]) -> Table {
    let row =
        |step: &MembersStep| [step.broker_group.clone(), step.state.to_owned(), step.text.clone()];
    Table::new(["GROUP", "STATE", "WHAT"], steps.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_far_a_learner_is() {
        let step = MembersStep {
            broker_group: "group-0".into(),
            state: "catching-up",
            text: "node 4 is catching up".into(),
            has: Some(120),
            goal: Some(5000),
            bytes_left: Some(3_670_016),
        };
        let told = line(&step);
        assert_eq!(
            told,
            "group-0: node 4 is catching up: it has applied entry 120 of 5000, 3.5 MiB left"
        );
        let unknown = line(&MembersStep { has: None, bytes_left: None, ..step });
        assert!(unknown.ends_with("it has applied no entry yet of 5000"), "{unknown}");
    }
}
