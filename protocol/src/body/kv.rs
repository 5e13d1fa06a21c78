//! Tables of text.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dialect::or_default;
use super::json_body;

/// Keys and values: the answers of 28, 103 and 219.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTable {
    /// The entries.
    #[serde(deserialize_with = "or_default")]
    pub table: BTreeMap<String, String>,
}

json_body!(KvTable: SERVER);
