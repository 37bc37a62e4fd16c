//! Addresses and prefixes of addresses in settings.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// One address, or all with the same first bits: `192.0.2.1`, `10.0.0.0/8`, `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPrefix(IpNet);

impl AddressPrefix {
    /// Whether an address is in it. An IPv4 address that is mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl AddressPrefix {
    /// The addresses that have the first `bits` of this one; at most as many as it has.
    #[must_use]
    pub fn of(address: IpAddr, bits: u8) -> Self {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = IpNet::new(address, bits.min(most));
        Self(prefix.map_or_else(|_| IpNet::from(address), |prefix| prefix.trunc()))
    }

    /// First address of the prefix.
    #[must_use]
    pub fn first(self) -> IpAddr {
        self.0.network()
    }
}

/// Bits in front of an IPv4 address that is mapped into IPv6.
const MAPPED_BITS: u8 = 96;

/// The prefix of IPv4 addresses, where they are mapped into IPv6: peers have none in that form.
fn canonical(prefix: IpNet) -> IpNet {
    let mapped = match prefix.addr() {
        IpAddr::V6(address) => address.to_ipv4_mapped(),
        IpAddr::V4(_) => None,
    };
    mapped
        .zip(prefix.prefix_len().checked_sub(MAPPED_BITS))
        .and_then(|(address, bits)| Ipv4Net::new(address, bits).ok())
        .map_or(prefix, IpNet::from)
}

impl FromStr for AddressPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let prefix = match text.parse::<IpAddr>() {
            Ok(address) => Some(IpNet::from(address.to_canonical())),
            Err(_) => text.parse().ok().map(canonical),
        };
        let prefix = prefix.ok_or_else(|| {
            format!("`{text}` is neither an address nor a prefix such as 10.0.0.0/8")
        })?;
        if prefix.trunc() != prefix {
            let meant = prefix.trunc();
            return Err(format!(
                "`{text}` has bits behind its prefix: write {meant}"
            ));
        }
        Ok(Self(prefix))
    }
}

impl TryFrom<String> for AddressPrefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<AddressPrefix> for String {
    fn from(prefix: AddressPrefix) -> Self {
        prefix.to_string()
    }
}

impl From<IpAddr> for AddressPrefix {
    fn from(address: IpAddr) -> Self {
        Self(IpNet::from(address.to_canonical()))
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(f);
        }
        self.0.fmt(f)
    }
}

impl From<AddressPrefix> for IpNet {
    fn from(prefix: AddressPrefix) -> Self {
        prefix.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_addresses_that_begin_with_it() {
        for (prefix, inside, outside) in [
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("::ffff:192.0.2.0/120", "192.0.2.9", "192.0.3.9"),
            ("::ffff:127.0.0.0/104", "::ffff:127.1.2.3", "128.0.0.1"),
            ("::ffff:0:0/96", "203.0.113.9", "2001:db8::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
            ("2001:db8::/32", "2001:db8:9::1", "2001:db9::1"),
            ("0.0.0.0/0", "203.0.113.9", "2001:db8::1"),
        ] {
            let parsed: AddressPrefix = prefix.parse().unwrap();
            assert!(
                parsed.contains(inside.parse().unwrap()),
                "{prefix} {inside}"
            );
            assert!(
                !parsed.contains(outside.parse().unwrap()),
                "{prefix} {outside}"
            );
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "host",
            "10.0.0.0/",
            "10.0.0/8",
            "::ffff:10.0.0.1/104",
        ] {
            assert!(wrong.parse::<AddressPrefix>().is_err(), "{wrong}");
        }
    }
}
