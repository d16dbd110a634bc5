//! What this node's broker answers to other nodes' brokers.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::broker::broadcast::encode_fetched;
use crate::broker::members::encode_step;
use crate::broker::remote::{Declined, Question, encode_parcels, encode_watched};
use crate::broker::transactions::{encode_asked, encode_living};
use crate::broker::{Gone, Replica};
use crate::filter::Filter;

/// No forwarded poll waits longer, whatever the bytes say; protocols allow less.
const FORWARDED_POLL_MAX: Duration = Duration::from_secs(60);

impl Replica {
    /// Answers a peer's request, which came without its first byte ([`super::ASKED_OF_BROKER`]).
    pub(super) async fn answer(&self, question: Bytes) -> Bytes {
        match Question::decode(question) {
            Ok(Question::Receive(request)) => {
                let deadline = Instant::now() + request.poll.min(FORWARDED_POLL_MAX);
                let result = match request.filter.parse() {
                    Ok(filter) => {
                        self.receive_here(&request, &filter, deadline, &Gone::never()).await
                    }
                    Err(error) => Err(unreadable(&error)),
                };
                encode_parcels(&result)
            }
            Ok(Question::Watch(request)) => {
                let deadline = Instant::now() + request.poll.min(FORWARDED_POLL_MAX);
                let result = match request.filter.parse() {
                    Ok(filter) => self.watch_here(&request, &filter, deadline).await,
                    Err(error) => Err(unreadable(&error)),
                };
                encode_watched(&result)
            }
            Ok(Question::Status { at_least, units }) => {
                self.own_status(at_least, units).await.encode()
            }
            Ok(Question::Seen { consumers, written }) => {
                self.written.note(written, self.env.clock.monotonic());
                for consumer in &consumers {
                    self.client_told(consumer);
                }
                Bytes::new()
            }
            Ok(Question::Members(change)) => encode_step(&self.advance(&change).await),
            Ok(Question::LeadBy(to)) => encode_step(&self.hand_to(to).await),
            Ok(Question::Producers(wanted)) => encode_living(&self.producers.living(&wanted)),
            Ok(Question::Check(parcels)) => encode_asked(&self.ask_producers(parcels).await),
            Ok(Question::Fetch(wish)) => {
                let deadline = Instant::now() + wish.poll.min(FORWARDED_POLL_MAX);
                encode_fetched(match Filter::tags(&wish.filter) {
                    Ok(filter) => self.fetch_here(&wish, &filter, deadline).await,
                    Err(error) => Err(unreadable(&error)),
                })
            }
            Err(error) => encode_parcels(&Err(unreadable(&error))),
        }
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Declined {
    Declined::Unavailable { reason: error.to_string(), outcome_unknown: false }
}
