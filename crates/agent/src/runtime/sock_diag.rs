//! TCP sockets of this host, as the kernel reports them over netlink (`sock_diag(7)`): those that listen on a port, and one
//! end of a connection.
//!
//! It looks at these alone. `/proc/net/tcp` walks over the table of all connections instead, which
//! grows with the host's memory: reading it takes milliseconds, and every request to a service would pay for it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

/// Kinds of messages (`linux/netlink.h`, `linux/sock_diag.h`).
const ERROR: u16 = 2;
const DONE: u16 = 3;
const BY_FAMILY: u16 = 20;
/// Flags of a request for all sockets: `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// Flags of a request for exactly one socket: `NLM_F_REQUEST`.
const ONE: u16 = 0x1;
/// `TCP_LISTEN` as a set of states.
const LISTENING: u32 = 1 << 10;
/// Protocol of the sockets that are asked for: `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `struct nlmsghdr`: length, kind, flags, sequence, port of the sender.
const HEADER_BYTES: usize = 16;
/// Length of `struct inet_diag_req_v2`, in bytes.
const REQUEST_BYTES: usize = 56;
/// `struct inet_diag_msg`: where it has the port, the address and the inode, and how long it is.
const STATE_AT: usize = 1;
const PORT_AT: usize = 4;
const REMOTE_PORT_AT: usize = 6;
const ADDRESS_AT: usize = 8;
const INODE_AT: usize = 68;
const ANSWER_BYTES: usize = 72;

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listener {
    /// Address that it listens on.
    pub(super) address: IpAddr,
    /// Number by which `/proc/PID/fd` names it.
    pub(super) inode: u64,
}

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// Its state, as `enum` of `net/tcp_states.h` numbers them.
    pub(super) state: u8,
    /// Number by which `/proc/PID/fd` names it; 0 = no process holds it.
    pub(super) inode: u64,
}

/// The sockets that listen on a port, at any address.
///
/// # Errors
/// The kernel does not answer: the module `inet_diag` is missing, or this process may not use netlink.
pub(super) fn listening_on(port: u16) -> io::Result<Vec<Listener>> {
    let socket = connect()?;
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        send(
            socket.as_raw_fd(),
            &request(family, port),
            MsgFlags::empty(),
        )?;
        receive(&socket, port, &mut found)?;
    }
    Ok(found)
}

/// The end at `local` of the connection with `remote`; `None` = there is none.
///
/// # Errors
/// As [`listening_on`].
pub(super) fn end_of(local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<End>> {
    let socket = connect()?;
    let message = request_of_one(local, remote);
    send(socket.as_raw_fd(), &message, MsgFlags::empty())?;
    let mut buffer = vec![0; 4 << 10];
    let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    read_one(&buffer[..length], local.port(), remote.port())
}

fn connect() -> io::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(1, 0))?;
    Ok(socket)
}

fn request(family: AddressFamily, port: u16) -> Vec<u8> {
    let mut message = begun(family, DUMP, LISTENING);
    message.extend(port.to_be_bytes());
    message.resize(HEADER_BYTES + REQUEST_BYTES, 0);
    message
}

/// A request for one socket, by `struct inet_diag_sockid`. IPv6 sockets that accept connections over IPv4 are found too.
fn request_of_one(local: SocketAddrV4, remote: SocketAddrV4) -> Vec<u8> {
    const ADDRESS_BYTES: usize = 16;
    const NO_COOKIE: [u8; 8] = [0xff; 8];
    let mut message = begun(AddressFamily::Inet, ONE, u32::MAX);
    message.extend(local.port().to_be_bytes());
    message.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        message.extend(address.octets());
        message.extend([0; ADDRESS_BYTES - 4]);
    }
    // Any interface.
    message.extend([0; 4]);
    message.extend(NO_COOKIE);
    message
}

/// A request up to the ports of its sockets.
fn begun(family: AddressFamily, flags: u16, states: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).unwrap_or(u32::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // Sequence and sender: there is one request at a time.
    message.extend([0; 8]);
    message.extend([u8::try_from(family as i32).unwrap_or(0), TCP, 0, 0]);
    message.extend(states.to_ne_bytes());
    message
}

/// Reads the answer to a request for one socket.
fn read_one(datagram: &[u8], local: u16, remote: u16) -> io::Result<Option<End>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let (length, kind) = header(datagram).ok_or_else(invalid)?;
    let message = datagram.get(HEADER_BYTES..length).ok_or_else(invalid)?;
    if kind == ERROR {
        let error = refusal(message);
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
    }
    let message: &[u8; ANSWER_BYTES] = message.first_chunk().ok_or_else(invalid)?;
    let port = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
    if kind != BY_FAMILY {
        return Err(invalid());
    }
    // Where there is no such connection, the kernel names the socket that would accept it.
    let is_it = port(PORT_AT) == local && port(REMOTE_PORT_AT) == remote;
    let inode = message[INODE_AT..].first_chunk().ok_or_else(invalid)?;
    Ok(is_it.then(|| End {
        state: message[STATE_AT],
        inode: u32::from_ne_bytes(*inode).into(),
    }))
}

