//! What the records of messages said: which live filters of the group want them.
//!
//! A tag is judged by its hash first, and by the record only where a message is about to be handed
//! out; SQL needs the record before. Records are read while nobody holds the state or the desk; what
//! they said is remembered here, within bounds. Forgetting costs reading again, and never that a
//! receive comes to no end: see [`super::hunt::Hunt`].

use std::collections::HashMap;

use crate::base::{Mutant, QueueId, QueueOffset};
use crate::command::Unit;
use crate::filter::{Filter, Properties};
use crate::machine::SUBSCRIPTIONS_MAX;

use super::lines::Wanted;

/// One bit for each live filter, in their order.
pub(in crate::broker) type Wants = u64;

const _: () = assert!(SUBSCRIPTIONS_MAX <= Wants::BITS as usize);

/// Verdicts in each of two generations: at least so many of the last ones are known, and at most
/// twice as many, about 3 MiB for one group and topic.
const REMEMBERED: usize = 32 << 10;

/// Where a message stands in its topic.
pub(super) type Place = (QueueId, QueueOffset);

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    young: HashMap<Place, Wants>,
    old: HashMap<Place, Wants>,
}

impl Verdicts {
    pub(super) fn get(&self, place: Place) -> Option<Wants> {
        self.young.get(&place).or_else(|| self.old.get(&place)).copied()
    }

    pub(super) fn note(&mut self, place: Place, wants: Wants) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(place, wants);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// The filters of the group's live members on the topic, sorted by their normal texts.
#[derive(Debug, Default)]
pub(in crate::broker) struct Live {
    /// `None` is what cannot be parsed: not written by this version, so it may want anything.
    filters: Vec<Option<Filter>>,
}

impl Live {
    pub(super) fn parse(expressions: &[String]) -> Self {
        Self { filters: expressions.iter().map(|text| Filter::parse_normal(text).ok()).collect() }
    }

    /// By the hash alone, which is certain where it says no.
    pub(super) fn nobody_wants(&self, unit: Unit) -> bool {
        if Mutant::SkipWanted.is_on() {
            return true;
        }
        let may_match = |filter: &Filter| filter.may_match(unit.tag_hash);
        !self.filters.iter().any(|filter| filter.as_ref().is_none_or(may_match))
    }

    /// What a record says. `None` of a record stands for one that has left with the log's front:
    /// nobody can have it.
    pub(in crate::broker) fn wants(&self, properties: Option<&impl Properties>) -> Wants {
        let Some(properties) = properties else { return 0 };
        let mut wants = 0;
        for (at, filter) in self.filters.iter().enumerate() {
            let wanted = filter.as_ref().is_none_or(|filter| filter.matches(properties));
            wants |= Wants::from(wanted) << at;
        }
        wants
    }
}

/// A message whose record is to be looked at.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Asked {
    pub(in crate::broker) queue: QueueId,
    pub(in crate::broker) offset: QueueOffset,
    pub(in crate::broker) unit: Unit,
}

/// What its record said.
#[derive(Clone, Copy, Debug)]
pub(in crate::broker) struct Judged {
    pub(in crate::broker) asked: Asked,
    pub(in crate::broker) wants: Wants,
}

/// What one look asks to be judged.
#[derive(Debug, Default)]
pub(super) struct Asks {
    pub(super) list: Vec<Asked>,
    bytes: u64,
}

/// Records judged at a time …
const ASKED_MAX: usize = 256;
/// … and bytes of them, of which the last one may be more.
const ASKED_BYTES_MAX: u64 = 4 << 20;

impl Asks {
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= ASKED_MAX || self.bytes >= ASKED_BYTES_MAX
    }

    pub(super) fn add(&mut self, asked: Asked) {
        if !self.is_full() {
            self.bytes += u64::from(asked.unit.size);
            self.list.push(asked);
        }
    }
}

/// One filter's view of what is known.
#[derive(Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) filter: &'a Filter,
    /// Its place among the live ones.
    pub(super) own: usize,
    pub(super) live: &'a Live,
    pub(super) verdicts: &'a Verdicts,
}

impl Judge<'_> {
    pub(super) fn wanted(&self, place: Place, unit: Unit) -> Wanted {
        match self.verdicts.get(place) {
            Some(0) => Wanted::Nowhere,
            Some(wants) if wants >> self.own & 1 == 1 => Wanted::Here,
            Some(_) => Wanted::Elsewhere,
            None if self.live.nobody_wants(unit) => Wanted::Nowhere,
            None if !self.filter.may_match(unit.tag_hash) => Wanted::Elsewhere,
            // Others of its hash are found out when they are about to be handed out.
            None if matches!(self.filter, Filter::All | Filter::Tags(_)) => Wanted::Here,
            None => Wanted::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_verdicts_are_known_and_the_first_ones_forgotten() {
        let mut verdicts = Verdicts::default();
        let place = |at: usize| (QueueId::new(0), QueueOffset::new(at as u64));
        let count = 5 * REMEMBERED / 2;
        for at in 0..count {
            verdicts.note(place(at), 1);
            assert!(verdicts.len() <= 2 * REMEMBERED);
        }
        assert_eq!(verdicts.get(place(0)), None);
        assert!((count - REMEMBERED..count).all(|at| verdicts.get(place(at)) == Some(1)));
        verdicts.clear();
        assert_eq!(verdicts.len(), 0);
    }

    struct Nothing;

    impl Properties for Nothing {
        fn property(&self, _name: &str) -> Option<&str> {
            None
        }
    }

    #[test]
    fn what_cannot_be_parsed_may_want_anything_but_what_is_gone() {
        let texts = ["a".to_owned(), "b|".to_owned(), "sql:x IS NULL".to_owned()];
        let live = Live::parse(&texts);
        assert_eq!(live.wants(Some(&Nothing)), 0b110);
        assert_eq!(live.wants(None::<&Nothing>), 0);
    }
}
