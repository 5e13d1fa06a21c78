//! Frames of real clients, damaged at random: whatever arrives, nothing panics and nothing read is misread.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    reason = "a test that panics has failed, which is what it is for"
)]

mod targets;

use std::panic::catch_unwind;
use std::path::Path;

/// A small generator, so that a seed means the same for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn frames() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut frames = Vec::new();
    for file in ["java-5.3.3", "java-5.3.3-binary", "java-4.9.8", "go", "python", "mqadmin", "broker"] {
        let text = std::fs::read_to_string(folder.join(format!("{file}.jsonl"))).unwrap();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let digits = line["frame"].as_str().unwrap().as_bytes();
            let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
            frames.push(digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect());
        }
    }
    frames
}

/// Bytes and pieces that parsers trip over.
const TOKENS: [&[u8]; 16] = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xff",
    b"\x00",
    b"\xff",
    b"\"",
    b"\\",
    b"\\ud800",
    b"{",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"}",
    b",",
    b"18446744073709551616",
    b"\x01\x02",
];

fn mutate(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 if !bytes.is_empty() => {
                let end = (at + random.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let token = TOKENS[random.below(TOKENS.len())];
                bytes.splice(at..at, token.iter().copied());
            }
            5 => {
                let token = TOKENS[random.below(TOKENS.len())];
                let end = (at + token.len()).min(bytes.len());
                bytes.splice(at..end, token.iter().copied());
            }
            _ => {
                let from = random.below(other.len());
                let end = (from + random.below(64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
        }
    }
    bytes
}

/// Feeds `count` mutations of `inputs` to `target`; the seed and the bytes are printed if it panics.
fn check(target: fn(&[u8]), inputs: &[Vec<u8>], count: usize) {
    assert!(!inputs.is_empty());
    for input in inputs {
        target(input);
    }
    for seed in 1..=count as u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        let input = &inputs[random.below(inputs.len())];
        let other = &inputs[random.below(inputs.len())];
        let bytes = mutate(&mut random, input, other);
        if catch_unwind(|| target(&bytes)).is_err() {
            panic!("seed {seed}: {}", bytes.escape_ascii());
        }
    }
}

const MUTATIONS: usize = 20_000;

fn header_of(frame: &[u8]) -> &[u8] {
    let length = usize::from(frame[5]) << 16 | usize::from(frame[6]) << 8 | usize::from(frame[7]);
    &frame[8..8 + length]
}

fn body_of(frame: &[u8]) -> &[u8] {
    &frame[8 + header_of(frame).len()..]
}

#[test]
fn frames_hold_under_mutation() {
    let inputs: Vec<_> = frames().into_iter().map(|frame| [&[7][..], &frame].concat()).collect();
    check(targets::frame, &inputs, MUTATIONS);
}

#[test]
fn json_headers_hold_under_mutation() {
    let inputs: Vec<_> = frames().iter().filter(|frame| frame[4] == 0).map(|frame| header_of(frame).to_vec()).collect();
    check(targets::json_header, &inputs, MUTATIONS);
}

#[test]
fn binary_headers_hold_under_mutation() {
    let inputs: Vec<_> = frames().iter().filter(|frame| frame[4] == 1).map(|frame| header_of(frame).to_vec()).collect();
    check(targets::binary_header, &inputs, MUTATIONS);
}

#[test]
fn stored_messages_hold_under_mutation() {
    let is_record = |body: &&[u8]| matches!(body.get(4..8), Some([0xda, 0xa3, 0x20, 0xa7 | 0xab]));
    let frames = frames();
    let inputs: Vec<_> = frames.iter().map(|frame| body_of(frame)).filter(is_record).map(<[u8]>::to_vec).collect();
    check(targets::message_record, &inputs, MUTATIONS);
}

#[test]
fn batches_hold_under_mutation() {
    let is_batch = |body: &&[u8]| body.len() > 22 && body[..2] == [0, 0] && body[4..12] == [0; 8];
    let frames = frames();
    let inputs: Vec<_> = frames.iter().map(|frame| body_of(frame)).filter(is_batch).map(<[u8]>::to_vec).collect();
    check(targets::batch, &inputs, MUTATIONS);
}

#[test]
fn properties_hold_under_mutation() {
    let inputs = [
        "KEYS\u{1}k1 k2\u{2}TAGS\u{1}TagA\u{2}UNIQ_KEY\u{1}7F0000017DF54E0E2F2A95E869BE0002\u{2}WAIT\u{1}true",
        "a\u{1}1\u{2}a\u{1}2\u{2}\u{2}b\u{1}\u{2}\u{1}c\u{2}UNIQ_KEY\u{1}\u{1}",
        "",
    ];
    check(targets::properties, &inputs.map(|text| text.as_bytes().to_vec()), MUTATIONS);
}

#[test]
fn client_bodies_hold_under_mutation() {
    let frames = frames();
    let inputs: Vec<_> =
        frames.iter().map(|frame| body_of(frame)).filter(|body| body.starts_with(b"{")).map(<[u8]>::to_vec).collect();
    check(targets::heartbeat_body, &inputs, MUTATIONS / 4);
}