/// The error that a message contains.
fn refusal(message: &[u8]) -> io::Error {
    let code = message
        .first_chunk()
        .map_or(0, |code| i32::from_ne_bytes(*code));
    io::Error::from_raw_os_error(code.saturating_neg())
}

/// Receives the answers to one request, to their end.
fn receive(socket: &OwnedFd, port: u16, found: &mut Vec<Listener>) -> io::Result<()> {
    let mut buffer = vec![0; 32 << 10];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        if read(&buffer[..length], port, found)? {
            return Ok(());
        }
    }
}

/// Reads the messages of one datagram; `true` = they were the last ones.
fn read(mut datagram: &[u8], port: u16, found: &mut Vec<Listener>) -> io::Result<bool> {
    while let Some((length, kind)) = header(datagram) {
        let Some(message) = datagram.get(HEADER_BYTES..length) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match kind {
            DONE => return Ok(true),
            ERROR => return Err(refusal(message)),
            BY_FAMILY => found.extend(listener(message, port)),
            _ => {}
        }
        // Messages begin at multiples of four.
        datagram = datagram
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    if datagram.is_empty() {
        Ok(false)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Length and kind of the first message, if there is a whole header.
fn header(datagram: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(*datagram.first_chunk()?);
    let kind = u16::from_ne_bytes(*datagram.get(4..)?.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    (length >= HEADER_BYTES && datagram.len() >= HEADER_BYTES).then_some((length, kind))
}

/// The socket of an answer, if it is on this port.
fn listener(message: &[u8], port: u16) -> Option<Listener> {
    let message: &[u8; ANSWER_BYTES] = message.first_chunk()?;
    let on = u16::from_be_bytes(*message[PORT_AT..].first_chunk()?);
    let address = &message[ADDRESS_AT..];
    let address: IpAddr = if i32::from(message[0]) == AddressFamily::Inet as i32 {
        Ipv4Addr::from(*address.first_chunk::<4>()?).into()
    } else {
        Ipv6Addr::from(*address.first_chunk::<16>()?).to_canonical()
    };
    let inode = u32::from_ne_bytes(*message[INODE_AT..].first_chunk()?);
    (on == port).then_some(Listener {
        address,
        inode: inode.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listeners_are_found_by_port_with_their_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
        let found = match listening_on(address.port()) {
            Ok(found) => found,
            Err(error) => {
                println!("SKIPPED: the kernel lists no sockets over netlink: {error}");
                return;
            }
        };
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].address, address.ip());
        assert_eq!(
            format!("socket:[{}]", found[0].inode),
            link.to_str().unwrap()
        );
        drop(listener);
        assert_eq!(listening_on(address.port()).unwrap(), []);
    }

    #[test]
    fn the_other_end_of_a_connection_is_found_with_its_holder() {
        use std::net::{SocketAddr, TcpStream};
        for on in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(on) else {
                println!("SKIPPED: this host has no address {on}");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let near = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let (SocketAddr::V4(own), SocketAddr::V4(far)) =
                (near.local_addr().unwrap(), near.peer_addr().unwrap())
            else {
                panic!("connected over IPv4");
            };
            let end = || end_of(far, own).unwrap();
            match end_of(far, own) {
                Ok(found) => assert_eq!(found.unwrap().inode, 0, "not accepted yet"),
                Err(error) => {
                    println!("SKIPPED: the kernel lists no sockets over netlink: {error}");
                    return;
                }
            }
            let (accepted, _) = listener.accept().unwrap();
            let link = format!("/proc/self/fd/{}", accepted.as_raw_fd());
            let link = std::fs::read_link(link).unwrap();
            let found = end().unwrap();
            assert_eq!(found.state, 1);
            assert_eq!(format!("socket:[{}]", found.inode), link.to_str().unwrap());
            // Closed: no process answers any more.
            drop(accepted);
            assert_ne!(end().map(|end| end.state), Some(1));
            let other = SocketAddrV4::new(*own.ip(), own.port().wrapping_add(1).max(1));
            assert_eq!(
                end_of(far, other).unwrap(),
                None,
                "a listener is no end of a connection"
            );
        }
        assert!(read_one(&[0; 64], 1, 2).is_err());
        assert!(read_one(&[1; 7], 1, 2).is_err());
    }

    #[test]
    fn answers_that_are_no_messages_are_errors() {
        let mut found = Vec::new();
        let mut whole = request(AddressFamily::Inet, 80);
        // An answer is longer than a request: this one holds none.
        assert!(!read(&whole, 80, &mut found).unwrap());
        whole.truncate(HEADER_BYTES + 3);
        assert!(read(&whole, 80, &mut found).is_err());
        assert!(read(&[1; 7], 80, &mut found).is_err());
        assert!(read(&[0; 64], 80, &mut found).is_err());
        let mut refusal = 20_u32.to_ne_bytes().to_vec();
        refusal.extend(ERROR.to_ne_bytes());
        refusal.extend([0; 10]);
        refusal.extend((-2_i32).to_ne_bytes());
        let error = read(&refusal, 80, &mut found).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(found, []);
    }
}
