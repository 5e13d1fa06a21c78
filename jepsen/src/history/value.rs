//! The small values of a history, each written as one word of text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Nanoseconds of the harness's one monotonic clock since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// This moment and `wait` more.
    pub fn plus(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; nothing if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1_000)
    }
}

/// A sequential process of a client: it has one operation open at most. Written `c1.p2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pub client: u16,
    pub worker: u16,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.p{}", self.client, self.worker)
    }
}

impl FromStr for Process {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let wrong = || NotAValue { text: text.into(), form: "c<client>.p<worker>" };
        let (client, worker) = text.strip_prefix('c').and_then(|rest| rest.split_once(".p")).ok_or_else(wrong)?;
        Ok(Self { client: client.parse().map_err(|_| wrong())?, worker: worker.parse().map_err(|_| wrong())? })
    }
}

/// What makes the message of one attempt to send unlike every other. Written `c1.p2:118:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unique {
    Sent {
        process: Process,
        sequence: u32,
        attempt: u16,
    },
    /// A message that carries none of ours, by a hash of what it carries. Written `?00000000000000ff`.
    Foreign(u64),
}

impl fmt::Display for Unique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent { process, sequence, attempt } => write!(f, "{process}:{sequence}:{attempt}"),
            Self::Foreign(hash) => write!(f, "?{hash:016x}"),
        }
    }
}

impl FromStr for Unique {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let wrong = || NotAValue { text: text.into(), form: "<process>:<sequence>:<attempt> or ?<16 hex digits>" };
        if let Some(hash) = text.strip_prefix('?') {
            return Ok(Self::Foreign(u64::from_str_radix(hash, 16).map_err(|_| wrong())?));
        }
        let (process, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (sequence, attempt) = rest.split_once(':').ok_or_else(wrong)?;
        Ok(Self::Sent {
            process: process.parse()?,
            sequence: sequence.parse().map_err(|_| wrong())?,
            attempt: attempt.parse().map_err(|_| wrong())?,
        })
    }
}

/// A hash of a message's body, tag and key, so that any difference shows. Written as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BodyHash(pub u64);

impl BodyHash {
    /// FNV-1a of the body, then of the tag and the key, each behind a byte that no text holds.
    pub fn of(body: &[u8], tag: Option<&str>, key: Option<&str>) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let parts = [body, tag.unwrap_or_default().as_bytes(), key.unwrap_or_default().as_bytes()];
        for byte in parts.iter().flat_map(|part| part.iter().chain([&0xff])) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self(hash)
    }
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for BodyHash {
    type Err = NotAValue;

    fn from_str(text: &str) -> Result<Self, NotAValue> {
        let wrong = || NotAValue { text: text.into(), form: "16 hex digits" };
        u64::from_str_radix(text, 16).map(Self).map_err(|_| wrong())
    }
}

/// A word that is not what its place asks for.
#[derive(Debug)]
pub struct NotAValue {
    text: String,
    form: &'static str,
}

impl fmt::Display for NotAValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not of the form {}", self.text, self.form)
    }
}

impl std::error::Error for NotAValue {}

/// Reads and writes a type as its text.
macro_rules! as_text {
    ($type:ident) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;

                impl Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("the text of a ", stringify!($type)))
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }

                deserializer.deserialize_str(Text).map_err(D::Error::custom)
            }
        }
    };
}

as_text!(Process);
as_text!(Unique);
as_text!(BodyHash);

#[cfg(test)]
mod tests {
    use super::{BodyHash, Process, Unique};

    #[test]
    fn values_read_back_what_they_write() {
        for text in ["c1.p2:118:0", "?00000000000000ff"] {
            assert_eq!(text.parse::<Unique>().unwrap().to_string(), text);
        }
        assert_eq!("c65535.p0".parse::<Process>().unwrap().to_string(), "c65535.p0");
        let hash = BodyHash::of(b"body", Some("tag"), None);
        assert_eq!(hash.to_string().parse::<BodyHash>().unwrap(), hash);
    }

    #[test]
    fn a_word_of_another_form_names_the_right_form() {
        let error = "c1:118".parse::<Unique>().unwrap_err().to_string();
        assert_eq!(error, "`c1:118` is not of the form <process>:<sequence>:<attempt> or ?<16 hex digits>");
        assert!("c1.p70000".parse::<Process>().is_err());
    }

    #[test]
    fn a_tag_is_not_taken_for_a_piece_of_the_body() {
        assert_ne!(BodyHash::of(b"ab", None, None), BodyHash::of(b"a", Some("b"), None));
    }
}
