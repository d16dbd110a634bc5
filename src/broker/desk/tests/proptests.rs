//! Whatever was looked at, offered, given up, handed out or acknowledged before: what is free is
//! found, and what is found can be had.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::command::{Ack, Handle, Order};

const LINES: [u64; 3] = [0, 100, 200];
const TAGS: [&str; 2] = ["a", "b"];
/// Of the live members. What they do not want between them nobody wants.
const FILTERS: [&[&str]; 5] = [
    &["*"],
    &["a", "b"],
    &["a", "sql:TAGS = 'b'"],
    &["sql:TAGS = 'a'", "sql:TAGS = 'b'"],
    &["sql:TAGS = 'a'"],
];

#[derive(Clone, Debug)]
enum Step {
    Publish {
        line: usize,
        tag: usize,
    },
    Peek {
        filter: usize,
    },
    /// The offer stays open until [`Step::GiveUp`] or [`Step::HandOut`].
    Find {
        filter: usize,
        batch: usize,
    },
    GiveUp(usize),
    HandOut(usize),
    Ack(usize),
    Expire,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..LINES.len(), 0..TAGS.len()).prop_map(|(line, tag)| Step::Publish { line, tag }),
        3 => (0..3_usize).prop_map(|filter| Step::Peek { filter }),
        4 => (0..3_usize, 1..4_usize).prop_map(|(filter, batch)| Step::Find { filter, batch }),
        1 => any::<usize>().prop_map(Step::GiveUp),
        3 => any::<usize>().prop_map(Step::HandOut),
        3 => any::<usize>().prop_map(Step::Ack),
        1 => Just(Step::Expire),
    ];
    prop::collection::vec(step, 1..60)
}

struct Run {
    bench: Bench,
    filters: Vec<&'static str>,
    /// Line and tag by offset.
    published: Vec<(u64, &'static str)>,
    offers: Vec<Found>,
    handles: Vec<Handle>,
}

impl Run {
    fn new(order: Order, filters: Vec<&'static str>) -> Self {
        let rule = OrderRule { order, ..OrderRule::default() };
        let bench = Bench::with_rule(1, &filters, (rule, vec![MessageKind::Fifo]));
        let (published, offers, handles) = (Vec::new(), Vec::new(), Vec::new());
        Self { bench, filters, published, offers, handles }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { line, tag } => {
                self.published.push((LINES[line], TAGS[tag]));
                self.bench.publish_line(LINES[line], TAGS[tag]);
            }
            Step::Peek { filter } => {
                let filter = self.filters[filter % self.filters.len()];
                let free = self.free(filter);
                let seen = self.bench.peek(filter);
                assert!(seen || free.is_empty(), "{free:?} is free for {filter}, and is not seen");
            }
            Step::Find { filter, batch } => self.find(filter, batch),
            Step::GiveUp(at) => {
                if let Some(offer) = pick(&mut self.offers, at) {
                    self.bench.desk.settle(&reserved(&offer));
                }
            }
            Step::HandOut(at) => {
                if let Some(offer) = pick(&mut self.offers, at) {
                    self.hand_out(&offer);
                }
            }
            Step::Ack(at) => {
                if let Some(handle) = pick(&mut self.handles, at) {
                    let ack = Delivery::Ack(Ack { handle });
                    self.bench.apply(Command::Deliveries(vec![ack]));
                }
            }
            Step::Expire => self.bench.expire(),
        }
    }

    fn find(&mut self, filter: usize, batch: usize) {
        let filter = self.filters[filter % self.filters.len()];
        let free = self.free(filter);
        let found = self.bench.find_all(filter, batch);
        let got = found.grants;
        // With SQL what is known goes out before the rest is judged.
        let least = if filter.starts_with("sql:") { 1 } else { batch };
        assert!(got >= least.min(free.len()), "{free:?} is free for {filter}, found is {found:?}");
        if got > 0 {
            self.offers.push(found);
        }
    }

    fn hand_out(&mut self, offer: &Found) {
        let granted = self.bench.granted("c", offer, Millis::from_secs(10));
        assert_eq!(granted.len(), offer.grants, "what is found can be had: {offer:?}");
        self.handles.extend(granted.iter().map(|one| Handle {
            group: GROUP,
            topic: TOPIC,
            queue: one.queue,
            offset: one.offset,
            checkout: one.checkout,
            attempt: one.attempt,
        }));
    }

    /// What a poll with this filter may have now: of each line only the first.
    fn free(&self, filter: &str) -> Vec<u64> {
        let (state, pair) = (self.bench.machine.state(), (GROUP, TOPIC));
        let queue = QueueId::new(0);
        let offered: BTreeSet<u64> = self.offers.iter().flat_map(offsets).collect();
        let line = |offset: u64| self.published[usize::try_from(offset).unwrap()].0;
        let mut busy: BTreeSet<u64> = offered.iter().map(|offset| line(*offset)).collect();
        busy.remove(&0);
        let mut free = Vec::new();
        let again = state.ready_from(pair, queue, QueueOffset::ZERO, usize::MAX);
        let again: BTreeSet<u64> = again.iter().map(|ready| ready.offset.get()).collect();
        for (offset, (line, tag)) in (0..).zip(&self.published) {
            let open = state.is_open(pair, queue, QueueOffset::new(offset));
            let locked = *line != 0 && state.is_locked(pair, *line);
            if busy.contains(line) || !again.contains(&offset) && (locked || !open) {
                continue;
            }
            if *line != 0 {
                busy.insert(*line);
            }
            let wanted = filter == "*" || filter == *tag || filter.contains(&format!("'{tag}'"));
            if wanted && !offered.contains(&offset) {
                free.push(offset);
            }
        }
        free
    }
}

fn pick<T>(of: &mut Vec<T>, at: usize) -> Option<T> {
    (!of.is_empty()).then(|| of.swap_remove(at % of.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn what_is_free_is_found(steps in steps(), batch in any::<bool>(), filters in 0..FILTERS.len()) {
        let order = if batch { Order::Batch } else { Order::Single };
        let mut run = Run::new(order, FILTERS[filters].to_vec());
        for step in &steps {
            run.step(step);
        }
    }
}
