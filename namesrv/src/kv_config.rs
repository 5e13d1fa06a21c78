//! Key-value settings by namespace, kept in memory.

use std::collections::BTreeMap;

/// Namespaces, keys and values. Tools write a handful of them.
#[derive(Debug, Default)]
pub(crate) struct KvConfig {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// Settings kept at most; a name server has no disk to fill, but memory.
const VALUES_MAX: usize = 100_000;

/// The namespace that holds the queues of order topics.
pub(crate) const ORDER_TOPIC_CONFIG: &str = "ORDER_TOPIC_CONFIG";

impl KvConfig {
    /// Sets a value; false when there are too many already.
    pub(crate) fn put(&mut self, namespace: String, key: String, value: String) -> bool {
        let count: usize = self.namespaces.values().map(BTreeMap::len).sum();
        if count >= VALUES_MAX && self.get(&namespace, &key).is_none() {
            return false;
        }
        self.namespaces.entry(namespace).or_default().insert(key, value);
        true
    }

    /// The value of a key.
    pub(crate) fn get(&self, namespace: &str, key: &str) -> Option<&str> {
        self.namespaces.get(namespace)?.get(key).map(String::as_str)
    }

    /// Removes a key, which need not exist.
    pub(crate) fn delete(&mut self, namespace: &str, key: &str) {
        if let Some(values) = self.namespaces.get_mut(namespace) {
            values.remove(key);
            if values.is_empty() {
                self.namespaces.remove(namespace);
            }
        }
    }

    /// All values of a namespace.
    pub(crate) fn list(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespaces.get(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_ends_with_its_last_key() {
        let mut kv = KvConfig::default();
        assert!(kv.put("ns".into(), "k".into(), "v".into()));
        assert!(kv.put("ns".into(), "k".into(), "w".into()));
        assert_eq!(kv.get("ns", "k"), Some("w"));
        assert_eq!(kv.get("other", "k"), None);
        assert_eq!(kv.list("ns").map(BTreeMap::len), Some(1));
        kv.delete("ns", "k");
        assert_eq!(kv.list("ns"), None);
    }
}
