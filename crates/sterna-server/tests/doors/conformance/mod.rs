//! Normative statements of MQTT that engine, front door and broker keep together.

mod authentication;
mod connect;
mod end;
mod publish;
mod streams;
mod subscribe;
mod wills;

use crate::fixture::{block, plain};
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Property, PropertyBuf, PublishProperties, QoS, Version};
use sterna_server::config::Config;

const V311: Version = Version::V311;
const V5: Version = Version::V5;

fn password_config() -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().join("passwords");
    let record =
        sterna_auth::Record::from_password("secret", &[7; 16], sterna_auth::MIN_ITERATIONS)
            .expect("a record");
    std::fs::write(&path, format!("ann:{record}\n")).expect("writes");
    let mut config = Config::default();
    config.authentication.password_file = Some(path);
    config.passwords.iterations = 0;
    (directory, config)
}

fn will<'a>(topic: &'a str, properties: PublishProperties<'a>) -> Will<'a> {
    Will {
        topic,
        payload: b"gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        properties,
    }
}

fn expiring(seconds: u32) -> PropertyBuf {
    block(&[Property::SessionExpiryInterval(seconds)])
}

fn persistent<'a>(client_id: &'a str, properties: &'a PropertyBuf, clean: bool) -> Connect<'a> {
    Connect {
        clean_start: clean,
        properties: properties.properties(),
        ..plain(V5, client_id)
    }
}
