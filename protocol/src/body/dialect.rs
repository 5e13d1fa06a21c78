//! Reading values that clients write in different ways, and writing keys that are objects.

use std::fmt;
use std::io::{self, Write};

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde_json::ser::{CharEscape, Formatter};

use crate::json::OBJECT_KEY;

/// Writes compact JSON, and a key that starts with [`OBJECT_KEY`] as the object that follows in it.
///
/// Such a key reaches the formatter in pieces: plain text, and what would have to be escaped in a string. Without the quotes
/// around it, and with nothing escaped, the pieces are the object again.
#[derive(Default)]
pub(super) struct ObjectKeys {
    place: Place,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    #[default]
    Elsewhere,
    /// A key whose opening quote is not written yet.
    KeyStart,
    ObjectKey,
}

impl ObjectKeys {
    fn open_pending<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.place == Place::KeyStart {
            self.place = Place::Elsewhere;
            writer.write_all(b"\"")?;
        }
        Ok(())
    }
}

/// Numbers and booleans may be keys too, and then stand between quotes.
macro_rules! scalar_writers {
    ($($write:ident: $type:ty),*) => {
        $(
            fn $write<W: Write + ?Sized>(&mut self, writer: &mut W, value: $type) -> io::Result<()> {
                self.open_pending(writer)?;
                serde_json::ser::CompactFormatter.$write(writer, value)
            }
        )*
    };
}

impl Formatter for ObjectKeys {
    scalar_writers!(
        write_bool: bool, write_i8: i8, write_i16: i16, write_i32: i32, write_i64: i64, write_i128: i128,
        write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128, write_f32: f32, write_f64: f64
    );

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.place = Place::KeyStart;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn begin_string<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.place {
            Place::KeyStart => Ok(()),
            _ => writer.write_all(b"\""),
        }
    }

    fn end_string<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open_pending(writer)?;
        if self.place == Place::ObjectKey {
            self.place = Place::Elsewhere;
            return Ok(());
        }
        writer.write_all(b"\"")
    }

    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        self.open_pending(writer)?;
        writer.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: Write + ?Sized>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match (self.place, &escape) {
            (Place::KeyStart, CharEscape::AsciiControl(0)) => {
                self.place = Place::ObjectKey;
                return Ok(());
            }
            (Place::ObjectKey, CharEscape::Quote) => return writer.write_all(b"\""),
            (Place::ObjectKey, CharEscape::ReverseSolidus) => return writer.write_all(b"\\"),
            _ => {}
        }
        self.open_pending(writer)?;
        serde_json::ser::CompactFormatter.write_char_escape(writer, escape)
    }
}

/// The key of a map for an object whose JSON text is `object`.
pub(super) fn object_key(object: &str) -> String {
    let mut key = String::with_capacity(object.len().saturating_add(1));
    key.push(OBJECT_KEY);
    key.push_str(object);
    key
}

/// The JSON text of the object that `key` stands for.
pub(super) fn object_of_key(key: &str) -> &str {
    key.strip_prefix(OBJECT_KEY).unwrap_or(key)
}

/// A whole number, or a string that holds one. Unsigned 64-bit numbers of C++ clients wrap to negative ones.
pub(super) fn integer<'de, D: Deserializer<'de>, T: TryFrom<i64>>(deserializer: D) -> Result<T, D::Error> {
    struct Integer;

    impl Visitor<'_> for Integer {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<i64, E> {
            Ok(value)
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<i64, E> {
            Ok(value.cast_signed())
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<i64, E> {
            let value = value.trim();
            let wrapped = || value.parse().map(u64::cast_signed);
            value.parse().or_else(|_| wrapped()).map_err(E::custom)
        }
    }

    let value = deserializer.deserialize_any(Integer)?;
    T::try_from(value).map_err(|_| de::Error::custom("number out of range"))
}

/// `null` counts as the default.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An enum that Java writes by name and C++ and Go by number.
macro_rules! wire_enum {
    (
        $(#[$doc:meta])*
        pub enum $type:ident {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// The name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NameOrNumber;

                impl serde::de::Visitor<'_> for NameOrNumber {
                    type Value = $type;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(stringify!($type))
                    }

                    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<$type, E> {
                        match number {
                            $($number => Ok($type::$variant),)*
                            _ => Err(E::custom("unknown number of an enum")),
                        }
                    }

                    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<$type, E> {
                        match name {
                            $($name => Ok($type::$variant),)*
                            _ => match name.parse() {
                                Ok(number) => self.visit_u64(number),
                                Err(_) => Err(E::custom("unknown name of an enum")),
                            },
                        }
                    }
                }

                deserializer.deserialize_any(NameOrNumber)
            }
        }
    };
}
pub(super) use wire_enum;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::body::{MessageQueue, QueueTable, encode};

    #[test]
    fn keys_are_quoted_unless_they_are_objects() {
        let queue = MessageQueue { broker_name: "b\"\\".to_owned(), queue_id: 0, topic: "T".to_owned() };
        let table: QueueTable<BTreeMap<i64, &str>> =
            [(queue.clone(), [(0, "x"), (-1, "{")].into()), (MessageQueue { queue_id: 1, ..queue }, BTreeMap::new())]
                .into_iter()
                .collect();
        let expected = concat!(
            r#"{{"brokerName":"b\"\\","queueId":0,"topic":"T"}:{"-1":"{","0":"x"},"#,
            r#"{"brokerName":"b\"\\","queueId":1,"topic":"T"}:{}}"#
        );
        assert_eq!(encode(&table), expected);
        assert_eq!(encode(&BTreeMap::from([("a\"\u{1}", "\u{0}"), ("", "b")])), r#"{"":"b","a\"\u0001":"\u0000"}"#);
        assert_eq!(encode(&BTreeMap::from([(true, 1)])), r#"{"true":1}"#);
    }
}
