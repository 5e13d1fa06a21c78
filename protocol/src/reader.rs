//! Big-endian reading from a slice, without a panic in it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The bytes not read yet. Every read returns `None` if there are too few, and then nothing is taken.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// An address: four or sixteen bytes, then a port of four bytes.
    pub(crate) fn host(&mut self, v6: bool) -> Option<SocketAddr> {
        let ip =
            if v6 { Ipv6Addr::from(self.array::<16>()?).into() } else { Ipv4Addr::from(self.array::<4>()?).into() };
        Some(SocketAddr::new(ip, u16::try_from(self.i32()?).ok()?))
    }
}

/// Appends an address as [`Reader::host`] reads it.
pub(crate) fn put_host(out: &mut impl bytes::BufMut, host: SocketAddr) {
    match host {
        SocketAddr::V4(host) => out.put_slice(&host.ip().octets()),
        SocketAddr::V6(host) => out.put_slice(&host.ip().octets()),
    }
    out.put_i32(i32::from(host.port()));
}
