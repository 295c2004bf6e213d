//! The keys of `[verbs]` that configure how an RDMA device treats connections.
#![forbid(unsafe_code)]

use std::time::Duration;

use serde::Deserialize;

use super::{size, time};
use crate::config::VerbsSettings;

pub(super) const KEYS: [&str; 8] = [
    "traffic_class",
    "service_level",
    "link_timeout",
    "retries",
    "receiver_wait",
    "mtu",
    "send_depth",
    "receive_depth",
];

/// The keys as they appear in a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeviceKeys {
    traffic_class: Option<u8>,
    service_level: Option<u8>,
    #[serde(deserialize_with = "some_time", default)]
    link_timeout: Option<Duration>,
    retries: Option<u8>,
    #[serde(deserialize_with = "some_time", default)]
    receiver_wait: Option<Duration>,
    #[serde(deserialize_with = "some_size", default)]
    mtu: Option<u32>,
    send_depth: Option<u32>,
    receive_depth: Option<u32>,
}

fn some_time<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    time(value).map(Some)
}

fn some_size<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    // A size that does not fit is refused as one that no packet has.
    size(value).map(|bytes| Some(u32::try_from(bytes).unwrap_or(u32::MAX)))
}

impl DeviceKeys {
    /// Returns the settings, or the problem with them.
    pub(super) fn settings(self) -> Result<VerbsSettings, String> {
        let settings = VerbsSettings {
            traffic_class: self.traffic_class,
            service_level: self.service_level,
            link_timeout: self.link_timeout,
            retries: self.retries,
            receiver_wait: self.receiver_wait,
            mtu: self.mtu,
            send_depth: self.send_depth,
            receive_depth: self.receive_depth,
            ..VerbsSettings::default()
        };
        settings.check().map(|()| settings)
    }
}
