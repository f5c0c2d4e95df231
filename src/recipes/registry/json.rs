//! An instance as a JSON object: that of Curator's service discovery.
//!
//! What Curator calls the payload is an instance's metadata. Its Java class is not written: a Java program reads a
//! `Map`.
//!
//! Sources: Curator 5.9, `JsonInstanceSerializer`, `ServiceInstance`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Instance;
use crate::types::path;

/// The fields in Curator's order. A reader ignores further ones.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InJson {
    #[serde(default)]
    name: String,
    id: String,
    address: Option<String>,
    port: Option<u16>,
    ssl_port: Option<u16>,
    payload: Option<Value>,
    /// 0: the znode's `ctime` says when it was registered.
    #[serde(default, rename = "registrationTimeUTC")]
    registration_time_utc: i64,
    #[serde(default = "dynamic")]
    service_type: String,
    uri_spec: Option<Value>,
    /// Curator's choosers skip an instance that is not.
    #[serde(default = "enabled")]
    enabled: bool,
    /// In objects that people write.
    #[serde(default, skip_serializing)]
    metadata: BTreeMap<String, String>,
}

/// Of an instance whose znode is ephemeral.
fn dynamic() -> String {
    "DYNAMIC".to_owned()
}

fn enabled() -> bool {
    true
}

impl InJson {
    /// An instance that is registered at this path.
    pub(super) fn new(path: &str, instance: &Instance) -> InJson {
        let Instance { id, address, port, metadata } = instance.clone();
        let payload = metadata.into_iter().map(|(name, value)| (name, Value::String(value)));
        let payload: serde_json::Map<String, Value> = payload.collect();
        InJson {
            name: path::parent(path).map(path::name).unwrap_or_default().to_owned(),
            id,
            address: Some(address),
            port: Some(port),
            ssl_port: None,
            payload: (!payload.is_empty()).then_some(Value::Object(payload)),
            registration_time_utc: 0,
            service_type: dynamic(),
            uri_spec: None,
            enabled: true,
            metadata: BTreeMap::new(),
        }
    }

    pub(super) fn instance(self) -> Result<Instance, String> {
        if !self.enabled {
            return Err("it is not enabled".to_owned());
        }
        let address = self.address.ok_or("it has no address")?;
        let port = self.port.or(self.ssl_port).ok_or("it has no port")?;
        let mut metadata = self.metadata;
        let mut add = |name: String, value: Value| match value {
            Value::String(text) => metadata.insert(name, text),
            other => metadata.insert(name, other.to_string()),
        };
        match self.payload {
            None | Some(Value::Null) => {}
            // The name of a Java class says nothing here.
            Some(Value::Object(fields)) => {
                for (name, value) in fields.into_iter().filter(|(name, _)| name != "@class") {
                    add(name, value);
                }
            }
            Some(other) => {
                add("payload".to_owned(), other);
            }
        }
        Ok(Instance { id: self.id, address, port, metadata })
    }
}
