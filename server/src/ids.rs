//! Unique ids, and client-supplied names made safe for messages.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

/// A random id, `<prefix>-<16 hexadecimal digits>`, unique across processes. It is not a secret.
pub(crate) fn unique_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Keys of the standard library's hash come from the operating system's randomness.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{prefix}-{:016x}", hasher.finish())
}

/// A name from a request for use in messages: at most 100 characters, control characters replaced by `?`.
pub(crate) fn printable(name: &str) -> String {
    let mut shown: String = name.chars().take(100).map(|c| if c.is_control() { '?' } else { c }).collect();
    if shown.len() < name.len() && name.chars().nth(100).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_names_differ() {
        let mut names: Vec<String> = (0..1000).map(|_| unique_id("a")).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1000);
        assert!(names[0].len() == 18 && names[0].starts_with("a-"));
    }

    #[test]
    fn strange_names_are_cut() {
        assert_eq!(printable("a\nb"), "a?b");
        assert_eq!(printable(&"x".repeat(1000)).chars().count(), 101);
    }
}
