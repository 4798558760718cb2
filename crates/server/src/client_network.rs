//! Which addresses of clients count as one.

use std::net::{IpAddr, Ipv6Addr};

/// The address itself; of IPv6 the network of 64 bits that one host usually has for itself, the rest of which it chooses.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}
