//! How many files and connections this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes all that the system allows, and answers how much that is. Many systems start programs
/// with 1024 and allow far more; each connection of a client is one, so that a thousand idle
/// consumers would be too many.
pub fn take_all_handles() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.is_none_or(|current| current >= maximum) {
        return limit.current.unwrap_or(u64::MAX);
    }
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => maximum,
        // Refused, as on systems that allow less than they say: it stays as it was.
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_allowed_is_taken() {
        let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(take_all_handles(), allowed);
        assert_eq!(take_all_handles(), allowed, "a second time changes nothing");
    }
}
