//! Inflating message bodies. A broker never does this: tools and consumers do.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

use super::sys_flag::SysFlag;

/// Most that a body may inflate to.
const INFLATED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most times its own length that a body may inflate to, however short it is.
const INFLATED_RATIO_MAX: usize = 100;
/// So short a result is harmless whatever the ratio: a body of equal bytes shrinks a thousandfold.
const INFLATED_BYTES_HARMLESS: usize = 64 * 1024;

/// Why a body cannot be inflated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InflateError {
    /// Compressed in a way we do not read.
    #[error("compression {0:#x} is not supported")]
    Unsupported(i32),
    /// Not what it says.
    #[error("not a zlib stream")]
    Malformed,
    /// It would grow beyond any message.
    #[error("inflates to more than {0} bytes")]
    TooLarge(usize),
}

/// Inflates the body of a message with `sys_flag`; call it only if that says that the body is compressed.
///
/// # Errors
/// [`InflateError`] if the body is compressed by LZ4 or ZSTD, malformed, or a bomb.
pub fn inflate(sys_flag: SysFlag, body: &[u8]) -> Result<Vec<u8>, InflateError> {
    match sys_flag.0 & SysFlag::COMPRESSION_MASK {
        0 | SysFlag::COMPRESSION_ZLIB => inflate_zlib(body),
        other => Err(InflateError::Unsupported(other)),
    }
}

/// Inflates a zlib stream within the limits. Memory grows with what comes out.
pub(crate) fn inflate_zlib(stream: &[u8]) -> Result<Vec<u8>, InflateError> {
    let bytes_max = stream.len().saturating_mul(INFLATED_RATIO_MAX);
    let bytes_max = bytes_max.clamp(INFLATED_BYTES_HARMLESS, INFLATED_BYTES_MAX);
    let mut inflated = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    ZlibDecoder::new(stream).take(limit).read_to_end(&mut inflated).map_err(|_| InflateError::Malformed)?;
    if inflated.len() > bytes_max { Err(InflateError::TooLarge(bytes_max)) } else { Ok(inflated) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(5));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn zlib_bodies_inflate() {
        let body = b"hello ".repeat(1000);
        for flag in [0x1, 0x301] {
            assert_eq!(inflate(SysFlag(flag), &deflate(&body)).as_deref(), Ok(&body[..]));
        }
        assert_eq!(inflate(SysFlag(0x101), &deflate(&body)), Err(InflateError::Unsupported(0x100)));
        assert_eq!(inflate(SysFlag(0x1), b"hello"), Err(InflateError::Malformed));
        assert_eq!(inflate(SysFlag(0x1), &deflate(&body)[..20]), Err(InflateError::Malformed));
    }

    #[test]
    fn bombs_are_refused() {
        assert!(inflate(SysFlag(0x1), &deflate(&[0; 64 * 1024])).is_ok());
        let bomb = deflate(&vec![0; 10_000_000]);
        assert!(bomb.len() < 16_000);
        assert_eq!(inflate(SysFlag(0x1), &bomb), Err(InflateError::TooLarge(bomb.len() * 100)));
    }
}
