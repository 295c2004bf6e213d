//! How far the addresses of a network interface lead.
#![forbid(unsafe_code)]

use std::net::IpAddr;

/// The hosts that can reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Its own only: a loopback address.
    Machine,
    /// Those on its link that also name their own interface, which libfabric's addresses do not do.
    Link,
    /// All that have a route to it.
    Anywhere,
}

impl Scope {
    /// The scope of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Scope::Machine,
            IpAddr::V6(address) if address.is_unicast_link_local() => Scope::Link,
            _ => Scope::Anywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_to_its_machine_its_link_or_anywhere() {
        for (address, scope) in [
            ("127.0.0.1", Scope::Machine),
            ("127.8.0.1", Scope::Machine),
            ("::1", Scope::Machine),
            ("::ffff:127.0.0.1", Scope::Machine),
            ("fe80::1", Scope::Link),
            ("10.0.0.1", Scope::Anywhere),
            // Two hosts on a cable without DHCP reach each other by such addresses.
            ("169.254.3.4", Scope::Anywhere),
            ("2001:db8::1", Scope::Anywhere),
        ] {
            assert_eq!(Scope::of(address.parse().unwrap()), scope, "{address}");
        }
    }
}
