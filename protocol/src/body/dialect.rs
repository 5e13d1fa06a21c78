//! Reading values that clients write in different ways.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::json::OBJECT_KEY;

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
