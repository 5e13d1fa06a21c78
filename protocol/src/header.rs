//! The typed arguments of requests and answers, one file per family.
//!
//! Each type reads itself from a command with `decode` and writes itself into ext fields with `encode_into`. Fields that a
//! client may leave out are options or have the default that RocketMQ gives them; unknown fields are ignored.

/// Declares a header: its fields, their names on the wire, and their defaults.
macro_rules! header {
    (
        $(#[$doc:meta])*
        pub struct $type:ident {
            $($(#[$field_doc:meta])* $field:ident: $kind:ty = $name:literal $(, default $default:expr)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $type {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl $type {
            /// Reads the ext fields of `command`.
            ///
            /// # Errors
            /// [`FieldError`](crate::FieldError) names the field that is missing or malformed.
            pub fn decode(command: &crate::RemotingCommand) -> Result<Self, crate::FieldError> {
                Ok(Self { $($field: field!(command.ext, $kind, $name $(, $default)?),)* })
            }

            /// Adds the fields to `ext`.
            pub fn encode_into(&self, ext: &mut crate::ExtFields) {
                $(ext.write($name, &self.$field);)*
            }
        }
    };
}

macro_rules! field {
    ($ext:expr, $kind:ty, $name:literal) => {
        $ext.read::<$kind>($name)?
    };
    ($ext:expr, $kind:ty, $name:literal, $default:expr) => {
        $ext.read::<Option<$kind>>($name)?.unwrap_or($default)
    };
}

mod admin;
mod client;
mod namesrv;
mod offset;
mod pop;
mod pull;
mod query;
mod send;
mod transaction;

pub use admin::*;
pub use client::*;
pub use namesrv::*;
pub use offset::*;
pub use pop::*;
pub use pull::*;
pub use query::*;
pub use send::*;
pub use transaction::*;
