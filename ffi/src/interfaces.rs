//! The addresses of this host's network interfaces.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the addresses by which other hosts may reach this one, of the interfaces that are up: no loopback and no
/// link-local ones. Those of version 4 come first.
///
/// # Errors
/// The system does not tell them.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: fills `first` with a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: null, or an entry of the list, which nothing changes.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        if interface.ifa_flags & libc::IFF_UP as u32 != 0 && !interface.ifa_addr.is_null() {
            // SAFETY: an address of the family that it names, in the list.
            found.extend(unsafe { address(interface.ifa_addr) });
        }
    }
    // SAFETY: the list from above, of which nothing is used any more.
    unsafe { libc::freeifaddrs(first) };
    found.retain(|address| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    });
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    Ok(found)
}

/// Returns an address of the Internet; `None` for other families.
///
/// # Safety
/// `socket` must be the address of a `sockaddr` of the family that it names.
unsafe fn address(socket: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller says; getifaddrs(3) aligns them for their types.
    unsafe {
        match i32::from((*socket).sa_family) {
            libc::AF_INET => {
                let bits = (*socket.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                Some(Ipv4Addr::from(u32::from_be(bits)).into())
            }
            libc::AF_INET6 => Some(Ipv6Addr::from((*socket.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr).into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_no_loopback() {
        assert!(addresses().unwrap().iter().all(|address| !address.is_loopback()));
    }
}
