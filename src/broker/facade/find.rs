//! Messages found again, in all broker groups.

use futures::future::join_all;

use crate::broker::Broker;
use crate::broker::error::NoTopic;
use crate::broker::find::{Answer, FindError, Wanted};

impl Broker {
    /// Asks every broker group. One that cannot be asked, or that does not know everything, makes
    /// the answer incomplete; it is told then.
    pub async fn find(&self, wanted: &Wanted) -> Result<Answer, FindError> {
        let asked = join_all(self.0.replicas.iter().map(|replica| replica.find(wanted))).await;
        let (mut found, mut parts) = (Vec::new(), Vec::new());
        for (some, part) in asked {
            found.extend(some);
            parts.push(part);
        }
        wanted.arrange(&mut found);
        let answer = Answer { found, parts };
        // Only where every broker group could say so, the topic does not exist.
        let exists = |topic| self.0.replicas.iter().any(|replica| replica.knows_topic(topic));
        let named = wanted.topic().filter(|topic| answer.found.is_empty() && !exists(topic));
        match named.filter(|_| answer.is_complete()) {
            Some(topic) => Err(NoTopic { topic: topic.clone() }.into()),
            None => Ok(answer),
        }
    }
}
