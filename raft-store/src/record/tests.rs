#![expect(clippy::indexing_slicing, reason = "a test that indexes wrongly fails")]

use super::*;

fn seed() -> Seed {
    Seed::new(&ClusterId::new([7; 16]), LogPosition::new(1 << 20))
}

fn draft(payload: &[u8]) -> Draft<'_> {
    Draft {
        position: LogPosition::new((1 << 20) + 4096),
        id: LogId::new(Term::new(5), LogIndex::new(42)),
        kind: Kind::Body(BodyKind::Normal),
        chain: 0xdead_beef,
        payload,
    }
}

#[test]
fn a_header_survives_its_byte_form() {
    let (header, bytes) = draft(b"hello").seal(seed());
    assert_eq!(Ok(header), Header::decode(seed(), header.position, &bytes));
    assert!(header.verifies(seed(), b"hello"));
    assert!(!header.verifies(seed(), b"hellp"));
    assert!(!header.verifies(seed(), b"hell"));
    assert_eq!(128, header.stored_bytes());
}

#[test]
fn the_layout_is_frozen() {
    let (_, bytes) = draft(b"hello").seal(seed());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    expect_test::expect!["674c7231820033a80000000000101000000000000000002a0000000000000005000000000000000000000005f8f4edacdeadbeef000100010000000000000000"].assert_eq(&hex);
}

#[test]
fn a_header_from_elsewhere_is_refused() {
    let (header, bytes) = draft(b"hello").seal(seed());
    let other_cluster = Seed::new(&ClusterId::new([8; 16]), LogPosition::new(1 << 20));
    let other_segment = Seed::new(&ClusterId::new([7; 16]), LogPosition::new(2 << 20));
    for foreign in [other_cluster, other_segment] {
        assert_eq!(Err(Fault::HeaderCrc), Header::decode(foreign, header.position, &bytes));
    }
    let moved = header.position.plus(64);
    assert_eq!(Err(Fault::Position(header.position)), Header::decode(seed(), moved, &bytes));
    assert_eq!(Err(Fault::Zero), Header::decode(seed(), moved, &[0; 64]));
}

#[test]
fn every_flipped_bit_of_a_header_is_found() {
    let (header, bytes) = draft(b"hello").seal(seed());
    for bit in 0..512 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::decode(seed(), header.position, &damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn any_two_flipped_bits_of_a_header_are_found() {
    let (header, bytes) = draft(b"hello").seal(seed());
    for one in 0..512 {
        for other in one + 1..512 {
            let mut damaged = bytes;
            damaged[one / 8] ^= 1 << (one % 8);
            damaged[other / 8] ^= 1 << (other % 8);
            assert!(Header::decode(seed(), header.position, &damaged).is_err(), "bits {one} and {other}");
        }
    }
}

#[test]
fn any_burst_of_up_to_32_changed_bits_of_a_payload_is_found() {
    let payload: Vec<u8> = (0..4096_usize).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect();
    let (header, _) = draft(&payload).seal(seed());
    // Both ends of a burst change; what changes between them is as good as any.
    let between = 0x9e37_79b9_7f4a_7c15_u64;
    for start in (0..4096 * 8_usize - 32).step_by(3) {
        for length in [2, 3, 8, 17, 31, 32] {
            let burst = (between & ((1 << length) - 1)) | 1 | 1 << (length - 1);
            let mut damaged = payload.clone();
            for bit in (0..length).filter(|bit| burst >> bit & 1 == 1) {
                damaged[(start + bit) / 8] ^= 1 << ((start + bit) % 8);
            }
            assert!(!header.verifies(seed(), &damaged), "{length} bits from {start}");
        }
    }
}

#[test]
fn a_payload_does_not_verify_under_the_header_of_another_entry() {
    let (header, _) = draft(b"hello").seal(seed());
    for other in [
        Header { id: LogId::new(Term::new(6), header.id.index), ..header },
        Header { id: LogId::new(header.id.term, LogIndex::new(43)), ..header },
        Header { position: header.position.plus(64), ..header },
    ] {
        assert!(!other.verifies(seed(), b"hello"));
    }
}

#[test]
fn a_kind_or_version_of_the_future_is_unknown() {
    for (at, value) in [(53, 9), (55, 2), (35, 1), (60, 1)] {
        let (header, mut bytes) = draft(b"").seal(seed());
        bytes[at] = value;
        let crc = header_crc(seed(), &bytes);
        bytes[4..8].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(Err(Fault::Unknown), Header::decode(seed(), header.position, &bytes), "byte {at}");
    }
}
