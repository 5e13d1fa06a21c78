//! The plain calls that bound the log.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, FallocateFlags};

use crate::measure::{Latencies, Start, pattern, report};
use crate::{RUN, directory};

/// A file as a new segment is: blocks reserved, nothing written.
fn allocated(path: &Path, bytes: u64) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
    file.sync_all().unwrap();
    file
}

/// A checksum and a copy into a mapping whose pages are all there.
pub(crate) fn copy(name: &str, bytes: usize) -> f64 {
    const MAPPED: usize = 256 << 20;
    let mut mapping = memmap2::MmapMut::map_anon(MAPPED).unwrap();
    mapping.fill(1);
    let payload = pattern(bytes);
    let (mut at, mut count) = (0, 0);
    let started = Start::now();
    while started.elapsed() < RUN {
        for _ in 0..100 {
            black_box(crc32fast::hash(black_box(&payload)));
            mapping[at..at + bytes].copy_from_slice(&payload);
            at = (at + bytes) % (MAPPED - bytes);
            count += 1;
        }
    }
    report(name, count, count * bytes as u64, &started, &mut Latencies::default())
}

/// `pwrite`, and perhaps `fdatasync`, into a file that is allocated or was written before.
pub(crate) fn append(name: &str, bytes: usize, sync: bool, prewritten: bool) -> f64 {
    const FILE: u64 = 1 << 30;
    let dir = directory();
    let file = allocated(&dir.path().join("bare"), 4 * FILE);
    if prewritten {
        let block = vec![7; 1 << 20];
        (0..FILE >> 20).for_each(|at| file.write_all_at(&block, at << 20).unwrap());
        file.sync_all().unwrap();
    }
    let limit = if prewritten { FILE } else { 4 * FILE };
    let payload = pattern(bytes);
    let mut latencies = Latencies::default();
    let (mut at, mut count) = (0, 0);
    let started = Start::now();
    while started.elapsed() < RUN && (prewritten || at + bytes as u64 <= limit) {
        let since = Instant::now();
        file.write_all_at(&payload, at).unwrap();
        if sync {
            file.sync_data().unwrap();
        }
        latencies.0.push(since.elapsed());
        count += 1;
        at += bytes as u64;
        if prewritten && at + bytes as u64 > limit {
            at = 0;
        }
    }
    report(name, count, count * bytes as u64, &started, &mut latencies)
}

/// `pwrite` and `fdatasync` on a thread of their own, asked for and waited for one at a time: what any log does whose
/// callers must not block. The wake-ups of two threads come on top of the disk.
pub(crate) fn handed_over(name: &str, bytes: usize) -> f64 {
    let dir = directory();
    let file = allocated(&dir.path().join("bare"), 4 << 30);
    let payload = pattern(bytes);
    let (ask, asked) = std::sync::mpsc::channel::<u64>();
    let (answer, answered) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        for at in asked {
            file.write_all_at(&payload, at).unwrap();
            file.sync_data().unwrap();
            answer.send(()).unwrap();
        }
    });
    let mut latencies = Latencies::default();
    let mut count = 0;
    let started = Start::now();
    while started.elapsed() < RUN {
        let since = Instant::now();
        ask.send(count * bytes as u64).unwrap();
        answered.recv().unwrap();
        latencies.0.push(since.elapsed());
        count += 1;
    }
    drop(ask);
    writer.join().unwrap();
    report(name, count, count * bytes as u64, &started, &mut latencies)
}

/// Writes past the page cache, and perhaps `fdatasync`: what the disk itself does. `bytes` is a multiple of a block.
pub(crate) fn direct(name: &str, bytes: usize, sync: bool) -> f64 {
    const FILE: u64 = 4 << 30;
    const BLOCK: usize = 4096;
    let dir = directory();
    let path = dir.path().join("bare");
    drop(allocated(&path, FILE));
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut buffer = vec![0; bytes + BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    buffer[start..start + bytes].copy_from_slice(&pattern(bytes));
    let mut latencies = Latencies::default();
    let (mut at, mut count) = (0, 0);
    let started = Start::now();
    while started.elapsed() < RUN && at + bytes as u64 <= FILE {
        let since = Instant::now();
        file.write_all_at(&buffer[start..start + bytes], at).unwrap();
        if sync {
            file.sync_data().unwrap();
        }
        latencies.0.push(since.elapsed());
        count += 1;
        at += bytes as u64;
    }
    report(name, count, count * bytes as u64, &started, &mut latencies)
}

/// `pread` through the files of a directory, in order or anywhere.
pub(crate) fn read(name: &str, dir: &Path, bytes: usize, in_order: bool) -> f64 {
    let files: Vec<File> = crate::segments(dir).iter().map(|path| File::open(path).unwrap()).collect();
    let size = files[0].metadata().unwrap().len();
    let places = size / bytes as u64 * files.len() as u64;
    let mut buffer = vec![0; bytes];
    let mut latencies = Latencies::default();
    let mut count = 0;
    let started = Start::now();
    while started.elapsed() < RUN && (count < places || !in_order) {
        let since = Instant::now();
        let place = if in_order { count } else { count.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places };
        let at = place * bytes as u64;
        files[(at / size) as usize].read_exact_at(&mut buffer, at % size).unwrap();
        black_box(&buffer);
        latencies.0.push(since.elapsed());
        count += 1;
    }
    report(name, count, count * bytes as u64, &started, &mut latencies)
}

/// Takes the files of a directory out of memory.
pub(crate) fn make_cold(dir: &Path) {
    for path in crate::segments(dir) {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
}
