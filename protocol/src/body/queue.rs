//! A queue, and maps from queues.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::dialect::{integer, object_of_key};

/// One queue of a topic at a broker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageQueue {
    /// The broker name.
    pub broker_name: String,
    /// The queue.
    #[serde(deserialize_with = "integer")]
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
}

/// A map from queues, whose keys are objects on the wire.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct QueueTable<V>(pub BTreeMap<MessageQueue, V>);

impl<V> Default for QueueTable<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> Deref for QueueTable<V> {
    type Target = BTreeMap<MessageQueue, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V> DerefMut for QueueTable<V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<V> FromIterator<(MessageQueue, V)> for QueueTable<V> {
    fn from_iter<I: IntoIterator<Item = (MessageQueue, V)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for QueueTable<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = QueueTable<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from queues")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<QueueTable<V>, A::Error> {
                let mut table = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let queue = serde_json::from_str(object_of_key(&key)).map_err(de::Error::custom)?;
                    table.insert(queue, map.next_value()?);
                }
                Ok(QueueTable(table))
            }

            fn visit_unit<E: de::Error>(self) -> Result<QueueTable<V>, E> {
                Ok(QueueTable::default())
            }
        }

        deserializer.deserialize_any(Entries(PhantomData))
    }
}
