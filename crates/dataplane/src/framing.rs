//! Where a gRPC message ends in a stream of bytes (gRPC over HTTP/2, "Length-Prefixed-Message").
//!
//! Only the five bytes before each message are looked at, wherever frames cut them. The forward
//! path needs to know whether an answer stopped in the middle of a message: a status may follow a
//! whole message, but clients wait for ever for the rest of one that trailers cut short.

/// Bytes before a message: a flag and a big-endian length.
const PREFIX_BYTES: usize = 5;

/// Follows the messages of one direction of a call.
#[derive(Debug)]
pub(crate) struct Framing {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix seen so far.
    known: u8,
    /// Whole messages so far; from 255 on no more are counted.
    messages: u8,
    /// Bytes of the message that are still to come, once its prefix is known.
    missing: u64,
    /// The longest message that may be.
    limit: u32,
    /// The length of one that is longer; 0: there was none.
    too_long: u32,
}

impl Default for Framing {
    fn default() -> Self {
        Self::with_limit(u32::MAX)
    }
}

impl Framing {
    /// For messages up to that many bytes.
    pub(crate) fn with_limit(limit: u32) -> Self {
        Self {
            prefix: [0; PREFIX_BYTES],
            known: 0,
            messages: 0,
            missing: 0,
            limit,
            too_long: 0,
        }
    }

    /// The same for bytes that are about to be handed on. False if a message among them is longer
    /// than it may be: they must not be, and it stands as before them.
    pub(crate) fn admit(&mut self, bytes: &[u8]) -> bool {
        let before = (self.prefix, self.known, self.missing);
        self.advance(bytes);
        if self.too_long > 0 {
            (self.prefix, self.known, self.missing) = before;
        }
        self.too_long == 0
    }

    /// The length of a message that is too long, and what it may be.
    pub(crate) fn too_long(&self) -> Option<(u32, u32)> {
        (self.too_long > 0).then_some((self.too_long, self.limit))
    }

    /// Takes in the next bytes. Costs one step per message, not per byte.
    pub(crate) fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.missing > 0 {
                let part = usize::try_from(self.missing)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                self.missing -= part as u64;
                self.messages = self.messages.saturating_add((self.missing == 0).into());
                bytes = &bytes[part..];
                continue;
            }
            let known = usize::from(self.known);
            let part = (PREFIX_BYTES - known).min(bytes.len());
            self.prefix[known..known + part].copy_from_slice(&bytes[..part]);
            self.known += part as u8;
            bytes = &bytes[part..];
            if usize::from(self.known) == PREFIX_BYTES {
                let [_, a, b, c, d] = self.prefix;
                let length = u32::from_be_bytes([a, b, c, d]);
                if length > self.limit {
                    self.too_long = length;
                }
                self.missing = length.into();
                self.messages = self.messages.saturating_add((self.missing == 0).into());
                self.known = 0;
            }
        }
    }

    /// Whole messages so far, at most 255.
    pub(crate) fn messages(&self) -> u8 {
        self.messages
    }

    /// Whether the bytes so far end in the middle of a message.
    pub(crate) fn is_within_message(&self) -> bool {
        self.known > 0 || self.missing > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Framing;

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; length as usize]);
        bytes
    }

    proptest! {
        #[test]
        fn knows_the_end_of_a_message_however_it_is_cut(
            lengths in proptest::collection::vec(0_u32..40, 1..6),
            cuts in proptest::collection::vec(1_usize..9, 1..80),
        ) {
            let stream: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let mut ends = vec![0];
            for length in &lengths {
                ends.push(ends[ends.len() - 1] + 5 + *length as usize);
            }
            let (mut framing, mut at) = (Framing::default(), 0);
            for cut in cuts.iter().cycle() {
                prop_assert_eq!(framing.is_within_message(), !ends.contains(&at), "at {}", at);
                let whole = ends[1..].iter().filter(|end| **end <= at).count();
                prop_assert_eq!(usize::from(framing.messages()), whole, "at {}", at);
                if at == stream.len() {
                    break;
                }
                let next = (at + cut).min(stream.len());
                framing.advance(&stream[at..next]);
                at = next;
            }
        }
    }

    #[test]
    fn the_count_of_messages_stops_at_its_end() {
        let mut framing = Framing::default();
        for _ in 0..300 {
            framing.advance(&message(1));
        }
        assert_eq!(framing.messages(), 255);
    }

    #[test]
    fn a_message_over_the_limit_is_found_with_its_prefix() {
        let mut framing = Framing::with_limit(10);
        assert!(framing.admit(&message(10)));
        let long = message(11);
        assert!(framing.admit(&long[..4]));
        assert!(!framing.admit(&long[4..5]));
        assert_eq!(framing.too_long(), Some((11, 10)));
        assert!(framing.is_within_message(), "four bytes of it are out");
    }

    #[test]
    fn bytes_that_are_not_admitted_leave_it_between_messages() {
        let mut framing = Framing::with_limit(10);
        let both = [message(3), message(11)].concat();
        assert!(!framing.admit(&both));
        assert!(!framing.is_within_message());
    }

    #[test]
    fn the_largest_length_allocates_nothing() {
        let mut framing = Framing::default();
        framing.advance(&[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]);
        assert!(framing.is_within_message());
        assert_eq!(framing.missing, u64::from(u32::MAX) - 3);
    }
}
