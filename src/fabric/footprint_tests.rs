//! What a rank takes in worlds of several sizes: the tables of `docs/footprint.md` say what the code does.

use super::net::{Limits, peers, share};
use super::shm::{doorbell::Doorbell, head_bytes};
use super::verbs;

/// Ranks of a world, for the columns.
const RANKS: [u32; 5] = [2, 8, 64, 512, 4096];

/// Of what a device or provider allows, nothing is a limit here.
const ANY: usize = usize::MAX;

fn over_libfabric(ranks: u32) -> Limits {
    Limits { immediate: 8, places: 2, ..Limits::of(ANY, ranks) }
}

fn over_verbs(ranks: u32) -> Limits {
    verbs::limits(ANY, ANY, None, ranks)
}

/// Message buffers for outgoing messages.
fn sends(limits: &Limits, ranks: u32) -> usize {
    limits.first_transfer(ranks) - limits.receives
}

/// Bytes of message buffers and of header slots.
fn memory(limits: &Limits, ranks: u32) -> [usize; 2] {
    let (buffers, header_slots) = limits.memory(ranks);
    [buffers, header_slots.unwrap_or(0)]
}

/// With a comma before each three digits.
fn text(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn row(name: &str, value: impl Fn(u32) -> usize) -> String {
    let values = RANKS.map(|ranks| text(value(ranks))).join(" | ");
    format!("| {name} | {values} |")
}

fn kib(name: &str, bytes: impl Fn(u32) -> usize) -> String {
    row(&format!("{name}, KiB"), |ranks| bytes(ranks).div_ceil(1 << 10))
}

/// What all networks share.
fn rows_of(limits: fn(u32) -> Limits) -> Vec<String> {
    vec![
        row("receives", |ranks| limits(ranks).receives),
        row("sends", |ranks| sends(&limits(ranks), ranks)),
        row("transfers", |ranks| limits(ranks).moving),
        row("operations, all of these", |ranks| limits(ranks).operations(ranks)),
        row("sends for one peer", |ranks| share(sends(&limits(ranks), ranks), ranks)),
        row("transfers for one peer", |ranks| share(limits(ranks).moving, ranks)),
        kib("message buffers", |ranks| memory(&limits(ranks), ranks)[0]),
        kib("header slots", |ranks| memory(&limits(ranks), ranks)[1]),
    ]
}

fn assert_in_the_page(title: &str, rows: &[String]) {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/footprint.md");
    let page = std::fs::read_to_string(page).unwrap_or_default();
    let section = page.split("\n## ").find(|section| section.starts_with(title)).unwrap_or_default();
    let table: Vec<_> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(table, rows, "docs/footprint.md, {title}; the rows are:\n{}\n", rows.join("\n"));
}

#[test]
fn the_page_says_what_a_rank_takes_over_libfabric() {
    assert_in_the_page("Over libfabric", &rows_of(over_libfabric));
}

#[test]
fn the_page_says_what_a_rank_takes_over_verbs() {
    let send_queue = |ranks| verbs::sends(peers(ranks), None) as usize;
    let mut rows = rows_of(over_verbs);
    rows.extend([
        kib("datagram buffers", |_| verbs::HELLOS),
        row("reliable queue pairs, one for each peer", peers),
        row("entries of a send queue", send_queue),
        row("entries of the shared receive queue", |ranks| over_verbs(ranks).receives),
        row("entries of the completion queue", |ranks| verbs::completions(over_verbs(ranks).receives, ranks)),
    ]);
    assert_in_the_page("Over RDMA verbs", &rows);
}

#[test]
fn the_page_says_what_a_world_takes_in_shared_memory() {
    let rows = [
        kib("head of the file, as mapped", head_bytes),
        kib("doorbells of a collective", |ranks| ranks as usize * size_of::<Doorbell>()),
    ];
    assert_in_the_page("In shared memory", &rows);
}

/// Two columns, worked out from the numbers that the page explains.
#[test]
fn the_bytes_follow_from_the_numbers_of_the_page() {
    let buffer = 64 + (8 << 10);
    // A message buffer for each receive and send, one for injected messages, and a header for each transfer.
    let bytes = |receives: usize, sends: usize, transfers: usize| (receives + sends + 1) * buffer + transfers * 64;
    assert_eq!(memory(&over_libfabric(2), 2), [bytes(128, 64 + 1, 64), 2 * 64 * 64]);
    assert_eq!(memory(&over_libfabric(4096), 4096), [bytes(128, 2 * 4095, 4095), 4096 * 64 * 64]);
    assert_eq!(memory(&over_verbs(2), 2), [bytes(128, 64 + 1, 64), 2 * 64 * 64]);
    assert_eq!(memory(&over_verbs(4096), 4096), [bytes(4096, 2 * 4095, 8 * 4095), 4096 * 64 * 64]);
    assert_eq!(verbs::completions(4096, 4096), 4096 + 256 + 4096 * 16);
    // A device may allow fewer receives.
    assert_eq!(verbs::limits(ANY, 1000, None, 4096).receives, 1000);
}
