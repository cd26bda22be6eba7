//! Which methods of a service are streaming, found out by watching: more than one message went in
//! one direction of a call.
//!
//! The latency of a streaming call says how long somebody kept it open, not how fast its endpoint
//! is. So its sample ends at the first message of the answer, and from then on it burdens no rule
//! but those that count open calls. What kind a method is nobody tells a proxy that reads no
//! descriptors; the first call of each method is therefore taken for unary until it proves
//! otherwise.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::hash::mix;

/// Methods of one service that are remembered. A method is only learned from an endpoint that
/// answered it with a message, so paths that nobody serves cannot fill the list; what is beyond
/// counts as unary.
const METHODS_MAX: usize = 1_024;

/// The methods seen so far.
#[derive(Debug, Default)]
pub struct StreamingMethods {
    /// Ascending.
    known: ArcSwap<Vec<u64>>,
}

/// A method by its path. Two that are taken for one cost an inexact sample, nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Method(u64);

impl Method {
    /// Of a `:path`; eight bytes a step, because every call pays for it.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let (words, rest) = path.as_bytes().as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let step = |hash: u64, word: &[u8; 8]| mix(hash ^ u64::from_le_bytes(*word));
        Self(step(words.iter().fold(path.len() as u64, step), &last))
    }

    /// The same for equal paths, evenly spread.
    #[must_use]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

impl StreamingMethods {
    /// Whether a method is known to be streaming.
    #[must_use]
    pub fn contains(&self, method: Method) -> bool {
        let known = self.known.load();
        !known.is_empty() && known.binary_search(&method.0).is_ok()
    }

    /// Remembers that it is.
    pub fn add(&self, method: Method) {
        self.known
            .rcu(|known| match known.binary_search(&method.0) {
                Err(place) if known.len() < METHODS_MAX => {
                    let mut next = Vec::clone(known);
                    next.insert(place, method.0);
                    Arc::new(next)
                }
                _ => Arc::clone(known),
            });
    }
}

#[cfg(test)]
mod tests {
    use super::{Method, StreamingMethods, METHODS_MAX};

    #[test]
    fn methods_are_told_apart() {
        let paths = [
            "",
            "/",
            "/a.B/C",
            "/a.B/D",
            "/a.B/CC",
            "/package.Service/Method",
            "\0",
        ];
        for (index, one) in paths.iter().enumerate() {
            assert_eq!(Method::of_path(one), Method::of_path(one));
            for other in &paths[index + 1..] {
                assert_ne!(
                    Method::of_path(one),
                    Method::of_path(other),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn what_is_added_is_known_up_to_the_limit() {
        let methods = StreamingMethods::default();
        let method = |index: usize| Method::of_path(&format!("/a.B/{index}"));
        for index in 0..METHODS_MAX + 10 {
            assert!(!methods.contains(method(index)));
            methods.add(method(index));
            methods.add(method(index));
            assert_eq!(methods.contains(method(index)), index < METHODS_MAX);
        }
        assert!((0..METHODS_MAX).all(|index| methods.contains(method(index))));
    }
}
