//! Hashes that are the same on every machine and in every version, because keys and seeds hang on
//! them. Not for secrets, and not against people who choose their keys to collide.

/// FNV-1a of some bytes.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Spreads a number over all 64 bits: the finaliser of SplitMix64 after a step of its counter.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// An evenly spread hash of some bytes: FNV-1a alone leaves the high bits of short names alike.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    mix(fnv1a(bytes))
}

#[cfg(test)]
mod tests {
    use super::{fnv1a, hash, mix};

    #[test]
    fn gives_known_answers() {
        // Published test vectors of FNV-1a; the first draws of SplitMix64 from seed 0.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(hash(b"a"), mix(fnv1a(b"a")));
    }
}
