//! Hashes and checksums whose values are part of the protocol.

use super::properties::{Properties, property};

/// Java's `String.hashCode`: over UTF-16 units, wrapping at 32 bits.
#[must_use]
pub fn java_hash_code(text: &str) -> i32 {
    extend(0, text)
}

fn extend(hash: i32, text: &str) -> i32 {
    let step = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        text.bytes().fold(hash, |hash, byte| step(hash, u16::from(byte)))
    } else {
        text.encode_utf16().fold(hash, step)
    }
}

/// What a ConsumeQueue entry and a consumer's filter hold for a tag; 0 for none.
#[must_use]
pub fn tags_code(properties: &Properties<'_>) -> i64 {
    properties.get(property::TAGS).map_or(0, |tags| i64::from(java_hash_code(tags)))
}

/// The hash under which the index keeps `key` of `topic`. Never negative.
#[must_use]
pub fn index_key_hash(topic: &str, key: &str) -> i32 {
    let hash = extend(extend(extend(0, topic), "#"), key);
    // The one number without a positive counterpart counts as 0.
    hash.checked_abs().unwrap_or(0)
}

/// CRC-32 of a message body as a record holds it: without the sign bit.
#[must_use]
pub fn body_crc(body: &[u8]) -> i32 {
    i32::from_be_bytes((crc32fast::hash(body) & 0x7fff_ffff).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_hash_codes_agree_with_java() {
        for (text, hash) in
            [("TagA", 2_598_919), ("TagB", 2_598_920), ("*", 42), ("\u{8ba2}\u{5355}", 1_129_459), ("", 0)]
        {
            assert_eq!(java_hash_code(text), hash, "{text}");
        }
        // A character outside the basic plane counts as its two surrogates.
        assert_eq!(java_hash_code("\u{1f600}"), 0xd83d * 31 + 0xde00);
    }

    #[test]
    fn index_hash_is_of_topic_and_key() {
        assert_eq!(index_key_hash("T", "K1"), 2_538_453);
        assert_eq!(index_key_hash("T", "K1"), java_hash_code("T#K1"));
    }

    #[test]
    fn index_hash_of_the_smallest_integer_is_zero() {
        assert_eq!(java_hash_code("T#1LG3HE3"), i32::MIN);
        assert_eq!(index_key_hash("T", "1LG3HE3"), 0);
    }

    #[test]
    fn body_crc_has_no_sign() {
        assert_eq!(body_crc(b"hello"), 907_060_870);
        assert_eq!(body_crc(b""), 0);
    }

    #[test]
    fn tags_code_is_zero_without_a_tag() {
        assert_eq!(tags_code(&Properties::new("TAGS\u{1}TagA\u{2}")), 2_598_919);
        assert_eq!(tags_code(&Properties::new("KEYS\u{1}k\u{2}")), 0);
    }
}
