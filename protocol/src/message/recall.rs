//! The text by which a producer takes a timer message back.
//!
//! | Part | Meaning |
//! | --- | --- |
//! | `v1` | version |
//! | topic | where the message is to be delivered |
//! | broker name | who has it |
//! | time | when it is due, in milliseconds since 1970 |
//! | unique key | the id that its producer gave it |
//!
//! The parts are separated by single blanks, and all of it is Base64 with the alphabet for URLs. Clients read the broker
//! name from it and hand it back as it is.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const VERSION: &str = "v1";

/// Padded like Java's, and read with or without padding.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a recall handle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecallHandle {
    /// Where the message is to be delivered.
    pub topic: String,
    /// The broker that has it.
    pub broker_name: String,
    /// When it is due, in milliseconds since 1970.
    pub due_ms: i64,
    /// The id that its producer gave it.
    pub unique_key: String,
}

/// A text that is no recall handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecallHandleError {
    /// It is not Base64 of text.
    #[error("a recall handle is Base64 of text")]
    Encoding,
    /// Another version.
    #[error("a recall handle starts with its version, `v1`")]
    Version,
    /// Some part is missing or malformed.
    #[error("a recall handle names a topic, a broker, a time and a unique key, separated by blanks")]
    Shape,
}

impl RecallHandle {
    /// The text.
    #[must_use]
    pub fn encode(&self) -> String {
        let Self { topic, broker_name, due_ms, unique_key } = self;
        ENGINE.encode(format!("{VERSION} {topic} {broker_name} {due_ms} {unique_key}"))
    }

    /// Reads the text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(text: &str) -> Result<Self, RecallHandleError> {
        let plain = ENGINE.decode(text).map_err(|_| RecallHandleError::Encoding)?;
        let plain = String::from_utf8(plain).map_err(|_| RecallHandleError::Encoding)?;
        let mut parts = plain.splitn(5, ' ');
        if parts.next() != Some(VERSION) {
            return Err(RecallHandleError::Version);
        }
        let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(RecallHandleError::Shape);
        Ok(Self {
            topic: part()?.to_owned(),
            broker_name: part()?.to_owned(),
            due_ms: part()?.parse().map_err(|_| RecallHandleError::Shape)?,
            unique_key: part()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_a_broker_wrote_it() {
        let text = "djEgajVfYmFzZSBicm9rZXItYSAxNzk2MDA2MjQwMDAxIDBBMDAwMDA5N0RGNDRFMEUyRjJBOTVFODZERUEwMDEz";
        let handle = RecallHandle {
            topic: "j5_base".to_owned(),
            broker_name: "broker-a".to_owned(),
            due_ms: 1_796_006_240_001,
            unique_key: "0A0000097DF44E0E2F2A95E86DEA0013".to_owned(),
        };
        assert_eq!(RecallHandle::decode(text), Ok(handle.clone()));
        assert_eq!(handle.encode(), text);
    }

    #[test]
    fn handles_are_padded_and_need_not_be() {
        let handle = RecallHandle {
            topic: "T".to_owned(),
            broker_name: "b".to_owned(),
            due_ms: -1,
            unique_key: "with blanks ?>>".to_owned(),
        };
        let text = handle.encode();
        assert!(text.ends_with('=') && !text.contains(['+', '/']), "{text}");
        assert_eq!(RecallHandle::decode(&text), Ok(handle.clone()));
        assert_eq!(RecallHandle::decode(text.trim_end_matches('=')), Ok(handle));
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        let check = |plain: &str, expected: RecallHandleError| {
            assert_eq!(RecallHandle::decode(&ENGINE.encode(plain)), Err(expected), "{plain}");
        };
        check("v2 T b 1 U", RecallHandleError::Version);
        check("", RecallHandleError::Version);
        for wrong in ["v1", "v1 T b 1", "v1 T b 1 ", "v1 T b soon U", "v1  b 1 U"] {
            check(wrong, RecallHandleError::Shape);
        }
        for wrong in ["no base64", "djE", "\u{e4}", "_w=="] {
            let expected = if wrong == "djE" { RecallHandleError::Shape } else { RecallHandleError::Encoding };
            assert_eq!(RecallHandle::decode(wrong), Err(expected), "{wrong}");
        }
    }
}
