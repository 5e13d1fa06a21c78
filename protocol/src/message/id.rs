//! Ids of messages: the broker's, made of a place, and the client's own.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::reader::{Reader, put_host};

/// Where a message is stored: a broker's address and a physical offset. Printed in upper-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OffsetMessageId {
    /// Where clients find it again.
    pub store_host: SocketAddr,
    /// Place in the CommitLog.
    pub physical_offset: i64,
}

impl fmt::Display for OffsetMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut host = Vec::with_capacity(20);
        put_host(&mut host, self.store_host);
        let mut text = String::with_capacity(56);
        push_hex(&mut text, &host);
        push_hex(&mut text, &self.physical_offset.to_be_bytes());
        f.write_str(&text)
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0').to_ascii_uppercase());
        }
    }
}

/// A text that is no offset message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an offset message id")]
pub struct OffsetMessageIdError;

impl FromStr for OffsetMessageId {
    type Err = OffsetMessageIdError;

    fn from_str(text: &str) -> Result<Self, OffsetMessageIdError> {
        let v6 = match text.len() {
            32 => false,
            56 => true,
            _ => return Err(OffsetMessageIdError),
        };
        let (pairs, _) = text.as_bytes().as_chunks::<2>();
        let mut bytes = Vec::with_capacity(28);
        for [high, low] in pairs {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                return Err(OffsetMessageIdError);
            };
            bytes.push(high << 4 | low);
        }
        let mut reader = Reader::new(&bytes);
        let store_host = reader.host(v6).ok_or(OffsetMessageIdError)?;
        let physical_offset = reader.i64().ok_or(OffsetMessageIdError)?;
        Ok(Self { store_host, physical_offset })
    }
}

/// What a client's own message id is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueKeyParts {
    /// Address of the machine.
    pub address: IpAddr,
    /// Process id, cut to 16 bits.
    pub process: u16,
    /// Anything that differs between two processes of one machine and id.
    pub instance: u32,
    /// Milliseconds since the month began, cut to 32 bits.
    pub month_millis: u32,
    /// Counts the ids of the process.
    pub counter: u16,
}

/// A client's own message id.
#[must_use]
pub fn unique_key(parts: &UniqueKeyParts) -> String {
    let mut text = String::with_capacity(56);
    match parts.address {
        IpAddr::V4(address) => push_hex(&mut text, &address.octets()),
        IpAddr::V6(address) => push_hex(&mut text, &address.octets()),
    }
    push_hex(&mut text, &parts.process.to_be_bytes());
    push_hex(&mut text, &parts.instance.to_be_bytes());
    push_hex(&mut text, &parts.month_millis.to_be_bytes());
    push_hex(&mut text, &parts.counter.to_be_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_message_id_is_address_and_offset() {
        let id = OffsetMessageId { store_host: "10.0.0.1:10911".parse().unwrap(), physical_offset: 1234 };
        assert_eq!(id.to_string(), "0A00000100002A9F00000000000004D2");
        assert_eq!("0a00000100002a9f00000000000004d2".parse(), Ok(id));
        let id = OffsetMessageId { store_host: "[::1]:1".parse().unwrap(), physical_offset: i64::MAX };
        assert_eq!(id.to_string().len(), 56);
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn other_texts_are_no_offset_message_ids() {
        for text in ["", "0A", &"G".repeat(32), "0A000001FFFFFFFF00000000000004D2", &"\u{e4}".repeat(16)] {
            assert_eq!(text.parse::<OffsetMessageId>(), Err(OffsetMessageIdError), "{text}");
        }
    }

    #[test]
    fn unique_key_has_32_digits() {
        let parts = UniqueKeyParts {
            address: "10.0.0.9".parse().unwrap(),
            process: 0xabcd,
            instance: 1,
            month_millis: 2,
            counter: 3,
        };
        assert_eq!(unique_key(&parts), "0A000009ABCD00000001000000020003");
    }
}
