//! Writes a value as compact JSON whose maps may have objects as keys.
//!
//! A general JSON writer refuses such keys. This one differs from it in nothing else that our bodies use.

use serde::ser::{
    Error as _, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, Serializer,
};
use serde_json::Error;

use crate::json::write_string;

type Result<T = ()> = std::result::Result<T, Error>;

/// Writes `value` to `out`.
pub(super) fn write<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result {
    value.serialize(Writer { out, place: Place::Value })
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    place: Place,
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Numbers stand as they are.
    Value,
    /// Numbers stand between quotes.
    Key,
}

/// An array or object whose members follow.
struct Members<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
    close: u8,
}

impl Writer<'_> {
    fn scalar(self, text: &str) -> Result {
        match self.place {
            Place::Value => self.out.extend_from_slice(text.as_bytes()),
            Place::Key => write_string(self.out, text),
        }
        Ok(())
    }
}

impl<'a> Members<'a> {
    fn open(writer: Writer<'a>, open: u8, close: u8) -> Self {
        writer.out.push(open);
        Self { out: writer.out, is_first: true, close }
    }

    fn separate(&mut self) {
        if !self.is_first {
            self.out.push(b',');
        }
        self.is_first = false;
    }

    fn close(self) {
        self.out.push(self.close);
    }
}

fn unsupported<T>() -> Result<T> {
    Err(Error::custom("no body has values of this kind"))
}

macro_rules! scalars {
    ($($method:ident: $type:ty),*) => {
        $(
            fn $method(self, value: $type) -> Result {
                self.scalar(&value.to_string())
            }
        )*
    };
}

impl<'a> Serializer for Writer<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Members<'a>;
    type SerializeTuple = Members<'a>;
    type SerializeTupleStruct = Impossible<(), Error>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Members<'a>;
    type SerializeStruct = Members<'a>;
    type SerializeStructVariant = Impossible<(), Error>;

    scalars!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64
    );

    fn serialize_f32(self, value: f32) -> Result {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result {
        self.scalar(&serde_json::to_string(&value)?)
    }

    fn serialize_char(self, value: char) -> Result {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result {
        write_string(self.out, value);
        Ok(())
    }

    fn serialize_bytes(self, _value: &[u8]) -> Result {
        unsupported()
    }

    fn serialize_none(self) -> Result {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result {
        self.scalar("null")
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result {
        unsupported()
    }

    fn serialize_unit_variant(self, _name: &'static str, _index: u32, variant: &'static str) -> Result {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _name: &'static str, value: &T) -> Result {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _value: &T,
    ) -> Result {
        unsupported()
    }

    fn serialize_seq(self, _length: Option<usize>) -> Result<Members<'a>> {
        Ok(Members::open(self, b'[', b']'))
    }

    fn serialize_tuple(self, _length: usize) -> Result<Members<'a>> {
        Ok(Members::open(self, b'[', b']'))
    }

    fn serialize_tuple_struct(self, _name: &'static str, _length: usize) -> Result<Self::SerializeTupleStruct> {
        unsupported()
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Self::SerializeTupleVariant> {
        unsupported()
    }

    fn serialize_map(self, _length: Option<usize>) -> Result<Members<'a>> {
        Ok(Members::open(self, b'{', b'}'))
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Members<'a>> {
        Ok(Members::open(self, b'{', b'}'))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        _variant: &'static str,
        _length: usize,
    ) -> Result<Self::SerializeStructVariant> {
        unsupported()
    }
}

impl SerializeSeq for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        self.separate();
        write(value, self.out)
    }

    fn end(self) -> Result {
        self.close();
        Ok(())
    }
}

impl SerializeTuple for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        SerializeSeq::serialize_element(self, value)
    }

    fn end(self) -> Result {
        SerializeSeq::end(self)
    }
}

impl SerializeMap for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result {
        self.separate();
        key.serialize(Writer { out: self.out, place: Place::Key })?;
        self.out.push(b':');
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result {
        write(value, self.out)
    }

    fn end(self) -> Result {
        self.close();
        Ok(())
    }
}

impl SerializeStruct for Members<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result {
        self.separate();
        write_string(self.out, name);
        self.out.push(b':');
        write(value, self.out)
    }

    fn end(self) -> Result {
        self.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::body::{ConsumeStats, MessageQueue, QueueTable, SubscriptionGroupConfig, encode};

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
        assert_eq!(encode(&BTreeMap::from([(true, 1)])), r#"{"true":1}"#);
    }

    #[test]
    fn no_text_can_pass_for_an_object_key() {
        let map = BTreeMap::from([("\u{0}{\"a\":1}", "\u{0}"), ("", "b")]);
        assert_eq!(encode(&map), r#"{"":"b","\u0000{\"a\":1}":"\u0000"}"#);
    }

    #[test]
    fn all_but_such_keys_is_written_as_by_others() {
        let group = SubscriptionGroupConfig::new("\u{e4}\n\"");
        assert_eq!(encode(&group), serde_json::to_string(&group).unwrap());
        let stats = ConsumeStats { consume_tps: 0.1, ..ConsumeStats::default() };
        assert_eq!(encode(&stats), serde_json::to_string(&stats).unwrap());
        assert_eq!(encode(&(1_u8, -2_i64, 1.0, f64::NAN, 'x', ())), "[1,-2,1.0,null,\"x\",null]");
    }
}
